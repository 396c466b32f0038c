"""From a model on meta to one that is laid out over ranks and tiers, ready for its values."""

from collections.abc import Callable

from torch import nn

from modelzoo.config.memory import MemoryConfig
from modelzoo.config.parallel import ParallelConfig
from modelzoo.runtime.prepare import materialise, prepare
from modelzoo.runtime.process import World
from modelzoo.runtime.tiers import attach_tiers

__all__ = ["layout"]


def layout(
    world: World,
    config: ParallelConfig | None = None,
    memory: MemoryConfig | None = None,
    *,
    reserved_bytes: int = 0,
    inputs_bytes: int = 0,
) -> Callable[[nn.Module], nn.Module]:
    """Return what lays a model on meta out over the ranks and gives it memory: the `lay_out` of `from_pretrained`.

    Args:
        world: The processes.
        config: As of `prepare`.
        memory: Budgets of the tiers; None, or one without any, keeps everything where torch has it.
        reserved_bytes: As of `attach_tiers`.
        inputs_bytes: As of `attach_tiers`.
    """

    def lay_out(model: nn.Module) -> nn.Module:
        uses_tiers = memory is not None and memory.is_used
        prepare(model, world, config, for_tiers=uses_tiers)
        if memory is not None and uses_tiers:
            attach_tiers(model, world, memory, reserved_bytes=reserved_bytes, inputs_bytes=inputs_bytes, is_filled=False)
        else:
            materialise(model, world.device)
        return model

    return lay_out
