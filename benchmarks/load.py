"""Time and memory of `from_pretrained`: modelzoo against transformers, each from a fresh process, imports included.

python benchmarks/load.py MODEL_FOLDER [--rounds 5]
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import sides


def _modelzoo(options: argparse.Namespace) -> sides.Figures:
    start = time.perf_counter()
    import modelzoo
    import modelzoo.models.bert

    base = sides.peak_rss()
    middle = time.perf_counter()
    model = modelzoo.from_pretrained(options.folder, task="classification", num_labels=2, local_files_only=True)
    end = time.perf_counter()
    checksum = sum(float(parameter.detach().sum()) for parameter in model.parameters())  # every page is touched
    return _figures(start, middle, end, base, checksum)


def _transformers(options: argparse.Namespace) -> sides.Figures:
    start = time.perf_counter()
    from transformers import BertForSequenceClassification

    base = sides.peak_rss()
    middle = time.perf_counter()
    model = BertForSequenceClassification.from_pretrained(options.folder, num_labels=2, local_files_only=True)
    end = time.perf_counter()
    checksum = sum(float(parameter.detach().sum()) for parameter in model.parameters())
    return _figures(start, middle, end, base, checksum)


def _figures(start: float, middle: float, end: float, base: int, checksum: float) -> sides.Figures:
    return {
        "total_s": end - start,
        "load_s": end - middle,
        "peak_mib": sides.peak_rss() / 2**20,
        "above_imports_mib": (sides.peak_rss() - base) / 2**20,
        "checksum": checksum,
    }


def _report(figures: Mapping[str, Sequence[sides.Figures]]) -> list[str]:
    ours = figures["modelzoo"]
    return [
        f"time with imports, modelzoo / transformers    {sides.ratio(figures, 'total_s', 'modelzoo', 'transformers')}",
        f"time without imports, modelzoo / transformers {sides.ratio(figures, 'load_s', 'modelzoo', 'transformers')}",
        f"peak memory, modelzoo / transformers          {sides.ratio(figures, 'peak_mib', 'modelzoo', 'transformers')}",
        f"memory above the imports, modelzoo            {sides.median(ours, 'above_imports_mib'):.1f} MiB",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a BERT checkpoint with safetensors")
    sides.main({"modelzoo": _modelzoo, "transformers": _transformers}, parser, _report)
