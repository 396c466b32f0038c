"""Tables that carry names, tensors and configs between Hugging Face's files and our models, in both directions."""

from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Group, Ignore, Mapping, Prefix, Rule, Tied, modules
from modelzoo.converters.matching import Match, TensorInfo, match
from modelzoo.converters.registry import converter_for, known_model_types

__all__ = [
    "FamilyConverter",
    "Group",
    "Ignore",
    "Mapping",
    "Match",
    "Prefix",
    "Rule",
    "Task",
    "TensorInfo",
    "Tied",
    "converter_for",
    "known_model_types",
    "match",
    "modules",
]
