"""Pretrain the demo's small BERT by masked language modelling on generated texts (corpus.py), on one CPU core.

    python recipes/demo/make_model.py [--output FOLDER] [--steps N] [--seed N]

The folder gets what a Hugging Face BERT has: config.json, model.safetensors, tokenizer.json, tokenizer_config.json, vocab.txt.
The same torch version on the same processor type gives the same bytes.
"""

from __future__ import annotations

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
from modelzoo.recipes.demo.corpus import PASSAGE, Text, draw_text
from modelzoo.recipes.demo.make_data import compose

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB_SIZE = 704
MAX_LENGTH = 128
TOKENIZER_TEXTS = 20_000
BATCH_SIZE = 32
SORTED_BATCHES = 16  # as many batches are drawn together and sorted by length, so that little is padding
SIMPLE_SHARE = 0.5  # of the steps, at the start, on texts of one or two facts: looking up is learned sooner there
PEAK_LR, WARMUP_STEPS, DECAY_SHARE = 2.5e-3, 300, 0.4
BETAS, WEIGHT_DECAY, CLIP_NORM = (0.9, 0.98), 0.01, 1.0
FINE_TUNING_DROPOUT = 0.1  # written into config.json; pretraining itself sees every text once and drops nothing

Row = tuple[list[int], list[int], list[int]]  # ids with hidden tokens, segments, labels


def train_tokenizer(texts: Iterator[str]) -> Tokenizer:
    """A lower-case WordPiece tokenizer in BERT's form, learned from `texts`."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB_SIZE, special_tokens=SPECIAL_TOKENS, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.enable_truncation(MAX_LENGTH)
    return tokenizer


def hide(text: Text, tokenizer: Tokenizer, rng: random.Random) -> Row:
    """Encode a text and hide some tokens: 80 % become [MASK], 10 % a random token, 10 % stay (Devlin et al., 2019, 3.1)."""
    encoding = tokenizer.encode(text.first_part, text.passage)
    ids = list(encoding.ids)
    labels = [-100] * len(ids)
    for index, ((start, _), part) in enumerate(zip(encoding.offsets, encoding.sequence_ids, strict=True)):
        rate = 0.0 if part is None else PASSAGE if part == 1 else text.rate_at(start)
        if rng.random() < rate:
            labels[index] = ids[index]
            chance = rng.random()
            ids[index] = MASK if chance < 0.8 else rng.randrange(len(SPECIAL_TOKENS), VOCAB_SIZE) if chance < 0.9 else ids[index]
    return ids, encoding.type_ids, labels


def padded(rows: list[Row]) -> dict[str, Tensor]:
    """A batch of rows as the model takes it, padded on the right."""
    width = max(len(ids) for ids, _, _ in rows)

    def table(part: int, filler: int) -> Tensor:
        return torch.tensor([row[part] + [filler] * (width - len(row[part])) for row in rows])

    mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _, _ in rows])
    return {"input_ids": table(0, PAD), "attention_mask": mask, "token_type_ids": table(1, 0), "labels": table(2, -100)}


def batches(tokenizer: Tokenizer, num_steps: int, rng: random.Random) -> Iterator[dict[str, Tensor]]:
    """Batches of texts that are drawn once and never again; first simple ones."""
    *splits, taken = compose()
    shown = {str(row[column]) for rows in splits for row in rows for column in ("question", "passage")}
    step = 0
    while step < num_steps:
        rows = []
        for _ in range(BATCH_SIZE * SORTED_BATCHES):
            text = draw_text(taken, rng, stage=1 if step < SIMPLE_SHARE * num_steps else 2)
            assert text.passage not in shown, f"a passage of the demo's rows came up in the corpus: {text.passage}"
            assert not any(question in shown for question in text.questions), f"a question of the rows came up: {text.first_part}"
            rows.append(hide(text, tokenizer, rng))
        rows.sort(key=lambda row: len(row[0]))
        chunks = [rows[start : start + BATCH_SIZE] for start in range(0, len(rows), BATCH_SIZE)]
        rng.shuffle(chunks)
        yield from map(padded, chunks[: num_steps - step])
        step += len(chunks)


def pretrain(model: Bert, tokenizer: Tokenizer, num_steps: int, rng: random.Random) -> None:
    """Train the model in place; prints the running loss."""
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": weights, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=BETAS, fused=True)
    model.train()
    start, losses = time.perf_counter(), []
    for step, batch in enumerate(batches(tokenizer, num_steps, rng), start=1):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * min(step / WARMUP_STEPS, 1.0, (num_steps + 1 - step) / (DECAY_SHARE * num_steps))
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 250 == 0 or step == num_steps:
            seconds = time.perf_counter() - start
            print(f"step {step} of {num_steps}  loss {sum(losses) / len(losses):.3f}  {seconds:.0f} s", flush=True)
            losses.clear()


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, vocab.txt and tokenizer_config.json."""
    tokenizer.no_truncation()  # the reader's choice, not the file's
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
    parser.add_argument("--steps", type=int, default=6000, help="training steps of 32 texts")
    parser.add_argument("--seed", type=int, default=1, help="of the texts and of the first weights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # another number of threads adds in another order
    torch.manual_seed(arguments.seed)
    rng = random.Random(arguments.seed)
    *_, taken = compose()
    texts = (draw_text(taken, rng) for _ in range(TOKENIZER_TEXTS))
    tokenizer = train_tokenizer(f"{text.first_part} {text.passage}" for text in texts)
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        num_layers=4,
        num_heads=4,
        intermediate_size=256,
        max_positions=MAX_LENGTH,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    model = Bert.from_config(config, task="masked_lm")
    pretrain(model, tokenizer, arguments.steps, rng)
    model.config = replace(config, hidden_dropout=FINE_TUNING_DROPOUT, attention_dropout=FINE_TUNING_DROPOUT)
    model.save_pretrained(arguments.output)
    write_tokenizer(tokenizer, arguments.output)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
