"""The shapes that ModelCenter's tensors have by their config."""

from collections.abc import Mapping
from typing import Any

from modelzoo.converters.modelcenter import Layout
from modelzoo.converters.modelcenter_vit import VIT_SHAPES
from modelzoo.converters.ops import Shape

__all__ = ["shape_of"]

# Shapes by the end of ModelCenter's key: D dim_model, A query rows, K key and value rows, F dim_ff, V rows of the vocabulary.
_SHAPES: dict[str, str] = {
    "input_embedding.weight": "VD",
    "position_embedding.weight": "PD",
    "token_type_embedding.weight": "TD",
    "project_q.weight": "AD",
    "project_q.bias": "A",
    "project_k.weight": "KD",
    "project_k.bias": "K",
    "project_v.weight": "KD",
    "project_v.bias": "K",
    "project_q_global.weight": "AD",
    "project_q_global.bias": "A",
    "project_k_global.weight": "AD",
    "project_k_global.bias": "A",
    "project_v_global.weight": "AD",
    "project_v_global.bias": "A",
    "attention_out.weight": "DA",
    "w_in.w.weight": "FD",
    "w_in.w.bias": "F",
    "w_in.w_0.weight": "FD",
    "w_in.w_1.weight": "FD",
    "w_out.weight": "DF",
    "dense.weight": "DD",
    "decoder.weight": "VD",
    "decoder.bias": "V",
    "output_projection.weight": "VD",
    "output_projection.bias": "V",
    "relative_attention_bias": "BN",
}


def shape_of(key: str, values: Mapping[str, Any], layout: Layout) -> Shape:
    """Return the shape that one of ModelCenter's tensors has by its config.

    Args:
        key: Its name, as the tables write it.
        values: The config's values by our names.
        layout: What the file's tensors say.
    """
    letters = VIT_SHAPES.get(key) or next((shape for end, shape in _SHAPES.items() if key == end or key.endswith(f".{end}")), "D")
    sizes = {
        "V": values.get("vocab_size", 0) + layout.padding_rows,
        "D": values["hidden_size"],
        "A": values["num_heads"] * values["head_size"],
        "K": values.get("num_key_value_heads", values["num_heads"]) * values["head_size"],
        "F": values["intermediate_size"],
        "P": values.get("position_rows", values.get("max_positions")),
        "T": values.get("type_vocab_size"),
        "B": values.get("num_buckets"),
        "N": values["num_heads"],
        "C": values.get("num_channels"),
        "p": values.get("patch_size", (None,))[0],
        "X": values.get("num_positions"),
        "L": values.get("num_labels"),
        "1": 1,
    }
    return tuple(int(sizes[letter]) for letter in letters)
