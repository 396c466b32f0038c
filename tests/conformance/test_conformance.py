"""Every family, every task, every variant: equal to transformers, and equal bit for bit after the way in and out."""

from pathlib import Path

import pytest
import torch
import transformers
from harness import Case, cases, config_of, has_reference, main_task, row, saved
from safetensors.torch import load_file

import modelzoo
from modelzoo.converters import converter_for, known_model_types
from modelzoo.models.auto import FAMILIES, model_class
from modelzoo.models.model import Model
from modelzoo.verification import verify

TOLERANCE = 1e-5
CASES = cases()
REFERENCED = [family for family in FAMILIES if has_reference(family)]
WRITERS = [
    family
    for family in FAMILIES
    if main_task(family) in ("causal_lm", "seq2seq_lm") and "own_decoding" not in row(family)  # prompts of a form of their own
]


def plain(family: str) -> Case:
    return Case(family, main_task(family), row(family)["config"], "plain")


def ours(case: Case, folder: Path) -> Model:
    return modelzoo.from_pretrained(saved(case, folder), task=case.task)


def test_every_family_has_a_class_a_converter_and_a_row_of_data() -> None:
    assert set(FAMILIES) == set(known_model_types())
    assert all(row(family)["config"] for family in FAMILIES)
    assert all(set(model_class(family).tasks) == set(converter_for(family).architectures) for family in FAMILIES)


@pytest.mark.parametrize("case", [case for case in CASES if has_reference(case.family)], ids=str)
def test_outputs_and_gradients_equal_transformers(case: Case, tmp_path: Path) -> None:
    found = verify(saved(case, tmp_path / "theirs"), task=case.task, tolerance=TOLERANCE)
    assert found.is_strict
    assert found.outputs
    assert found.is_equal, found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_round_trip_is_equal_bit_for_bit(case: Case, tmp_path: Path) -> None:
    model = ours(case, tmp_path / "theirs")
    model.save_pretrained(tmp_path / "ours")
    before, after = load_file(tmp_path / "theirs" / "model.safetensors"), load_file(tmp_path / "ours" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    assert config_of(tmp_path / "theirs") == config_of(tmp_path / "ours")


@pytest.mark.parametrize("family", [family for family in FAMILIES if not has_reference(family)])
def test_a_family_without_a_reference_says_so(family: str, tmp_path: Path) -> None:
    folder = saved(plain(family), tmp_path)
    with pytest.raises(modelzoo.errors.ConfigError, match=f"transformers has no class .* to compare {family} with"):
        verify(folder)


@pytest.mark.parametrize("family", REFERENCED)
def test_a_model_made_here_loads_in_transformers(family: str, tmp_path: Path) -> None:
    config = ours(plain(family), tmp_path / "theirs").config
    fresh = type(config)(**config.values())
    model = model_class(family).from_config(fresh, main_task(family))  # no source: the config is written anew
    model.save_pretrained(tmp_path / "ours")
    name = converter_for(family).architectures[model.task]
    _, info = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert verify(tmp_path / "ours", tolerance=TOLERANCE).is_equal


@pytest.mark.parametrize("family", FAMILIES)
def test_units_are_blocks_and_hold_most_parameters_once(family: str, tmp_path: Path) -> None:
    model = ours(plain(family), tmp_path)
    names = [name for unit in model.shard_units() for name, module in model.named_modules() if module is unit]
    assert len(names) == len(model.shard_units()) == len(set(names))
    assert all(".layers." in name for name in names)
    assert str(model.summary())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_built_on_meta_and_initialised_has_every_buffer(family: str, tmp_path: Path) -> None:
    model = ours(plain(family), tmp_path)
    with torch.device("meta"):
        empty = type(model)(model.config, model.task)
    empty = empty.to_empty(device="cpu")
    empty.init_weights()
    expected = dict(model.named_buffers())
    for name, buffer in empty.named_buffers():
        assert torch.equal(buffer, expected[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_gets_a_gradient(family: str, tmp_path: Path) -> None:
    from modelzoo.verification import verification_batch

    model = ours(plain(family), tmp_path).train()
    loss = model(**verification_batch(model)).loss
    assert loss is not None
    loss.backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert not idle


@pytest.mark.parametrize("family", WRITERS)
def test_decoding_with_caches_equals_the_full_forward_at_every_step(family: str, tmp_path: Path) -> None:
    model = ours(plain(family), tmp_path)
    torch.manual_seed(1)
    ids = torch.randint(2, 60, (3, 9))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    mask[1, :1] = 0
    with torch.no_grad():
        logits, state = model.prefill(ids, mask, max_new_tokens=6)
        written = torch.zeros(3, 0, dtype=torch.long)
        for _ in range(6):
            if main_task(family) == "seq2seq_lm":
                start = torch.full((3, 1), model.config.decoder_start_token_id)
                full = model(ids, mask, decoder_input_ids=torch.cat([start, written], 1)).logits[:, -1]
            else:
                longer = torch.cat([mask, torch.ones_like(written)], 1)
                context = torch.cat([torch.ones_like(ids), torch.zeros_like(written)], 1)
                marks = {"context": context} if row(family).get("prompt_is_context") else {}
                full = model(torch.cat([ids, written], 1), longer, **marks).logits[:, -1]
            assert torch.allclose(logits, full, atol=TOLERANCE, rtol=0)
            token = logits.topk(2).indices[:, written.shape[1] % 2]  # not always the best one, so that tokens vary
            written = torch.cat([written, token.unsqueeze(1)], 1)
            logits = model.decode(token, state)
    assert len(written.unique()) >= 4


@pytest.mark.parametrize("family", WRITERS)
def test_a_prompt_padded_on_the_right_is_refused(family: str, tmp_path: Path) -> None:
    if main_task(family) == "seq2seq_lm":
        pytest.skip("an encoder takes padding on either side")
    model = ours(plain(family), tmp_path)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    with pytest.raises(modelzoo.errors.DataError, match="row 1: padding stands after a token"):
        model.prefill(torch.ones_like(mask), mask, max_new_tokens=2)
