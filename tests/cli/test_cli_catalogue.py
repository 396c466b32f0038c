"""The first screen, the lists, explain and init; and that nothing heavy is loaded for them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from modelzoo.cli import main
from modelzoo.cli.families import size_range
from modelzoo.cli.main import COMMANDS
from modelzoo.config import recipe_names
from modelzoo.models.auto import FAMILIES

MODULES = (
    "import sys; from modelzoo.cli import main; code = main({}); sys.stderr.write(' '.join(sorted(sys.modules))); sys.exit(code)"
)


def loaded_by(*words: str) -> tuple[set[str], str, int]:
    """The modules that a fresh process has loaded after a command, its output, and its exit code."""
    done = subprocess.run([sys.executable, "-c", MODULES.format(list(words))], capture_output=True, text=True, check=False)
    return set(done.stderr.split()), done.stdout, done.returncode


@pytest.mark.parametrize("words", [(), ("--help",), ("train", "--help"), ("--version",)])
def test_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    modules, output, code = loaded_by(*words)
    tops = {name.partition(".")[0] for name in modules}
    assert not tops & {"torch", "transformers", "datasets", "numpy", "yaml", "rich", "psutil", "huggingface_hub"}
    assert len(modules) < 330  # typer brings about 200 to a fresh interpreter; torch alone would bring 1,500
    assert (code, bool(output)) == (0, True)


def test_a_wrong_setting_is_refused_before_torch_is_loaded() -> None:
    modules, _, code = loaded_by("train", "bert-boolq", "lerning_rate=1")
    tops = {name.partition(".")[0] for name in modules}
    assert code == 2
    assert not tops & {"torch", "transformers", "datasets", "numpy"}


def test_the_first_screen_fits_and_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    screen = capsys.readouterr().out
    assert max(len(line) for line in screen.splitlines()) <= 110
    assert len(screen.splitlines()) <= 24
    for command in COMMANDS:
        assert re.search(rf"(modelzoo|\|) {command.word}\b", screen), command.word
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.strip() == screen.strip()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.word)
def test_every_command_has_help(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.word.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"modelzoo {command.word}" in text
    assert "Args:" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian", "x"], "command 'trian' is not known; did you mean train?"),
        (["xyzzy"], "command 'xyzzy' is not known; there are recipes, init, demo"),
        (["train"], "recipe"),
        (["recipes", "--jsn"], "--jsn"),
        (["plan", "demo", "--ranks", "0"], "--ranks: input should be greater than or equal to 1"),
        (["plan", "demo", "--ranks", "x"], "--ranks: "),
        (["--nonsense"], "--nonsense"),
        (["train", "bert-boolk"], "recipe 'bert-boolk' is not known; did you mean bert-boolq?"),
        (["train", "mine"], "recipe 'mine' is not known; did you mean ./mine.yaml?"),
        (["train", "mine.yml"], "recipe file mine.yml does not exist; did you mean mine.yaml?"),
        (["train", "sub/min.yaml"], "recipe file sub/min.yaml does not exist (looked in "),
        (["init", "demoo"], "recipe 'demoo' is not known; did you mean demo?"),
        (["explain", "lr_rate"], "setting lr_rate is not known"),
    ],
)
def test_wrong_words_are_one_clean_error(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").touch()
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert said in captured.err
    assert "Traceback" not in captured.err


def test_debug_shows_the_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "modelzoo", "train", "nothing", "--debug"], capture_output=True, text=True, check=False
    )
    assert "Traceback" in done.stderr
    assert "ConfigError" in done.stderr


def test_only_the_first_process_speaks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["recipes"]) == 0
    assert main(["train", "nothing"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_fault_of_ours_is_one_block_with_its_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> list[str]:
        raise KeyError("gone")

    monkeypatch.setattr("modelzoo.config.recipes.recipe_names", broken)
    assert main(["recipes"]) == 1
    message = capsys.readouterr().err
    assert "KeyError: 'gone'" in message
    assert f"({__file__}:" in message
    assert "--debug" in message


def test_interruption_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("modelzoo.config.recipes.recipe_names", stopped)
    assert main(["recipes"]) == 130
    assert capsys.readouterr().err.startswith("error: interrupted")


def test_recipes_are_listed_for_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    text = capsys.readouterr().out
    assert main(["recipes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["recipe"] for row in rows] == recipe_names()
    for row in rows:
        assert row["description"]
        assert row["description"] in text


@pytest.mark.parametrize("words", [["recipes"], ["explain"], ["explain", "data.columns"], ["models"]])
@pytest.mark.parametrize("width", [84, 100, 200])
def test_tables_fold_into_the_terminal_and_lose_nothing(
    words: list[str], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr("modelzoo.cli.console.terminal_width", lambda: width)
    for name in ("catalogue", "families"):
        monkeypatch.setattr(f"modelzoo.cli.{name}.terminal_width", lambda: width)
    assert main(words) == 0
    text = capsys.readouterr().out
    table, after = text.partition("\n\n")[0], text.partition("\n\n")[2]
    assert max(map(len, table.splitlines())) <= width
    assert after == whole.partition("\n\n")[2]
    assert main(["recipes", "--json"]) == 0
    dropped = {"data", *(row["data"] for row in json.loads(capsys.readouterr().out))} if words == ["recipes"] else set()
    assert set(whole.split()) - set(text.split()) <= dropped


def test_models_are_listed_with_their_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    rows = {row["family"]: row for row in json.loads(capsys.readouterr().out)["families"]}
    assert set(rows) == set(FAMILIES)
    assert "classification" in rows["bert"]["tasks"]
    assert 0 < rows["bert"]["parity"]["output"] <= 1e-5
    assert rows["gpt2"]["sizes"]["gpt2"] == 124_439_808
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert "token_classification" in text
    assert re.search(r"gpt2 +GPT2 +124M to 1\.6B +\de-07", text)
    assert re.search(r"cpm3 +CPM3 +none +naive +naive", text)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_family_is_shown_with_its_sizes_variants_and_config_keys(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", family, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["families"][0]
    assert row["family"] == family
    assert main(["models", family]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{family}: modelzoo.{row['class']}\n")
    for part in (*row["tasks"], *row["architectures"].values(), *row["sizes"], *row["config_keys"], *row["required"]):
        assert part in text
    assert all(f"{key}=" in text for variant in row["variants"] for key in variant)


def test_keys_that_only_together_say_something_are_shown_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "qwen2"]) == 0
    text = capsys.readouterr().out
    for key in ("rope_parameters", "rope_scaling", "rope_theta", "layer_types", "sliding_window", "use_sliding_window"):
        assert re.search(rf"^ {key} ", text, re.MULTILINE), key


def test_a_family_that_is_none_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "lama"]) == 2
    assert "model_type='lama' is not known; did you mean 'llama'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([], "none"),
        ([22_056_576], "22M"),
        ([999_499_999, 999_500_000], "999M to 1.0B"),
        ([2**30, 140_620_634_112, 5_000_000], "5M to 141B"),
    ],
)
def test_sizes_are_a_range(counts: list[int], text: str) -> None:
    assert size_range(counts) == text


@pytest.mark.parametrize("word", ["optimizer.lr", "lr", "learning_rate"])
def test_explain_finds_a_setting_by_any_of_its_names(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", word]) == 0
    text = capsys.readouterr().out
    for part in ("optimizer.lr", "Peak learning rate.", "a number > 0 and <= 10", "5e-05", "learning_rate"):
        assert part in text


def test_explain_lists_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    from modelzoo.config.keys import list_keys
    from modelzoo.config.schema import RunSettings

    assert main(["explain"]) == 0
    text = capsys.readouterr().out
    assert main(["explain", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in rows] == [key.path for key in list_keys(RunSettings)]
    assert all(row["path"] in text for row in rows)


@pytest.mark.parametrize("name", recipe_names())
def test_init_copies_a_recipe_that_trains_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from modelzoo.config import recipe_path
    from modelzoo.config.yaml_file import read_mapping

    monkeypatch.chdir(tmp_path)
    assert main(["init", name]) == 0
    copy, source = tmp_path / f"{name}.yaml", recipe_path(name)
    assert [line for line in copy.read_text().splitlines() if line.startswith("#")] == [
        line for line in source.read_text().splitlines() if line.startswith("#")
    ]
    mapping, _ = read_mapping(copy)
    original, _ = read_mapping(source)
    for section in ("model", "data"):
        for key, value in original[section].items():
            is_beside = isinstance(value, str) and value.startswith("./")
            assert mapping[section][key] == (str(source.parent / value) if is_beside else value)
    assert {key: value for key, value in mapping.items() if key not in ("model", "data")} == {
        key: value for key, value in original.items() if key not in ("model", "data")
    }


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine.yaml"
    target.write_text("precious")
    assert main(["init", "demo", "--output", str(target)]) == 3
    assert f"{target} exists already" in capsys.readouterr().err
    assert target.read_text() == "precious"
    assert main(["init", "demo", "--output", str(tmp_path / "no" / "x.yaml")]) == 3
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["train", "bert-s"], ["bert-squad", "bert-sst2"]),
        (["data", "show", "t5-wi"], ["t5-wic"]),
        (["plan", "demo", "optimizer.l"], ["optimizer.lr=", "optimizer.lr=5e-05"]),  # two, so that no space follows
        (["check", "demo", "train.batch_"], ["train.batch_size=", "train.batch_tokens="]),
        (["plan", "demo", "--ran"], ["--ranks"]),
        (["explain", "train.e"], ["train.epochs"]),
    ],
)
def test_a_shell_completes_recipes_and_keys(words: list[str], found: list[str]) -> None:
    shell = {"_MODELZOO_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["modelzoo", *words]), "COMP_CWORD": str(len(words))}
    command = [sys.executable, "-m", "modelzoo"]
    ran = subprocess.run(command, env=os.environ | shell, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == found, ran.stderr
