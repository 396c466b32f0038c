"""Which tensors of a PEFT file go where in a model: all of them are looked at before anything is changed."""

from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn

from modelzoo.adapters.attach import Adaptable
from modelzoo.adapters.lora import LowRankMap, LowRankTable
from modelzoo.adapters.peft_file import AdapterFile
from modelzoo.adapters.peft_names import Place, places
from modelzoo.adapters.peft_prefix import PREFIX_TYPE, place_prefix
from modelzoo.adapters.peft_prompts import PROMPT_TENSOR, PROMPT_TYPE, place_prompt
from modelzoo.adapters.prefix import Prefix
from modelzoo.adapters.virtual_tokens import VirtualTokens
from modelzoo.config.adapter import AdapterConfig
from modelzoo.converters import Mapping as NameMapping
from modelzoo.errors import CheckpointError
from modelzoo.hub import ModelFacts
from modelzoo.hub.files import shown
from modelzoo.hub.model_tensors import Slot, slots
from modelzoo.layers import Embedding, Linear

__all__ = ["Plan"]

_ENDS = ("lora_A.weight", "lora_B.weight", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")
_METHODS = {PROMPT_TYPE: "prompt", PREFIX_TYPE: "prefix"}
"""PEFT's names of what stands before texts -> ours."""


class Plan:
    """Which of a file's tensors go where in a model.

    Args:
        model: The base.
        file: The adapter.
    """

    def __init__(self, model: nn.Module, file: AdapterFile) -> None:
        self._model, self._file = model, file
        facts = cast(Adaptable, model).facts()
        self.slots: dict[str, Slot] = slots(model)
        self.problems: list[str] = []
        self.values: dict[str, dict[str, Tensor]] = {}
        self.parts: dict[str, LowRankMap | LowRankTable | VirtualTokens | Prefix] = {}
        self.whole: dict[str, Tensor] = {}
        is_before = file.values["peft_type"] in _METHODS
        others = self._before_texts(facts) if is_before else self._changes(facts)
        self._trained_whole(facts.mapping, others)

    def _before_texts(self, facts: ModelFacts) -> dict[str, Tensor]:
        """Find the place of virtual tokens or a prefix, and return what else the file has, by transformers' names."""
        tensors, values = dict(self._file.tensors), self._file.values
        part: VirtualTokens | Prefix | None
        if values["peft_type"] == PROMPT_TYPE:
            name, part, vectors, problems = place_prompt(self._model, values, tensors)
        else:
            name, part, vectors, problems = place_prefix(self._model, facts.task, values, tensors)
        self.problems += problems
        tensors.pop(PROMPT_TENSOR, None)
        if part is not None and vectors is not None:
            self.parts[name], self.values[name] = part, {"vectors": vectors}
        return {facts.converter.module_name(key, back=True): tensor for key, tensor in tensors.items()}

    def _changes(self, facts: ModelFacts) -> dict[str, Tensor]:
        """Find the places of changes of low rank, and return what else the file has, by transformers' names."""
        shapes = {name: tuple(slot.tensor.shape) for name, slot in self.slots.items()}
        known, _ = places(facts.mapping, shapes)
        by_theirs = {facts.mapping.canonical(place.theirs): place for place in known.values()}
        changes: dict[str, dict[str, Tensor]] = {}
        others: dict[str, Tensor] = {}
        for key, tensor in self._file.tensors.items():
            end = next((end for end in _ENDS if key.endswith(f".{end}")), None)
            if end is None:
                others[facts.converter.module_name(key, back=True)] = tensor
            else:
                changes.setdefault(key.removesuffix(f".{end}"), {})[end] = tensor
        for theirs, own in changes.items():
            place = by_theirs.get(facts.mapping.canonical(facts.converter.module_name(theirs, back=True)))
            if place is None:
                self.problems.append(f"{shown(theirs)}: expected a map or table of the model, found none of this name")
            else:
                self._one_place(theirs, place, own)
        return others

    def _one_place(self, theirs: str, place: Place, own: Mapping[str, Tensor]) -> None:
        rank, scale = self._file.scale_of(theirs)
        module = self._model.get_submodule(place.ours[0])
        if isinstance(module, Embedding):
            self._table(place, own, rank, scale, module)
            return
        assert isinstance(module, Linear)
        total = sum(place.out_features)
        expected: dict[str, tuple[int, ...]] = {"lora_A.weight": (rank, module.in_features), "lora_B.weight": (total, rank)}
        if self._file.values.get("use_dora"):
            expected["lora_magnitude_vector"] = (total,)
        if not self._fits(theirs, own, expected):
            return
        a, b, magnitude = own["lora_A.weight"], own["lora_B.weight"], own.get("lora_magnitude_vector")
        row = 0
        for number, (name, size) in enumerate(zip(place.ours, place.out_features, strict=True)):
            columns = self._columns(b, place, number)
            if columns is not None:
                linear = cast(Linear, self._model.get_submodule(name))
                values = {"a": a[columns], "b": b[row : row + size, columns]}
                if magnitude is not None:
                    values["magnitude"] = magnitude[row : row + size]
                self.values[name] = {key: value.contiguous() for key, value in values.items()}
                self.parts[name] = LowRankMap(
                    linear.in_features,
                    linear.out_features,
                    len(values["a"]),
                    scale,
                    dropout=float(self._file.values.get("lora_dropout") or 0.0),
                    has_magnitude=magnitude is not None,
                    device=linear.weight.device,
                )
            row += size

    def _columns(self, b: Tensor, place: Place, number: int) -> slice | None:
        """Return the columns of B of one of several maps in one module; None where it has no change of its own.

        A file of ours says how they lie: one block of columns a map that changes. In any other each map shares all of A.
        """
        if len(place.ours) == 1 or not self._file.own:
            return slice(None)
        changed = [index for index, name in enumerate(place.ours) if name in self._file.own.get("maps", ())]
        if number not in changed or b.shape[1] % len(changed):
            return None
        rank, at = b.shape[1] // len(changed), changed.index(number)
        return slice(at * rank, (at + 1) * rank)

    def _table(self, place: Place, own: Mapping[str, Tensor], rank: int, scale: float, table: Embedding) -> None:
        shape = (table.num_embeddings, table.embedding_dim)
        if self._fits(place.theirs, own, {"lora_embedding_A": (rank, shape[0]), "lora_embedding_B": (shape[1], rank)}):
            a, b = (own[f"lora_embedding_{letter}"].t().contiguous() for letter in "AB")
            self.values[place.ours[0]] = {"a": a, "b": b}
            self.parts[place.ours[0]] = LowRankTable(*shape, rank, scale, device=table.weight.device)

    def _fits(self, theirs: str, own: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> bool:
        before = len(self.problems)
        for key in {**expected, **own}:
            found = list(own[key].shape) if key in own else "nothing"
            wanted = list(expected[key]) if key in expected else "nothing"
            if found != wanted:
                self.problems.append(f"{shown(theirs)}.{key}: expected {wanted}, found {found}")
        return len(self.problems) == before

    def _trained_whole(self, mapping: NameMapping, others: Mapping[str, Tensor]) -> None:
        """Look for what was trained whole: each tensor under our names."""
        found: dict[str, Tensor] = {}
        for key, tensor in others.items():
            name = mapping.canonical(key.replace(".base_layer.", ".").replace(".original_module.", "."))
            if mapping.locate(name) is None:
                self.problems.append(f"{shown(key)}: expected a tensor of an adapter or of the model, found neither")
            elif ".base_layer." not in key:  # PEFT keeps a copy of a table beside its change
                found[name] = tensor
        try:
            ours = mapping.to_ours(found) if found else {}
        except CheckpointError as error:
            self.problems.append(str(error))
            return
        for name, value in ours.items():
            expected = tuple(self.slots[name].tensor.shape) if name in self.slots else None
            if expected != tuple(value.shape):
                wanted = "no such tensor in the model" if expected is None else list(expected)
                self.problems.append(f"{name}: expected {wanted}, found {list(value.shape)}")
            else:
                self.whole[name] = value

    def config(self) -> AdapterConfig:
        """Return the file's settings as ours."""
        values, own = self._file.values, self._file.own.get("adapter")
        parts = tuple(sorted({name.rpartition(".")[0] for name in self.whole if not name.startswith("head.")}))
        if values["peft_type"] in _METHODS:
            # a prefix is in the file as keys and values, projected no more
            fixed = {"num_virtual_tokens": values["num_virtual_tokens"], "prefix_projection": False, "base": None}
            more = {"train_also": parts} if own is None else own
            return AdapterConfig.model_validate({**more, **fixed, "method": _METHODS[values["peft_type"]]})
        if own is not None:
            return AdapterConfig.model_validate({**own, "method": "dora" if values.get("use_dora") else "lora", "base": None})
        return AdapterConfig(
            method="dora" if values.get("use_dora") else "lora",
            r=int(values["r"]),
            alpha=float(values["lora_alpha"]),
            dropout=float(values.get("lora_dropout") or 0.0),
            rank_stabilized=bool(values.get("use_rslora")),
            targets=tuple(self.parts),
            train_also=parts,
        )
