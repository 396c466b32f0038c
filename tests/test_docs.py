"""What the pages show is true: Python blocks run, commands and settings exist, and both languages show the same."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from doc_blocks import PAGES, ROOT, Block, blocks_of, commands_in, without_comments

from modelzoo.cli import catalogue, generate_command
from modelzoo.cli.main import build_app
from modelzoo.cli.row_settings import read_row_settings
from modelzoo.config import load, recipe_names, resolve_settings
from modelzoo.data.tasks.registry import TASKS
from modelzoo.errors import ConfigError

LANGUAGES = {"python", "bash", "yaml", "text", "json"}
MOST_NOT_RUN = 6
"""Blocks with a comment that says why they are not run. A new one needs a better reason than that it is less work."""

PROGRAMS = {"git", "cd", "mkdir", "cat", "source", ".", "pytest", "sbatch", "ls", "head", "tail", "kill"}
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RECIPE_BLOCKS = [block for page in sorted((ROOT / "recipes").glob("*/README.md")) for block in blocks_of(page)]
APP = typer.main.get_command(build_app())


def of_language(language: str, blocks: list[Block] = BLOCKS) -> list[Block]:
    return [block for block in blocks if block.language == language and block.reason is None]


@pytest.mark.parametrize("page", [page for page in PAGES if of_language("python", blocks_of(page))], ids=lambda page: page.stem)
def test_python_blocks_of_the_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in of_language("python", blocks_of(page)):
        source = "\n" * block.line + block.text  # so that a traceback shows the page's own line
        exec(compile(source, str(page), "exec"), names)


@pytest.mark.parametrize("block", of_language("bash") + of_language("bash", RECIPE_BLOCKS), ids=str)
def test_commands_of_the_page_exist(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load, "missing_file", lambda *_: None)  # FILE and FOLDER stand for the reader's own
    for words in commands_in(block.text):
        check_command(words, block)


@pytest.mark.parametrize("block", of_language("yaml") + of_language("yaml", RECIPE_BLOCKS), ids=str)
def test_settings_of_the_page_are_valid(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "missing_file", lambda *_: None)
    values = yaml.safe_load(block.text)
    file = tmp_path / "page.yaml"
    if "like" in values or "link_bandwidth" in values:
        from modelzoo.plan import find_machine

        file.write_text(block.text)
        find_machine(str(file))
        return
    base: dict[str, Any] = {"recipe": "page", "model": {"name": "bert-base-uncased"}, "data": {"train": "./rows.jsonl"}}
    for name, section in values.items():
        base[name] = {**base[name], **section} if isinstance(section, dict) and isinstance(base.get(name), dict) else section
    file.write_text(yaml.safe_dump(base, sort_keys=False))
    resolve_settings(str(file))


def check_command(words: list[str], block: Block) -> None:
    """Hold one command against the programs, options, recipes and settings that there are."""
    program, *arguments = words
    if program in {"torchrun", "srun"} or (program == "python" and "-m" in arguments[:1]):
        if "modelzoo" in arguments:
            check_modelzoo(arguments[arguments.index("modelzoo") + 1 :], block)
            return
        assert arguments[1] in {"pip", "venv", "pytest", "mkdocs"}, f"{block}: {words}"
        for word in arguments:
            if "[" in word:
                assert set(word[word.index("[") + 1 : -1].split(",")) <= EXTRAS, f"{block}: {word}: no such extra"
    elif program == "python":
        assert (ROOT / arguments[0]).is_file(), f"{block}: there is no {arguments[0]}"
    elif program == "modelzoo":
        check_modelzoo(arguments, block)
    else:
        assert program in PROGRAMS or program == "mkdocs", f"{block}: {program}: no program that the pages use"


def check_modelzoo(words: list[str], block: Block) -> None:
    """Parse the words of a `modelzoo` command as the command does, without running it."""
    if not words or words[0].startswith("--"):
        return
    name, *arguments = words
    assert name in APP.commands, f"{block}: there is no command {name}"
    context = APP.commands[name].make_context(name, arguments)
    try:
        if "recipe" in context.params or name == "demo":
            recipe = context.params.get("recipe", "demo")
            is_own = Path(recipe).suffix in {".yaml", ".yml"} or "/" in recipe
            assert is_own or recipe in recipe_names(), f"{block}: there is no recipe {recipe}"
            resolve_settings("demo" if is_own else recipe, context.args)
        elif name == "generate":
            generate_command._settings(context.args)
        elif name in {"eval", "predict"}:
            read_row_settings(context.args)
        elif name == "explain" and context.params.get("key"):
            catalogue.explain(context.params["key"])
    except ConfigError as error:
        raise AssertionError(f"{block}: modelzoo {' '.join(words)}\n{error}") from None


def test_blocks_say_their_language_and_why_they_are_not_run() -> None:
    for block in BLOCKS:
        assert block.language in LANGUAGES, f"{block}: write one of {sorted(LANGUAGES)} after the fence; text for what is printed"
    assert sum(block.reason is not None for block in BLOCKS) <= MOST_NOT_RUN
    assert all(block.language in {"python", "bash", "yaml"} for block in BLOCKS if block.reason is not None)


def test_commands_stand_in_blocks() -> None:
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            assert not line.startswith(("    modelzoo ", "    torchrun ")), f"{page.name}:{number}: put it into a bash block"


@pytest.mark.parametrize(
    ("page", "translation"), [("README.md", "README.zh-CN.md"), ("docs/quick_start.md", "docs/zh/quick_start.md")]
)
def test_the_translation_shows_the_same_code(page: str, translation: str) -> None:
    first, second = blocks_of(ROOT / page), blocks_of(ROOT / translation)
    assert [block.language for block in first] == [block.language for block in second]
    for block, other in zip(first, second, strict=True):
        if block.language != "text":
            assert without_comments(block.text) == without_comments(other.text), f"{other} is not {block}"
    assert (ROOT / page).read_text().count("\n#") == (ROOT / translation).read_text().count("\n#"), "sections differ"


def test_every_page_is_reached_from_the_index_or_the_navigation() -> None:
    places = (ROOT / "docs" / "index.md", ROOT / "README.md", ROOT / "docs" / "site" / "mkdocs.yml")
    text = "".join(place.read_text() for place in places)
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in text]
    assert not missing, "give each a line in docs/index.md and in the navigation of docs/site/mkdocs.yml"


def test_the_roles_of_each_task_are_those_of_its_forms() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    for task, roles in rows.items():
        known = {role for form in TASKS[task].forms for role in form.roles}
        assert set(re.findall(r"`(\w+)`", roles)) <= known, task
    assert set(rows) >= {"classification", "causal_lm", "seq2seq_lm"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("modelzoo trian demo", "no command trian"),
        ("modelzoo train dmo", "no recipe dmo"),
        ("modelzoo train demo train.epoch=1", "did you mean train.epochs"),
        ("OMP_NUM_THREADS=1 torchrun -m modelzoo train demo lr=x", "expected a number"),
        ("pip install 'modelzoo-hub[nothing]'", "no program"),
        ("python benchmarks/nothing.py", "there is no benchmarks/nothing.py"),
        ("modelzoo eval runs/x dta=FILE", "dta"),
    ],
)
def test_a_wrong_command_would_be_found(command: str, message: str) -> None:
    [words] = commands_in(command)
    with pytest.raises((AssertionError, typer.TyperException), match=message):
        check_command(words, Block(ROOT / "README.md", 1, "bash", command, None))


def test_commands_are_read_as_a_shell_reads_them() -> None:
    script = (
        "A=1 modelzoo demo \\\n  x=1 # why\ncat > f <<'EOF'\nmodelzoo nothing\nEOF\nmodelzoo a && modelzoo b --text 'c; d' | head"
    )
    expected = [["modelzoo", "demo", "x=1"], ["cat", ">", "f", "<<", "EOF"], ["modelzoo", "a"], ["modelzoo", "b", "--text", "c; d"]]
    assert list(commands_in(script)) == [*expected, ["head"]]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/quick_start.md"])
def test_the_quick_start_runs_as_written(page: str, tmp_path: Path) -> None:
    """The stranger's first half hour, all commands of the page one after the other in an empty folder."""
    shell = shutil.which("bash") or pytest.skip("there is no bash here")
    for block in of_language("bash", blocks_of(ROOT / page)):
        result = subprocess.run([shell, "-ec", block.text], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{block}\n{result.stdout}\n{result.stderr}"
