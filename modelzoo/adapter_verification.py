"""Proof that an adapter's folder means in PEFT what it means here: the same batch through both, on the same base."""

import os
from pathlib import Path

import torch

from modelzoo.adapters import read_adapter
from modelzoo.converters import converter_for
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.models.auto import from_pretrained
from modelzoo.verification import Verification, compare_outputs, verification_batch

__all__ = ["verify_adapter"]


def verify_adapter(folder: str | os.PathLike[str], *, tolerance: float = 1e-5) -> Verification:
    """Load an adapter with PEFT on transformers' base and with ours on ours, and compare outputs of one batch in float32.

    Gradients are not compared: `num_parameters` of the result is 0.

    Args:
        folder: In PEFT's form, of LoRA or of biases; its base is here, in the cache or on the hub.
        tolerance: Largest absolute difference that counts as equal, above zero.

    Raises:
        ConfigError: PEFT is not installed, or the adapter puts virtual tokens before a text.
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
    kind = str(file.values.get("peft_type"))
    if kind != "LORA":
        raise ConfigError(
            f"{place}: --verify compares adapters of LoRA and of biases with peft; of {kind.lower().replace('_', ' ')} the "
            "project's tests compare every family, as peft reads other inputs there; leave --verify out"
        )
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
    batch = verification_batch(ours)
    mask = batch.get("attention_mask")
    with torch.no_grad():
        our_output, their_output = ours(**batch), theirs(**batch)
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
