"""A model zoo and fine-tuning hub: exact, bigger than memory, one command from a laptop to a cluster.

Names are imported when they are first used, so that `import modelzoo` and the command start at once.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelzoo.data import load_tokenizer as load_tokenizer
    from modelzoo.models.auto import from_pretrained as from_pretrained
    from modelzoo.models.bert import Bert as Bert
    from modelzoo.models.bert import BertConfig as BertConfig
    from modelzoo.models.distilbert import DistilBert as DistilBert
    from modelzoo.models.distilbert import DistilBertConfig as DistilBertConfig
    from modelzoo.models.opt import OPT as OPT
    from modelzoo.models.opt import OPTConfig as OPTConfig
    from modelzoo.models.roberta import Roberta as Roberta
    from modelzoo.models.roberta import RobertaConfig as RobertaConfig
    from modelzoo.models.roberta import XlmRoberta as XlmRoberta
    from modelzoo.models.roberta import XlmRobertaConfig as XlmRobertaConfig

__version__ = "0.1.0"

_HOMES = {
    "Bert": "modelzoo.models.bert",
    "BertConfig": "modelzoo.models.bert",
    "DistilBert": "modelzoo.models.distilbert",
    "DistilBertConfig": "modelzoo.models.distilbert",
    "OPT": "modelzoo.models.opt",
    "OPTConfig": "modelzoo.models.opt",
    "Roberta": "modelzoo.models.roberta",
    "RobertaConfig": "modelzoo.models.roberta",
    "XlmRoberta": "modelzoo.models.roberta",
    "XlmRobertaConfig": "modelzoo.models.roberta",
    "from_pretrained": "modelzoo.models.auto",
    "load_tokenizer": "modelzoo.data",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604, RUF100  # the names of _HOMES, which is the one list of them


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'modelzoo' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *_HOMES])
