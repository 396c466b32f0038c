"""The model card of a run: what the hub and a reader need to know of the result, all of it from the run's own files."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData

from modelzoo.quantities import counted, readable_size, time_text
from modelzoo.report.front_matter import license_of
from modelzoo.report.run_files import RunFiles, numbers
from modelzoo.report.serving import serving_text
from modelzoo.report.summary import summarize

__all__ = ["CARD_FILE", "model_card", "write_card"]

CARD_FILE = "README.md"
TASKS = {
    "classification": ("text-classification", "AutoModelForSequenceClassification"),
    "token_classification": ("token-classification", "AutoModelForTokenClassification"),
    "question_answering": ("question-answering", "AutoModelForQuestionAnswering"),
    "multiple_choice": ("multiple-choice", "AutoModelForMultipleChoice"),
    "masked_lm": ("fill-mask", "AutoModelForMaskedLM"),
    "causal_lm": ("text-generation", "AutoModelForCausalLM"),
    "seq2seq_lm": ("text2text-generation", "AutoModelForSeq2SeqLM"),
    "image_classification": ("image-classification", "AutoModelForImageClassification"),
}
"""The hub's name of each task, and the class of transformers that loads it."""
COLLECTIONS = ("glue", "super_glue")
"""Data sets whose parts are their configs."""
GENERATES = ("causal_lm", "seq2seq_lm")
ASK = (
    "",
    'messages = [{"role": "user", "content": "Hello"}]',
    'prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")',
    "print(tokenizer.decode(model.generate(**prompt, max_new_tokens=64)[0]))",
)
"""How a model for chats is asked with transformers."""


def write_card(run: RunFiles, folder: Path, *, base: Path | None = None, prompt: str | None = None) -> Path:
    """Write README.md into the folder of the result, in place of an earlier one, and return its path.

    Args:
        run: With its result.
        folder: Of the model.
        base: Of the model that was fine-tuned; its README's licence is stated too.
        prompt: Of a model for chats: what it reads when a user says something.

    Raises:
        OSError: It cannot be written.
    """
    temporary = folder / f".tmp-{CARD_FILE}"
    license_name = license_of(base) if base is not None else None
    temporary.write_text(model_card(run, folder, license_name=license_name, prompt=prompt), encoding="utf-8")
    os.replace(temporary, folder / CARD_FILE)
    return folder / CARD_FILE


def model_card(run: RunFiles, folder: Path, *, license_name: str | None = None, prompt: str | None = None) -> str:
    """Return the card: metadata in the hub's form, then the text.

    Args:
        run: Of which it is the result.
        folder: Of the model; its config.json and modelzoo.json say what it is.
        license_name: Of the model that was fine-tuned.
        prompt: As for `write_card`.
    """
    config, own = _json(folder / "config.json"), _json(folder / "modelzoo.json")
    metrics = _metrics(run)
    is_adapter = (folder / "adapter_config.json").is_file()
    data = _card_data(run, own, metrics, license_name, is_adapter=is_adapter)
    parts = [
        f"# {run.name}",
        _opening(run, own),
        _results(run, metrics),
        _use(run, config, prompt, is_adapter=is_adapter),
        _training(run),
        f"## Recipe\n\nEvery setting; paths are shortened to names.\n\n```yaml\n{_recipe(run)}```",
    ]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


def _card_data(
    run: RunFiles,
    own: Mapping[str, Any],
    metrics: Mapping[str, tuple[str, float]],
    license_name: str | None,
    *,
    is_adapter: bool,
) -> ModelCardData:
    task = str(run.section("model").get("task", ""))
    hub_task = TASKS.get(task, ("other", ""))[0]
    name, source, part = _data_name(run)
    results = [
        EvalResult(
            task_type=hub_task,
            dataset_type=source or "file",
            dataset_config=part,
            dataset_name=name,
            dataset_split=split,
            metric_type=metric,
            metric_value=value,
        )
        for metric, (split, value) in metrics.items()
    ]
    return ModelCardData(
        base_model=_base(run, own),
        datasets=[source] if source else None,
        eval_results=results or None,
        model_name=run.name if results else None,
        library_name="peft" if is_adapter else "transformers",
        license=license_name,
        pipeline_tag=hub_task if task in TASKS else None,
        tags=["modelzoo"],
    )


def _opening(run: RunFiles, own: Mapping[str, Any]) -> str:
    base, revision = _base(run, own) or own.get("source") or "a model", own.get("revision")
    at = f" at revision `{revision}`" if revision else ""
    name, *_ = _data_name(run)
    task = str(run.section("model").get("task", "")).replace("_", " ")
    return f"`{base}`{at}, fine-tuned for {task} on {name}."


def _results(run: RunFiles, metrics: Mapping[str, tuple[str, float]]) -> str:
    if not metrics:
        return "## Results\n\nThere was no validation data, so nothing was measured."
    summary = summarize(run)
    rows = [[metric, split, f"{value:.4f}"] for metric, (split, value) in metrics.items()]
    of = f"step {summary.best_step}, the best by {summary.metric}" if _keeps_best(run) else f"the last step, {run.step}"
    text = f"## Results\n\nThe weights are those of {of}.\n\n"
    majority = numbers(run.result).get("majority")
    more = f"\n\nAlways answering with the commonest label has an accuracy of {majority:.4f}." if majority is not None else ""
    return text + _table(["metric", "data", "value"], rows) + more


def _use(run: RunFiles, config: Mapping[str, Any], prompt: str | None, *, is_adapter: bool) -> str:
    task = str(run.section("model").get("task", ""))
    architecture = str(next(iter(config.get("architectures") or []), ""))
    auto = TASKS.get(task, ("", "AutoModel"))[1]
    imports = [f"from transformers import {auto}, AutoTokenizer"]
    if is_adapter:
        auto = auto.replace("AutoModel", "AutoPeftModel")
        imports = [f"from peft import {auto}", "from transformers import AutoTokenizer"]
    lines = [
        "```python",
        *imports,
        "",
        f'model = {auto}.from_pretrained("PATH")',
        'tokenizer = AutoTokenizer.from_pretrained("PATH")',
        *([] if prompt is None else ASK),
        "```",
    ]
    command = "generate" if task in GENERATES else "predict"
    is_pair = command == "predict" and "text_b" in dict(dict(run.data.get("train") or {}).get("columns") or {})
    pair = ' --pair "..."' if is_pair else ""
    chat = "" if prompt is None else " --chat"
    mine = f'```bash\nmodelzoo {command} PATH --text "..."{pair}{chat}\n```'
    served = f"Programs that take it: {serving_text(architecture)}." if architecture else ""
    parts = ["## Use", "`PATH` is this folder or its name on the hub.", "\n".join(lines), mine, *_prompt(prompt), served]
    return "\n\n".join(filter(None, parts))


def _prompt(prompt: str | None) -> list[str]:
    """Return how the exact text is shown that a model for chats reads; as a JSON string, where white space is seen."""
    if prompt is None:
        return []
    return [
        "Learned in the chat template of its tokenizer. A question is read as:",
        f"```json\n{json.dumps(prompt, ensure_ascii=False)}\n```",
    ]


def _training(run: RunFiles) -> str:
    train, optimizer, schedule = run.section("train"), run.section("optimizer"), run.section("schedule")
    batch = f"{train['batch_size']} rows" if train.get("batch_size") else f"{train.get('batch_tokens')} tokens"
    rows = [
        ["learning rate", f"{optimizer.get('lr')}, {schedule.get('name')}, warmup {schedule.get('warmup')}"],
        ["batch of a step, all processes", batch],
        ["epochs", str(train.get("epochs"))],
        ["steps", str(run.step)],
        ["weight decay", str(optimizer.get("weight_decay"))],
        ["seed", str(train.get("seed"))],
        ["precision", str(run.section("parallel").get("precision"))],
        *([split, _rows_text(values)] for split, values in run.data.items()),
        ["hardware", _hardware(run.environment)],
        ["time in the loop", time_text(run.seconds)],
    ]
    plan = numbers(run.measured.get("plan"))
    if plan.get("measured_bytes"):
        planned, measured = readable_size(plan.get("predicted_bytes", 0.0)), readable_size(plan["measured_bytes"])
        rows.append(["peak memory", f"{measured}, planned {planned}"])
    packages = run.environment.get("packages")
    if isinstance(packages, dict):
        rows.append(["versions", ", ".join(f"{name} {number}" for name, number in packages.items() if number)])
    return f"## Training\n\n{_table(['', ''], rows)}"


def _metrics(run: RunFiles) -> dict[str, tuple[str, float]]:
    """Return the metrics of the kept weights and on what they were measured: test data if there were any, else validation."""
    if test := numbers(run.result.get("test")):
        return {name: ("test", value) for name, value in test.items()}
    kept = summarize(run).best_step if _keeps_best(run) else run.step
    return {name: ("validation", value) for name, value in run.evaluation_at(kept).items()}


def _keeps_best(run: RunFiles) -> bool:
    return bool(run.section("checkpoint").get("keep_best", True))


def _base(run: RunFiles, own: Mapping[str, Any]) -> str | None:
    """Return the hub id of the model that was fine-tuned; None for a folder."""
    source = own.get("source")
    if own.get("revision") and isinstance(source, str):
        return source
    name = str(run.section("model").get("name", ""))
    return name if name and not Path(name).is_absolute() and name.count("/") <= 1 and not name.startswith((".", "~")) else None


def _data_name(run: RunFiles) -> tuple[str, str | None, str | None]:
    """Return what the data are called, and their hub id and config if they are from there."""
    name = run.section("data").get("name")
    if isinstance(name, str) and name and not Path(name).is_absolute():
        if ":" in name:
            source, _, part = name.partition(":")
            return name, source, part
        collection, _, part = name.partition("/")
        return (name, collection, part) if part and collection in COLLECTIONS else (name, name, None)
    train = run.data.get("train")
    return (str(train.get("source", "files")) if isinstance(train, dict) else "files"), None, None


def _rows_text(values: Any) -> str:
    report = numbers(values.get("report")) if isinstance(values, dict) else {}
    names = {"rows": "rows", "tokens": "tokens", "truncated_rows": "rows truncated"}
    return ", ".join(f"{report[key]:,.0f} {name}" for key, name in names.items() if key in report)


def _hardware(environment: Mapping[str, Any]) -> str:
    cores = environment.get("cores")
    host = f"{environment.get('device', 'cpu')}, {'?' if cores is None else counted(cores, 'core')}"
    device = environment.get("accelerator") or host
    return f"{counted(environment.get('processes', 1), 'process')} on {device}, {environment.get('memory', '?')} of memory"


def _recipe(run: RunFiles) -> str:
    return yaml.safe_dump(_shortened(run.settings), sort_keys=False, allow_unicode=True, width=120)


def _shortened(value: Any) -> Any:
    """Return settings without the folders of the machine that they were used on."""
    if isinstance(value, dict):
        return {key: _shortened(inner) for key, inner in value.items()}
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
