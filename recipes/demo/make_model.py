"""Trains the demo's small BERT from nothing, on texts composed from the sentences of world.py: masked language modelling alone.

    python recipes/demo/make_model.py        about six minutes on one core

No text has a question's answer in it. A text is a stay at an inn: an opening, some sentences about what went well or badly, and a
verdict whose one telling word is hidden most of the time. Two runs give models of one kind and not the same bytes, because the
tokenizer's trainer breaks ties in another order each time.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from modelzoo.models.bert import Bert, BertConfig
from modelzoo.recipes.demo.make_data import Mood, fill, sentences
from modelzoo.recipes.demo.world import NEUTRAL, OPENINGS, QUESTIONS, SENTENCES, VERDICTS

__all__ = ["main", "story"]

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCAB_SIZE, MAX_LENGTH, TOKENIZER_TEXTS = 900, 128, 10_000
BATCH_SIZE, PEAK_LR, WARMUP_STEPS, DECAY_SHARE = 32, 2e-3, 150, 0.4
HIDDEN_RATES, HIDDEN_VERDICT_RATE = (0.15, 0.4), 0.85
FINE_TUNING_DROPOUT = 0.1
PUNCTUATION, DIGITS = "?!'\"-:;()", "0123456789"
VERDICT_WORDS = frozenset(word for _, *pair in VERDICTS for word in pair)


def story(rng: random.Random) -> list[str]:
    """Return the sentences of a random text, each with its full stop."""
    mood: Mood = rng.choice(("good", "bad"))
    told: list[str] = []
    for subject in rng.sample(sorted(SENTENCES), rng.choice((1, 2, 2))):
        told += sentences(subject, mood, rng.choice((1, 2)), rng)
    if rng.random() < 0.4:
        told.append(fill(rng.choice(NEUTRAL), rng))
    rng.shuffle(told)
    pattern, good, bad = rng.choice(VERDICTS)
    verdict = fill(pattern.replace("{}", good if mood == "good" else bad), rng)
    told.insert(rng.choice((0, len(told))), verdict)
    return [f"{sentence}." for sentence in (fill(rng.choice(OPENINGS), rng), *told)]


def train_tokenizer(rng: random.Random) -> Tokenizer:
    """Return a lower-case WordPiece tokenizer for the stories, the questions and the verdicts, which spells any English text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    asked = [question for some in QUESTIONS.values() for question in some]
    # a digit is a piece of its own at the beginning of a number and within one
    always = " ".join([*sorted(VERDICT_WORDS), *asked, DIGITS, DIGITS[::-1]])
    texts = (f"{' '.join(story(rng))} {always}" for _ in range(TOKENIZER_TEXTS))
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=[*PUNCTUATION, *DIGITS],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def hide(tokenizer: Tokenizer, verdict_ids: frozenset[int], rng: random.Random) -> tuple[list[int], list[int], list[int]]:
    """Return ids, token types and labels of a story cut in two, with some tokens hidden as BERT hides them (80/10/10)."""
    told = story(rng)
    cut = rng.randrange(1, len(told))
    encoded = tokenizer.encode(" ".join(told[:cut]), " ".join(told[cut:]))
    ids, labels, rate = list(encoded.ids), [-100] * len(encoded.ids), rng.choice(HIDDEN_RATES)
    for place, token in enumerate(encoded.ids):
        is_special = encoded.special_tokens_mask[place]
        if is_special or rng.random() >= (HIDDEN_VERDICT_RATE if token in verdict_ids else rate):
            continue
        labels[place] = token
        chance = rng.random()
        ids[place] = 4 if chance < 0.8 else rng.randrange(len(SPECIAL_TOKENS), VOCAB_SIZE) if chance < 0.9 else token
    return ids, encoded.type_ids, labels


def batches(tokenizer: Tokenizer, num_steps: int, rng: random.Random) -> Iterator[dict[str, Tensor]]:
    """Return the batches of the whole training."""
    vocabulary = tokenizer.get_vocab()
    verdict_ids = frozenset(vocabulary[word.lower()] for word in VERDICT_WORDS)
    for _ in range(num_steps):
        rows = [hide(tokenizer, verdict_ids, rng) for _ in range(BATCH_SIZE)]
        width = max(len(ids) for ids, _, _ in rows)
        columns = zip(*rows, strict=True)
        names, fills = ("input_ids", "token_type_ids", "labels"), (0, 0, -100)
        batch = {
            name: torch.tensor([row + [fill_value] * (width - len(row)) for row in column])
            for name, fill_value, column in zip(names, fills, columns, strict=True)
        }
        batch["attention_mask"] = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _, _ in rows])
        yield batch


def pretrain(model: Bert, tokenizer: Tokenizer, num_steps: int, rng: random.Random) -> None:
    """Train the model in place, and say how far it is."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    model.train()
    started, losses = time.perf_counter(), []
    for step, batch in enumerate(batches(tokenizer, num_steps, rng), start=1):
        rate = min(step / WARMUP_STEPS, 1.0, (num_steps + 1 - step) / (DECAY_SHARE * num_steps))
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * rate
        loss = model(**batch).loss
        assert loss is not None
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 250 == 0 or step == num_steps:
            mean = sum(losses[-250:]) / len(losses[-250:])
            print(f"step {step} of {num_steps}  loss {mean:.3f}  {time.perf_counter() - started:.0f} s", flush=True)


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, vocab.txt and tokenizer_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words), encoding="utf-8", newline="\n")
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": MAX_LENGTH,
        **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8", newline="\n")


def main() -> None:
    """Make the folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "model", help="folder to write")
    parser.add_argument("--steps", type=int, default=3000, help="training steps of 32 texts")
    parser.add_argument("--seed", type=int, default=0, help="of the texts and of the first weights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a model of this size gains nothing from more
    torch.manual_seed(arguments.seed)
    rng = random.Random(arguments.seed)
    tokenizer = train_tokenizer(rng)
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        num_layers=3,
        num_heads=4,
        intermediate_size=256,
        max_positions=MAX_LENGTH,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    model = Bert.from_config(config, task="masked_lm")
    pretrain(model, tokenizer, arguments.steps, rng)
    model.config = replace(model.config, hidden_dropout=FINE_TUNING_DROPOUT, attention_dropout=FINE_TUNING_DROPOUT)
    model.save_pretrained(arguments.output, overwrite=True)
    write_tokenizer(tokenizer, arguments.output)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
