"""Proof that an adapter's folder means in PEFT what it means here: the same batch through both, on the same base."""

import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from modelzoo.adapters import read_adapter
from modelzoo.adapters.peft_prompts import PROMPT_TYPE
from modelzoo.converters import converter_for
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.models.auto import from_pretrained
from modelzoo.models.model import Model, ModelOutput
from modelzoo.verification import Verification, compare_outputs, verification_batch

__all__ = ["verify_adapter"]


def verify_adapter(folder: str | os.PathLike[str], *, tolerance: float = 1e-5) -> Verification:
    """Load an adapter with PEFT on transformers' base and with ours on ours, and compare outputs of one batch in float32.

    Gradients are not compared: `num_parameters` of the result is 0.

    Args:
        folder: In PEFT's form; its base is here, in the cache or on the hub.
        tolerance: Largest absolute difference that counts as equal, above zero.

    Raises:
        ConfigError: PEFT is not installed, or transformers has no class for the base.
        CheckpointError: Adapter or base cannot be loaded.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ConfigError(
            "--verify of an adapter compares with peft, which is not installed: pip install 'modelzoo-hub[peft]'; "
            "--to merged --verify compares the merged model with transformers alone"
        ) from error
    import transformers

    place = Path(folder)
    file = read_adapter(place)
    if file.base is None:
        raise CheckpointError(f"{place}: base_model_name_or_path of adapter_config.json: expected a folder or a hub id, found none")
    ours = from_pretrained(place, dtype="float32").eval()
    name = converter_for(ours.family).architectures[ours.task]
    if not hasattr(transformers, name):
        raise ConfigError(f"transformers has no class {name}, so that peft has no base to put the adapter on; leave --verify out")
    config = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
    options = {"dtype": torch.float32, "config": config, "local_files_only": Path(file.base).is_dir()}
    base = getattr(transformers, name).from_pretrained(file.base, **options)
    if getattr(base.config, "pad_token_id", None) is None:  # GPT-2's classifier finds the last token by it
        base.config.pad_token_id = 0
    theirs = PeftModel.from_pretrained(base, str(place)).eval()
    count = file.values.get("num_virtual_tokens") or 0
    batch = _before_texts(verification_batch(ours), ours, count) if count else verification_batch(ours)
    mask = batch.get("attention_mask")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, to peft: an argument of it has a new name
        our_output, their_output = ours(**batch), theirs(**batch)
    if count and file.values.get("peft_type") == PROMPT_TYPE:
        their_output = _without_prompt(their_output, our_output, count)
    outputs = compare_outputs(our_output, their_output, mask)
    return Verification(
        folder=place,
        task=ours.task,
        reference=f"peft's {type(theirs).__name__} on {name}",
        outputs=outputs,
        sizes={each: float(getattr(their_output, each).abs().max()) for each in outputs},
        gradient=0.0,
        worst_parameter="",
        num_parameters=0,
        missing=(),
        unexpected=(),
        agreement=None,
        tolerance=tolerance,
    )


def _before_texts(batch: dict[str, Tensor], model: Model, count: int) -> dict[str, Tensor]:
    """Return what of a batch PEFT reads behind virtual tokens as we do, with room for them.

    PEFT takes token types in classification alone and lengthens labels of few tasks, and a classifier of the last token looks for
    padding among ids that transformers never sees there: it gets the text without padding.
    """
    kept = {"input_ids", "attention_mask", *(["token_type_ids"] if model.task == "classification" else [])}
    kept |= {"labels"} if model.task == "seq2seq_lm" else set()  # the decoder reads them
    found = {name: value[:, : max(model.max_text_length, 1)] for name, value in batch.items() if name in kept}
    reads_the_last = model.task == "classification" and not hasattr(model, "encoder")
    return {name: value[:1] for name, value in found.items()} if reads_the_last else found


def _without_prompt(theirs: Any, ours: ModelOutput, count: int) -> SimpleNamespace:
    """Return PEFT's outputs without those of the virtual tokens, which ours leaves out."""
    found = {}
    for name, value in theirs.items():
        mine = getattr(ours, name, None)
        if isinstance(value, Tensor) and isinstance(mine, Tensor):
            found[name] = value[:, count:] if value.dim() > 1 and value.shape[1] == mine.shape[1] + count else value
    return SimpleNamespace(**found)
