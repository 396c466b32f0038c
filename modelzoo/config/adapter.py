"""Training a few values beside a frozen model: the recipe's section `adapter`, in PEFT's words."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from modelzoo.config.keys import Key
from modelzoo.config.section import Section

__all__ = ["AdapterConfig", "AdapterMethod", "StoredAs"]

AdapterMethod = Literal["lora", "dora", "bias", "prompt", "prefix"]
StoredAs = Literal["int8", "nf4"]


def _as_tuple(value: Any) -> Any:
    """Return a YAML list as the tuple that the field holds, and one name alone as a tuple of it."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Key("", (), "a list of names")]


class AdapterConfig(Section):
    """Which few values are trained while the model itself stays frozen."""

    method: Annotated[AdapterMethod | None, Key("", ("peft_type",))] = None
    """lora and dora change maps and tables by little, bias trains the biases alone, prompt trains vectors that stand before every
    text, prefix keys and values that stand before those of every attention; null trains the whole model."""
    r: Annotated[int, Field(ge=1, le=4096), Key("", ("lora_r", "lora_rank"))] = 8
    """Rank of a change (lora, dora): it takes r * (in + out) values a map."""
    alpha: Annotated[float, Field(gt=0), Key("", ("lora_alpha",))] = 16.0
    """A change is multiplied by alpha / r, or by alpha / sqrt(r) when rank_stabilized."""
    dropout: Annotated[float, Field(ge=0, lt=1), Key("probability", ("lora_dropout",))] = 0.0
    """Of what the change reads, in training."""
    rank_stabilized: Annotated[bool, Key("", ("use_rslora",))] = False
    """Whether the change is scaled by alpha / sqrt(r) (Kalajdzievski, 2023), for large ranks."""
    num_virtual_tokens: Annotated[int, Field(ge=1, le=4096), Key("tokens", ("num_soft_tokens", "prompt_length"))] = 20
    """Vectors that stand before every text (prompt), or keys and values (prefix); each takes a position of the model."""
    prefix_projection: bool = False
    """Whether a prefix comes from as many vectors by two maps with tanh between, all trained; the file holds what comes out."""
    targets: Annotated[Names, Key("", ("target_modules", "lora_target"), "a list of names of maps and tables")] = ("auto",)
    """Maps and tables that change: the last parts of our names ([query, value]); auto is every map of the blocks."""
    base: StoredAs | None = None
    """How the frozen maps of the blocks are stored while an adapter is trained (lora, prompt, prefix): int8, or nf4 in four bits;
    needs torchao. null keeps floats."""
    train_also: Annotated[Names, Key("", ("modules_to_save",), "a list of names of parts")] = ()
    """Parts that are trained whole beside the adapter, as [pooler]; the head of a task with labels or answers always is."""

    @property
    def is_used(self) -> bool:
        """Whether anything is frozen."""
        return self.method is not None

    @property
    def is_low_rank(self) -> bool:
        """Whether maps get a change of low rank."""
        return self.method in ("lora", "dora")

    @property
    def has_file(self) -> bool:
        """Whether PEFT has a file for it, so that it is written without its base."""
        return self.is_low_rank or self.method in ("prompt", "prefix")

    @property
    def added_tokens(self) -> int:
        """Tokens that every text is longer by."""
        return self.num_virtual_tokens if self.method == "prompt" else 0

    @property
    def positions_taken(self) -> int:
        """Positions of the model that no text can have."""
        return self.num_virtual_tokens if self.method in ("prompt", "prefix") else 0

    @property
    def scale(self) -> float:
        """Factor on a change."""
        return float(self.alpha / (self.r**0.5 if self.rank_stabilized else self.r))

    def check_base(self, used: Iterable[str]) -> None:
        """Refuse settings that a stored base does not go with.

        Args:
            used: Names of those that are used.

        Raises:
            ValueError: Names the first of them.
        """
        clash = next(iter(used), None) if self.base is not None else None
        if clash is not None:
            raise ValueError(
                f"adapter.base={self.base} and {clash} exclude each other: stored weights are whole and in memory on every rank; "
                "leave one of the two out"
            )

    @model_validator(mode="after")
    def _base_stays_beside(self) -> "AdapterConfig":
        if self.base is None or self.method in ("lora", "prompt", "prefix"):
            return self
        reasons = {
            None: "trains all of it; choose a method, or leave base out",
            "dora": "needs the lengths of the base's own rows; use lora",
            "bias": "writes the whole model, which has no floats then; use lora",
        }
        raise ValueError(f"base={self.base}: method={'null' if self.method is None else self.method} {reasons[self.method]}")

    @model_validator(mode="after")
    def _targets_are_named(self) -> "AdapterConfig":
        if not self.targets:
            raise ValueError("targets is empty; name maps such as [query, value], or use auto")
        if "auto" in self.targets and len(self.targets) > 1:
            raise ValueError(f"targets={list(self.targets)}: auto stands for every map of the blocks; remove it, or the others")
        return self
