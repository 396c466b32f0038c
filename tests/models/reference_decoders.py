"""Tiny random decoders and encoder-decoders of transformers, and the same models of ours, with the same values."""

from collections.abc import Mapping

import torch
import transformers
from reference_models import comparable
from torch import Tensor, nn

from modelzoo.converters import converter_for
from modelzoo.models.auto import model_class
from modelzoo.models.model import Model
from modelzoo.verification import file_tensors


def sizes(family: str) -> dict[str, object]:
    common = {"vocab_size": 40, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    if family in ("t5", "mt5"):
        tall = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
        return (
            common
            | tall
            | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0}
        )
    if family == "gpt2":
        return common | {"n_embd": 16, "n_head": 4, "n_layer": 2, "n_inner": 24, "n_positions": 18}
    if family == "gptj":
        return common | {"n_embd": 16, "n_head": 4, "n_layer": 2, "n_inner": 24, "n_positions": 18, "rotary_dim": 2}
    wide = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 18}
    if family == "opt":
        return common | wide | {"ffn_dim": 24, "dropout": 0.0}
    experts = {"num_local_experts" if family == "mixtral" else "num_experts": 4, "num_experts_per_tok": 2}
    experts |= {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 12, "mlp_only_layers": [0]}
    return common | wide | {"num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 24} | experts


def pair(family: str, task: str, **options) -> tuple[Model, nn.Module]:
    """Return our model and transformers', with the same values."""
    converter, kind = converter_for(family), model_class(family)
    config = transformers.AutoConfig.for_model(family, **sizes(family) | options)
    theirs = getattr(transformers, converter.architectures[task])(config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in theirs.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data = 1 + 0.2 * noise if is_norm else 0.3 * noise
    values = converter.read_config(theirs.config.to_dict(), task)
    if converter.is_tied_by_tensors:
        values["tie_word_embeddings"] = theirs.config.tie_word_embeddings
    ours = kind.from_config(kind.config_class(**values), task).eval()
    tensors = by_our_names(ours, theirs, theirs.state_dict())
    ours.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()})
    return ours, theirs


def by_our_names(ours: Model, theirs: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors or gradients of transformers' model by our names."""
    tied = ours.config.tie_word_embeddings
    mapping = converter_for(ours.family).weights(ours.task, tied=tied, values=ours.config.values())
    return mapping.to_ours(file_tensors(theirs, tensors))


def inputs(mask: list[list[int]] | None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    batch = {"input_ids": torch.randint(2, 40, (3, 7), generator=generator)}
    if mask is not None:
        batch["attention_mask"] = torch.tensor(mask)
        batch["input_ids"] *= batch["attention_mask"]
    return batch


def results(output: object, mask: Tensor | None) -> list[Tensor]:
    """Return results at real tokens; those of a row come from its last token, wherever it stands."""
    is_by_row = getattr(output, "logits", None) is not None and output.logits.dim() == 2
    return comparable(output, None if is_by_row else mask)
