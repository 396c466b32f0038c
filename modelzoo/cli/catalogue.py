"""Looking around: which recipes and settings there are, and taking a recipe home."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from modelzoo.cli import completing as complete
from modelzoo.cli.console import columns, say, say_json, terminal_width

__all__ = ["explain", "init", "recipes"]

_WIDE = 140
"""Characters of a terminal that has room for all columns of the recipes."""

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]


def recipes(as_json: AsJson = False) -> None:
    """List the recipes that ship with the project."""
    from modelzoo.config.recipes import recipe_names, recipe_path
    from modelzoo.config.yaml_file import read_mapping

    rows = []
    for name in recipe_names():
        mapping, _ = read_mapping(recipe_path(name))
        model, data = mapping.get("model", {}), mapping.get("data", {})
        rows.append(
            {
                "recipe": name,
                "model": model.get("name") if isinstance(model, dict) else model,
                "data": data.get("name") or data.get("train"),
                "description": mapping.get("description", ""),
                "file": str(recipe_path(name)),
            }
        )
    if as_json:
        say_json(rows)
        return
    width = terminal_width()
    # descriptions name the data too, and a narrow terminal has no room for both
    keys = ("recipe", "model", *(["data"] if width is None or width >= _WIDE else []), "description")
    say(columns([keys, *([str(row[key]) for key in keys] for row in rows)], width=width))
    say("\n start one  modelzoo train RECIPE [key=value ...]     copy one  modelzoo init RECIPE")


def init(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", autocompletion=complete.recipes, help="Name of a recipe; `modelzoo recipes` lists them."),
    ],
    output: Annotated[Path | None, typer.Option(help="File to write; by default RECIPE.yaml here.")] = None,
) -> None:
    """Copy a recipe's commented YAML here, to be edited and trained.

    A file that exists is never overwritten. Paths beside the shipped recipe become absolute, so that the copy works anywhere.
    """
    from modelzoo.config.recipes import recipe_path
    from modelzoo.errors import SaveError

    source = recipe_path(recipe)
    target = output or Path(f"{recipe}.yaml")
    text = re.sub(
        r"(?m)^(\s*\w+: )\./(\S+)", lambda found: f"{found[1]}{json.dumps(str(source.parent / found[2]))}", source.read_text()
    )
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SaveError(f"{target} exists already and is left as it is; choose another name with --output FILE") from None
    except OSError as error:
        raise SaveError(f"{target} cannot be written: {error.strerror}") from None
    say(f"wrote {target}; edit it, then: modelzoo train {target if target.suffix in {'.yaml', '.yml'} else target.resolve()}")


def explain(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY", autocompletion=complete.keys, help="A setting such as optimizer.lr, a section, or Hugging Face's name."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a setting means: values, unit, default, Hugging Face's name for it. Without KEY, all of them."""
    from modelzoo.config.keys import list_keys
    from modelzoo.config.problems import suggest_key
    from modelzoo.config.schema import RunSettings
    from modelzoo.errors import ConfigError

    known = list(list_keys(RunSettings))
    chosen = [item for item in known if _is_meant(key, item.path, item.aliases)]
    if not chosen:
        raise ConfigError(f"setting {key} is not known; {suggest_key(str(key))}")
    if as_json:
        say_json([{**vars(item), "default": item.default} for item in chosen])
    elif len(chosen) > 6:
        defaults = ["(needed)" if item.required else _shown(item.default) for item in chosen]
        rows = [[item.path, default, item.meaning] for item, default in zip(chosen, defaults, strict=True)]
        say(columns([["key", "default", "meaning"], *rows], width=terminal_width()))
        say("\n more about one: modelzoo explain KEY     set one: key=value or --key value after RECIPE")
    else:
        for item in chosen:
            default = "none: it must be given" if item.required else _shown(item.default)
            facts = [("value", item.expects), ("unit", item.unit), ("default", default), ("also", ", ".join(item.aliases))]
            say(f"{item.path}\n{columns([[item.meaning]], indent=2, width=terminal_width())}")
            say(columns([[name, value] for name, value in facts if value], indent=2, width=terminal_width()))


def _shown(value: object) -> str:
    """Return a default as it would stand in a recipe."""
    from modelzoo.config.problems import show_value

    if isinstance(value, str) and value:
        return value
    return show_value(list(value) if isinstance(value, tuple) else value)


def _is_meant(word: str | None, path: str, aliases: tuple[str, ...]) -> bool:
    """Return whether what was asked for is this setting: its path, its section, its last part or an alias."""
    return word is None or word in (path, path.partition(".")[0], path.rpartition(".")[2]) or word in aliases
