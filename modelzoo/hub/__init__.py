"""Model folders: from the hub or the disk into a model, and from a model to a plain Hugging Face folder."""

from modelzoo.hub.checkpoint import Checkpoint, open_checkpoint
from modelzoo.hub.facts import ModelFacts
from modelzoo.hub.files import read_config, revision_of
from modelzoo.hub.load import LoadReport, load_weights
from modelzoo.hub.modelcenter import ConversionReport, convert_modelcenter
from modelzoo.hub.resolve import resolve
from modelzoo.hub.save import save_pretrained
from modelzoo.hub.sizes import check_sizes
from modelzoo.hub.ties import are_tied

__all__ = [
    "Checkpoint",
    "ConversionReport",
    "LoadReport",
    "ModelFacts",
    "are_tied",
    "check_sizes",
    "convert_modelcenter",
    "load_weights",
    "open_checkpoint",
    "read_config",
    "resolve",
    "revision_of",
    "save_pretrained",
]
