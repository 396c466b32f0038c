"""`modelzoo plan`: from a config.json alone, as text and JSON, one line explained, wrong words refused."""

import json
from pathlib import Path

import pytest

from modelzoo.cli import main

CONFIG = {
    "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 1600, "n_layer": 48, "n_head": 25,
    "architectures": ["GPT2LMHeadModel"],
}  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2, "architectures": ["BertModel"],
}  # fmt: skip


def words(folder: Path, config: dict[str, object], *more: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "rows.jsonl").write_text('{"text": "a", "label": 0}\n')
    return ["plan", "bert-boolq", f"model={folder}", f"data.train={folder / 'rows.jsonl'}", *more]


def test_a_config_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(tmp_path / "bert", BERT, "--host-memory", "16")) == 0
    text = capsys.readouterr().out
    assert text.startswith("bert-boolq · bert for classification · 109,483,778 parameters")
    for name in ("parameters", "gradients", "moments", "activations", "peak", "disk for checkpoints", "a step", "bound by", "fits"):
        assert name in text
    assert "418 MiB" in text.replace("417.6 MiB", "418 MiB")


def test_what_is_too_large_says_what_would_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(tmp_path / "xl", CONFIG, "--host-memory", "8", "--disk-bandwidth", "2")) == 3
    text = capsys.readouterr().out
    assert "too large  host:" in text
    assert "smallest host budget for these settings" in text
    assert "you could   each of these was planned and fits" in text
    assert "memory.disk.path=tiers" in text


def test_json_on_eight_ranks_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--ranks", "8", "--machine", "a100-80gb", "--task", "causal_lm", "parallel.precision=bfloat16", "--json")
    assert main(words(tmp_path / "xl", CONFIG, *more)) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["model"] == {"family": "gpt2", "task": "causal_lm", "parameters": 1_557_611_200}
    assert plan["ranks"] == 8
    assert set(plan["tiers"]) == {"device", "host"}
    assert plan["fits"] is True
    assert plan["sent_bytes"]["reduce"] == pytest.approx(4 * 1_557_611_200 * 7 / 8, rel=0.01)
    assert plan["alternatives"][0]["overrides"]


@pytest.mark.parametrize(("name", "said"), [("activations", "recompute none"), ("compute", "operations /"), ("peak", "host: ")])
def test_one_line_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    assert main(words(tmp_path / "bert", BERT, "--why", name)) == 0
    text = capsys.readouterr().out
    assert said in text
    assert len(text.splitlines()) <= 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--machine", "h100-80g"), "--machine h100-80g: expected this, a YAML or JSON file, or one of"),
        (("--host-memory", "-4"), "--host-memory -4: expected an amount above 0"),
        (("--disk-bandwidth", "fast"), "--disk-bandwidth fast: expected an amount above 0"),
        (("--why", "activation"), "--why activation: the plan has no such line; did you mean activations?"),
        (("--task", "poetry"), "task='poetry' is not one of Bert's tasks"),
        (("--probe", "--machine", "a100-80gb"), "--probe measures this machine, found --machine a100-80gb"),
        (("parallel.zero=4",), "parallel.zero"),
        (("--ranks", "0"), "greater than or equal to 1"),
    ],
)
def test_wrong_words_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    assert main(words(tmp_path / "bert", BERT, *more)) == 2
    assert said in capsys.readouterr().err


def test_rows_that_are_here_give_the_plan_their_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "demo"]) == 0
    text = capsys.readouterr().out
    assert "rows     train.jsonl: 360 rows of 47 to 66 tokens, 56 on average" in text
    assert "16 rows, 2,048 tokens" not in text
    assert main(["plan", "demo", "--json"]) == 0
    short = json.loads(capsys.readouterr().out)
    assert main(["plan", "demo", "--task", "masked_lm", "--json"]) == 0
    full = json.loads(capsys.readouterr().out)
    assert short["micro_batch"]["tokens"] < 16 * 67 < full["micro_batch"]["tokens"] == 16 * 128
    assert "360 rows" in short["rows"]
    assert "every one taken as 128 tokens" in full["rows"]
    assert main(words(tmp_path / "bert", BERT)) == 0
    assert "every one taken as 256 tokens, the most that data.max_length and the model allow" in capsys.readouterr().out


def test_a_plan_is_held_against_the_recipes_own_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "demo", "memory.host=1GiB", "memory.disk.path=tiers"]) == 0
    assert "of 1.0 GiB that the recipe allows: " in capsys.readouterr().out
    assert main(["plan", "demo", "memory.host=100MiB", "memory.disk.path=tiers"]) == 3
    assert "memory.host=100MiB is too small: expected at least" in capsys.readouterr().out


def test_a_batch_has_no_more_rows_than_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": "was it open", "passage": "It was.", "label": bool(number % 2)} for number in range(6)]
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["plan", "demo", f"data.train={tmp_path}/few.jsonl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["micro_batch"]["rows"] == 6
    assert found["micro_batch"]["tokens"] < 6 * 20


def test_what_is_said_of_a_disk_holds_beside_what_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tiers"
    more = ("--host-memory", "2", "--disk-bandwidth", "123MB/s", "--probe", "memory.host=1500MiB", f"memory.disk.path={folder}")
    main(words(tmp_path / "bert", BERT, *more, "train.micro_batch_size=1", "--why", "disk"))
    assert "read / 1.23e+08" in capsys.readouterr().out
