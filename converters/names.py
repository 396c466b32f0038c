"""Names that more than one family's table allows, and what more than one asks of a config."""

from modelzoo.converters.config_table import Require

__all__ = ["ACTIVATIONS", "SINGLE_LABEL"]

# Those of modelzoo.layers, which this package does not import; a test compares the two.
ACTIVATIONS = (
    "gelu",
    "gelu_10",
    "gelu_accurate",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_python_tanh",
    "gelu_pytorch_tanh",
    "leaky_relu",
    "linear",
    "mish",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "swish",
    "tanh",
)

SINGLE_LABEL = Require(
    "problem_type",
    (None, "single_label_classification"),
    "only one label of several is built, not regression and not several labels at once",
    tasks=("classification",),
)
"""What all classifiers ask of a config."""
