"""Prompts that are built from texts: CPM-Bee's trees and their answers, GLM-10B's masks."""

import json
import shutil

import pytest
import torch
from bee_vocabulary import NUM_TOKENS, bee_tokenizer
from tiny_writers import ours

from modelzoo import generate, load_tokenizer
from modelzoo.data import Tokenizer
from modelzoo.data.cpm_bee_batches import bee_prompts, bee_training_batch
from modelzoo.data.glm_blanks import glm_prompts, glm_training_batch
from modelzoo.errors import ConfigError, DataError
from modelzoo.generation import answer
from modelzoo.generation.built_prompts import tree_prompts
from modelzoo.models.cpm_bee import CpmBee, CpmBeeConfig
from modelzoo.models.glm_10b import GLM10B, GLM10BConfig

TREES = [{"input": "今天天气好<mask_3> 龘龘好<mask_3><mask_9>", "<ans>": ""}, {"input": "龘<mask>", "天": {"好": "?"}, "<ans>": ""}]
SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "head_size": 6, "intermediate_size": 24}


@pytest.fixture
def tokenizer(tmp_path) -> Tokenizer:
    return bee_tokenizer(tmp_path)


def bee() -> CpmBee:
    torch.manual_seed(0)
    sizes = SIZES | {"num_buckets": 16, "num_segment_buckets": 64, "max_distance": 8, "distance_scale": 2.5}
    return CpmBee.from_config(CpmBeeConfig(vocab_size=NUM_TOKENS, **sizes), "causal_lm").eval()


def full_scores(model: CpmBee, tokenizer: Tokenizer, written: list[list[int]], trees=TREES, done=(), examples=()) -> torch.Tensor:
    """(B, V + E) scores after what is written of the next answer, by the full forward; minus infinity for what is not a row's."""
    batch = bee_prompts(tokenizer, trees, NUM_TOKENS, done, examples=examples)
    ids, step = torch.tensor(written, dtype=torch.int64).reshape(len(trees), -1), len(written[0])
    place = (ids - NUM_TOKENS).clamp(min=0)
    extra = [each[place] if len(each) else place for each in batch.extra]
    bases, numbers = torch.where(ids < NUM_TOKENS, ids, extra[0]), torch.where(ids < NUM_TOKENS, 0, extra[1])
    longer = [torch.cat([each, each[:, -1:].expand(-1, step)], 1) for each in batch.segments[:3]]
    inputs = batch.inputs() | {
        "input_ids": torch.cat([batch.ids, bases], 1),
        "numbers": torch.cat([batch.numbers, numbers], 1),
        "segments": (*longer, batch.segments[3]),
        "samples": torch.cat([batch.samples, batch.samples.new_zeros(len(trees), step)], 1),
        "attention_mask": torch.cat([batch.mask, batch.mask.new_ones(len(trees), step)], 1),
        "context": torch.cat([batch.context, batch.context.new_zeros(len(trees), step)], 1),
    }
    scores = model(**inputs).logits[:, -1]
    allowed = torch.zeros_like(scores, dtype=torch.bool)
    for row, words in enumerate(batch.words):
        allowed[row, [0, *range(2, NUM_TOKENS), *words]] = True  # 1 is an unknown word
    return scores.masked_fill(~allowed, float("-inf"))


EXAMPLES = [{"input": "天<mask_3>", "<ans>": "好<mask_7>"}, {"input": "好", "<ans>": {"天": "龘", "好": "今天"}}]


@torch.no_grad()
@pytest.mark.parametrize("examples", [[], EXAMPLES])
def test_cached_answers_equal_the_full_forward_at_every_step(tokenizer, examples):
    model = bee()
    prompts = tree_prompts(model, TREES, tokenizer, examples=examples)
    logits, state = model.prefill(prompts.ids, prompts.mask, 6, **prompts.marks, **prompts.shared)
    written: list[list[int]] = [[], []]
    for step in range(6):
        torch.testing.assert_close(logits, full_scores(model, tokenizer, written, examples=examples), rtol=0, atol=1e-5)
        if not examples:
            assert logits.isinf().nonzero().tolist() == [[1, NUM_TOKENS]]  # <mask_9> is the first tree's alone
        new = [[NUM_TOKENS, 12], [1, 9]]
        for row in range(2):
            written[row].append(new[row][step % 2])
        logits = model.decode(torch.tensor([row[-1] for row in written]), state)


@torch.no_grad()
def test_a_tree_is_answered_greedily_in_the_words_of_its_prompt(tokenizer):
    model = bee()
    expected: list[list[int]] = [[], []]
    for _ in range(5):
        for row, best in enumerate(full_scores(model, tokenizer, expected).argmax(-1).tolist()):
            expected[row].append(best)
    prompts = tree_prompts(model, TREES, tokenizer)
    found = generate(model, TREES, tokenizer=tokenizer, max_new_tokens=5, eos_token_id=())
    assert found.new_ids == expected
    names = {number: token for token, number in tokenizer.get_vocab().items()}
    for row, words in enumerate(prompts.words):
        shown = [words.get(each, names.get(each, "")) for each in found.new_ids[row]]
        hidden = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id} - words.keys()
        assert found.texts[row] == "".join(text for text, each in zip(shown, found.new_ids[row], strict=True) if each not in hidden)
    alone = [generate(model, tree, tokenizer=tokenizer, max_new_tokens=5, eos_token_id=()) for tree in TREES]
    assert [each.texts[0] for each in alone] == found.texts
    streamed: list[str] = ["", ""]
    generate(model, TREES, tokenizer=tokenizer, max_new_tokens=5, eos_token_id=(),
             on_text=lambda row, piece: streamed.__setitem__(row, streamed[row] + piece))  # fmt: skip
    assert streamed == found.texts


@torch.no_grad()
def test_beams_of_a_tree_have_the_score_of_the_full_forward(tokenizer):
    model = bee()
    found = generate(model, TREES, tokenizer=tokenizer, max_new_tokens=4, num_beams=3, eos_token_id=(), length_penalty=1.0)
    totals = torch.zeros(2)
    for step in range(4):
        scores = torch.log_softmax(full_scores(model, tokenizer, [ids[:step] for ids in found.new_ids]), -1)
        totals += scores.gather(1, torch.tensor([[ids[step]] for ids in found.new_ids])).squeeze(1)
    torch.testing.assert_close(found.sequence_scores, totals / 4, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_several_answers_are_written_one_after_the_other(tokenizer):
    model = bee()
    trees = [{"input": "好<mask_2><mask_1>", "<ans>": {"天": "", "好": {"今天": ""}}}, {"<ans>": "?", "input": "龘"}]
    found = answer(model, trees, tokenizer=tokenizer, max_new_tokens=3)
    first = generate(model, tree_prompts(model, trees, tokenizer), tokenizer=tokenizer, max_new_tokens=3)
    ids = [[[each for each in row if each != tokenizer.eos_id]] for row in first.new_ids]
    second = generate(model, tree_prompts(model, trees, tokenizer, ids), tokenizer=tokenizer, max_new_tokens=3)
    expected = {"input": trees[0]["input"], "<ans>": {"天": first.texts[0], "好": {"今天": second.texts[0]}}}
    assert found == [expected, {"<ans>": first.texts[1], "input": "龘"}]
    assert trees[1]["<ans>"] == "?"


@torch.no_grad()
def test_examples_are_seen_and_do_not_see_each_other(tokenizer):
    model = bee()
    plain, shown = (full_scores(model, tokenizer, [[]], TREES[:1], examples=each) for each in ([], EXAMPLES[1:]))
    width = plain.shape[1]
    assert not torch.allclose(plain[plain.isfinite()], shown[:, :width][plain.isfinite()], atol=1e-3)
    hidden = []
    for first in ("天", "好"):
        batch = bee_prompts(tokenizer, TREES[:1], NUM_TOKENS, examples=[{"input": first, "<ans>": "好"}, EXAMPLES[1]])
        hidden.append(model(**batch.inputs()).logits[batch.samples == 2])
    torch.testing.assert_close(*hidden, rtol=0, atol=1e-5)
    found = answer(model, TREES, examples=EXAMPLES, tokenizer=tokenizer, max_new_tokens=3)
    prompts = tree_prompts(model, TREES, tokenizer, examples=EXAMPLES)
    texts = generate(model, prompts, tokenizer=tokenizer, max_new_tokens=3).texts
    assert [tree["<ans>"] for tree in found] == texts


@torch.no_grad()
def test_the_loss_of_a_training_tree_is_of_its_answers_and_their_ends(tokenizer):
    model = bee()
    tree = {"input": "好<mask_1>龘", "<ans>": {"天": "好<mask_1>", "好": "天龘"}}
    total = []
    for number, target in enumerate([[12, 6, 3], [10, 1, 3]]):
        for step in range(3):
            done = [[[12, 6]]] if number else []
            scores = full_scores(model, tokenizer, [target[:step]], [tree], done)[0]
            total.append(-torch.log_softmax(scores, -1)[target[step]])
    loss = model(**bee_training_batch(tokenizer, [tree], NUM_TOKENS).inputs()).loss
    torch.testing.assert_close(loss, torch.stack(total).mean(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_an_answer_ends_with_the_end_token_of_the_tokenizer(tokenizer):
    """No file of CPM-Bee's names an end token; its vocabulary does."""
    model = bee()
    free = generate(model, TREES, tokenizer=tokenizer, max_new_tokens=6, eos_token_id=()).new_ids
    tokenizer.eos_id = free[0][2]
    found = generate(model, TREES, tokenizer=tokenizer, max_new_tokens=6).new_ids
    assert found == [row[: row.index(tokenizer.eos_id) + 1] if tokenizer.eos_id in row else row for row in free]
    assert len(found[0]) <= 3


def test_trees_are_refused_where_they_have_no_place(tokenizer):
    with pytest.raises(DataError, match=r"a tree of texts is a prompt of CPM-Bee alone, found a GPT2"):
        generate(ours("gpt2"), {"input": "a", "<ans>": ""})
    with pytest.raises(ConfigError, match="trees of texts are answered by CPM-Bee, found a GPT2"):
        answer(ours("gpt2"), [{"<ans>": ""}])
    with pytest.raises(DataError, match=r"prompt 0: expected one text below <ans>, found 2; use modelzoo\.generation\.answer"):
        generate(bee(), {"<ans>": {"天": "", "好": ""}}, tokenizer=tokenizer)
    with pytest.raises(DataError, match="prompts are texts and trees mixed; give one kind"):
        generate(bee(), ["天", {"<ans>": ""}], tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="num_return_sequences=2: a tree has room for one text an answer"):
        answer(bee(), [{"<ans>": ""}], tokenizer=tokenizer, do_sample=True, num_return_sequences=2)
    with pytest.raises(ConfigError, match="this model came from no folder"):
        answer(bee(), [{"<ans>": ""}])


@pytest.fixture
def glm(testdata, tmp_path) -> tuple[GLM10B, Tokenizer]:
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed: pip install 'modelzoo-hub[cpm]'")
    shutil.copy(testdata / "tokenizers" / "cpm1" / "chinese_vocab.model", tmp_path / "cog-pretrain.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "glm-10b"}))
    torch.manual_seed(0)
    tokens = {"start_token_id": 30006, "end_token_id": 30007, "mask_token_id": 30008}
    config = GLM10BConfig(vocab_size=30048, max_positions=40, initializer_range=0.3, **SIZES, **tokens)
    model = GLM10B.from_config(config, "causal_lm").eval()
    return model, load_tokenizer(tmp_path)


@torch.no_grad()
def test_glm_writes_into_the_blank_of_the_first_mask(glm):
    model, tokenizer = glm
    texts = ["今天天气[gMASK]", "[MASK]好[sMASK]"]
    found = generate(model, texts, tokenizer=tokenizer, max_new_tokens=4)
    for row, text in enumerate(texts):
        batch = glm_prompts(tokenizer, [text])
        place = batch.position_ids[0, -1]
        ids, text_places, blank = batch.ids, batch.position_ids, batch.block_position_ids
        for token in found.new_ids[row]:
            scores = model(ids, position_ids=text_places, block_position_ids=blank).logits[0, -1]
            assert int(scores.argmax()) == token
            ids = torch.cat([ids, torch.tensor([[token]])], 1)
            text_places = torch.cat([text_places, place.reshape(1, 1)], 1)
            blank = torch.cat([blank, blank[:, -1:] + 1], 1)
    assert found.texts == [tokenizer.decode(ids) for ids in found.new_ids]
    with pytest.raises(DataError, match=r"row 1: '天气' has none of \[MASK\]"):
        generate(model, "天气", tokenizer=tokenizer)


@torch.no_grad()
def test_glm_ends_with_the_end_of_a_blank(glm):
    model, tokenizer = glm
    first = generate(model, "天气[sMASK]", tokenizer=tokenizer, max_new_tokens=1).new_ids[0][0]
    with torch.no_grad():
        table = model.embeddings.token.weight
        table[[first, 30007]] = table[[30007, first]]
    assert generate(model, "天气[sMASK]", tokenizer=tokenizer, max_new_tokens=4).new_ids == [[30007]]


@torch.no_grad()
def test_glm_training_rows_score_what_generation_scores(glm):
    model, tokenizer = glm
    batch = glm_training_batch(tokenizer, ["天气[gMASK]"], ["不错"])
    target = batch.labels[0][batch.labels[0] >= 0].tolist()
    prompt = glm_prompts(tokenizer, ["天气[gMASK]"])
    places = {"position_ids": prompt.position_ids, "block_position_ids": prompt.block_position_ids}
    logits, state = model.prefill(prompt.ids, prompt.mask, len(target), **places)
    losses = []
    for token in target:
        losses.append(-torch.log_softmax(logits[0], -1)[token])
        logits = model.decode(torch.tensor([token]), state)
    torch.testing.assert_close(model(**batch.inputs()).loss, torch.stack(losses).mean(), rtol=1e-5, atol=1e-5)
