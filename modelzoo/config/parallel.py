"""How a model is laid out over processes: one object from one process to a cluster, the recipe's section `parallel`."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from modelzoo.config.keys import Key
from modelzoo.config.section import Section

__all__ = ["ParallelConfig", "recomputed"]

RECOMPUTE_EXPECTS = 'auto, none, blocks, selective, "first N" or "every N" with N >= 1'
SOME = re.compile(r"(first|every) ([1-9][0-9]{0,3})")


def _check_recompute(value: str) -> str:
    if value not in ("auto", "none", "blocks", "selective") and not SOME.fullmatch(value):
        raise ValueError(f"expected {RECOMPUTE_EXPECTS}, found {value!r}")
    return value


class ParallelConfig(Section):
    """How many processes share what, in which precision, and what is computed twice to save memory.

    data_replicate x data_shard x tensor is the number of processes. Neighbouring ranks share a tensor axis, then a shard axis.
    """

    ranks: Annotated[int | None, Field(ge=1, le=1024), Key("processes", ("nproc_per_node",))] = None
    """Processes that `modelzoo train` starts on this machine; null starts none: one process, or those of torchrun or SLURM."""
    data_shard: Annotated[int | Literal["auto"], Field(), Key("processes", (), "an integer >= 1 or auto")] = "auto"
    """Processes over which parameters, gradients and moments are cut; auto takes all that the other two axes leave."""
    data_replicate: Annotated[int, Field(ge=1), Key("groups")] = 1
    """Groups of processes that each hold a whole copy (hybrid sharding: shard inside a node, replicate between nodes)."""
    tensor: Annotated[int, Field(ge=1), Key("processes", ("tensor_parallel_size", "tp_size"))] = 1
    """Processes that compute one sample together, each a part of every matrix; a divisor of the number of heads."""
    zero: Annotated[Literal["auto", 0, 1, 2, 3], Key("", ("zero_stage",), "0, 1, 2, 3 or auto")] = "auto"
    """What is cut over data_shard: 0 nothing, 1 moments, 2 and gradients, 3 and parameters; auto looks at the memory."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """What forward and backward compute in; trained parameters, moments and sums of gradients are float32 always."""
    recompute: Annotated[str, AfterValidator(_check_recompute), Key("", (), RECOMPUTE_EXPECTS)] = "none"
    """Blocks whose activations are computed again in the backward; selective: all but products; auto: as few as needed."""
    compile: Annotated[bool, Key("", ("torch_compile",))] = False
    """Whether each block goes through torch.compile; the first steps then take minutes."""
    timeout_s: Annotated[float, Field(ge=1), Key("seconds", ("ddp_timeout",))] = 60.0
    """How long one process waits for the others before the run fails and names the late rank."""

    @property
    def value_bytes(self) -> int:
        """Bytes of a value that forward and backward compute with."""
        return 4 if self.precision == "float32" else 2


def recomputed(recompute: str, count: int) -> tuple[bool, ...]:
    """Return for each block, in forward order, whether it is computed again.

    Args:
        recompute: As in `ParallelConfig`; auto, which nobody has decided yet, is none.
        count: Of blocks.
    """
    if recompute in ("auto", "none"):
        return (False,) * count
    found = SOME.fullmatch(recompute)
    if found is None:
        return (True,) * count
    number = int(found[2])
    return tuple(place < number if found[1] == "first" else (place + 1) % number == 0 for place in range(count))
