"""CPM-Ant beyond transformers' plain forward: decoding, contexts, segments, soft prompts, and labels that no token sees."""

import pytest
import torch
import transformers

from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError, DataError
from modelzoo.models.cpm_ant import CpmAnt, CpmAntConfig

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "dim_head": 6, "dim_ff": 24}
BUCKETS = {"position_bias_num_buckets": 16, "position_bias_max_distance": 20}
SOURCE = {**SIZES, **BUCKETS, "vocab_size": 40, "prompt_types": 3, "prompt_length": 4, "segment_types": 4, "init_std": 0.1}
IDS = torch.randint(1, 40, (2, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])


def pair() -> tuple[CpmAnt, torch.nn.Module]:
    torch.manual_seed(0)
    theirs = transformers.CpmAntForCausalLM(transformers.CpmAntConfig(**SOURCE)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.dim() == 1))
    converter = converter_for("cpmant")
    ours = CpmAnt(CpmAntConfig(**converter.read_config(SOURCE)), "causal_lm").eval()
    ours.load_state_dict(converter.weights("causal_lm", tied=False).to_ours(theirs.state_dict()))
    return ours, theirs


@torch.no_grad()
def test_decoding_equals_transformers_with_its_cache():
    ours, theirs = pair()
    ids = IDS * MASK
    theirs.generation_config.pad_token_id = 0
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "use_cache": True}
    expected = theirs.generate(ids, attention_mask=MASK, **options, output_logits=True, return_dict_in_generate=True)
    logits, state = ours.prefill(ids, MASK, 6)
    for step, wanted in enumerate(expected.logits):
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-5)
        logits = ours.decode(expected.sequences[:, 7 + step], state)


@torch.no_grad()
def test_padding_on_either_side_changes_nothing():
    ours, _ = pair()
    right = torch.cat([IDS[:, 2:], IDS[:, :2]], 1)
    left_mask, right_mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1]]), torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    on_left, on_right = ours(IDS[:1], left_mask).logits[:, 2:], ours(right[:1], right_mask).logits[:, :5]
    torch.testing.assert_close(on_left, on_right, rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_context_is_seen_whole_and_the_rest_from_the_left():
    ours, _ = pair()
    context = torch.tensor([[1, 1, 0, 0, 0, 1, 1]] * 2)
    before = ours(IDS, context=context).logits
    for place, is_seen_by in ((4, [4]), (6, list(range(7)))):
        changed = IDS.clone()
        changed[:, place] = (changed[:, place] + 1) % 39 + 1
        moved = (ours(changed, context=context).logits - before).abs().amax((0, 2)) > 1e-6
        assert moved.nonzero().flatten().tolist() == sorted(set(is_seen_by)), place


@torch.no_grad()
def test_the_loss_is_that_of_tokens_that_are_no_context():
    ours, _ = pair()
    labels = IDS.masked_fill(torch.tensor([[1, 1, 1, 0, 0, 0, 0]] * 2).bool(), -100)
    labels[1, 5] = -100
    context = torch.tensor([[1, 1, 1, 0, 0, 0, 0]] * 2)
    logits = ours(IDS, context=context).logits
    scores = torch.log_softmax(logits, -1)
    expected = -torch.stack(
        [scores[row, at - 1, IDS[row, at]] for row in (0, 1) for at in range(3, 7) if labels[row, at] >= 0]
    ).mean()
    torch.testing.assert_close(ours(IDS, labels=labels).loss, expected)
    torch.testing.assert_close(ours(IDS, labels=IDS, context=context).loss, -scores[:, 2:-1].gather(2, IDS[:, 3:, None]).mean())
    torch.testing.assert_close(ours.train()(IDS, labels=labels).loss, expected)


@torch.no_grad()
def test_segments_and_soft_prompts_are_what_they_are_said_to_be():
    ours, _ = pair()
    plain = ours(IDS).logits
    assert torch.equal(plain, ours(IDS, segment_ids=torch.full_like(IDS, 2), prompt_types=torch.tensor([2, 2])).logits)
    assert not torch.equal(plain, ours(IDS, segment_ids=torch.full_like(IDS, 3)).logits)
    other = ours(IDS, prompt_types=torch.tensor([2, 1])).logits
    assert torch.equal(plain[0], other[0])
    assert not torch.equal(plain[1], other[1])


def test_bad_marks_are_refused_by_name():
    ours, _ = pair()
    with pytest.raises(DataError, match="segment_ids: 4 is not in 0 to 3"):
        ours(IDS, segment_ids=torch.full_like(IDS, 4))
    with pytest.raises(DataError, match="prompt_types: -1 is not in 0 to 2"):
        ours(IDS, prompt_types=torch.tensor([0, -1]))
    with pytest.raises(DataError, match=r"prompt_types must have shape \(2,\), one a row, or \(2, 7\), found \(1,\)"):
        ours(IDS, prompt_types=torch.tensor([0]))
    with pytest.raises(DataError, match=r"context must have the shape of input_ids, \(2, 7\), found \(2, 6\)"):
        ours(IDS, context=torch.ones(2, 6))
    with pytest.raises(DataError, match="id 40 is not in 0 to 39"):
        ours(IDS + 40 - IDS)


@pytest.mark.parametrize("field", ["segment_types", "prompt_types"])
def test_a_config_without_the_texts_own_kind_is_refused(field):
    config = CpmAntConfig(**converter_for("cpmant").read_config(SOURCE | {field: 2}))
    with pytest.raises(ConfigError, match=f"{field}=2 must be at least 3: a text has number 2"):
        CpmAnt(config)


def test_two_dropouts_do_not_fit_the_one_field_of_the_file():
    converter = converter_for("cpmant")
    values = CpmAntConfig(**converter.read_config(SOURCE)).values()
    with pytest.raises(ConfigError, match=r"dropout_p: expected one probability, found hidden_dropout=0.1, attention_dropout=0.0"):
        converter.write_config(values | {"hidden_dropout": 0.1}, None, "base", torch.float32)
    with pytest.raises(ConfigError, match="dropout_p: expected a number from 0 to below 1, found 2"):
        converter.read_config({"dropout_p": 2})
