"""`modelzoo models`: the families that can be loaded, and one of them in detail."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from modelzoo.cli.console import columns, say, say_json, terminal_width

__all__ = ["models", "size_range"]


def models(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A family, as llama; all of them without it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """List the model families with tasks, published sizes and distance to transformers, or show one with all its config keys."""
    from importlib.resources import files

    from modelzoo.models.auto import FAMILIES, model_class

    facts = json.loads(files("modelzoo.models").joinpath("parity.json").read_text())
    chosen = list(FAMILIES) if name is None else [model_class(name).family]
    rows = [_row(family, facts["families"].get(family, {})) for family in chosen]
    if as_json:
        say_json({"transformers": facts["transformers"], "measured": facts["date"], "families": rows})
    elif name is None:
        _list(rows, f"transformers {facts['transformers']} on tiny models, {facts['date']}")
    else:
        _show(rows[0], f"transformers {facts['transformers']}, {facts['date']}")


def size_range(counts: Iterable[int]) -> str:
    """Return the smallest and the largest number of parameters as "124M to 1.6B"; "none" where there is none.

    Args:
        counts: Parameters of each published checkpoint.
    """
    ordered = sorted(counts)
    if not ordered:
        return "none"
    return " to ".join(dict.fromkeys(_short(count) for count in (ordered[0], ordered[-1])))


def _short(count: int) -> str:
    """Return a number of parameters in millions, or from a billion on in billions."""
    if count < 999_500_000:
        return f"{count / 1e6:.0f}M"
    return f"{count / 1e9:.1f}B" if count < 99.5e9 else f"{count / 1e9:.0f}B"


def _row(family: str, measured: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a family."""
    from modelzoo.converters import converter_for
    from modelzoo.models.auto import model_class

    converter, cls = converter_for(family), model_class(family)
    parity = {key: measured[key] for key in ("compared", "output", "gradient") if key in measured}
    return {
        "family": family,
        "class": cls.__name__,
        "tasks": list(cls.tasks),
        "architectures": dict(converter.architectures),
        "sizes": measured.get("sizes", {}),
        "parity": parity,
        "variants": measured.get("variants", []),
        "config_keys": converter.table.keys(),
        "required": {need.theirs: list(need.allowed) for need in converter.table.require},
    }


def _figures(parity: dict[str, Any]) -> list[str]:
    return [f"{parity[key]:.0e}" if key in parity else "naive" for key in ("output", "gradient")]


def _list(rows: list[dict[str, Any]], measured_on: str) -> None:
    table = [("family", "class", "sizes", "outputs", "gradients", "tasks")]
    for row in rows:
        sizes = size_range(row["sizes"].values())
        table.append((row["family"], row["class"], sizes, *_figures(row["parity"]), ", ".join(row["tasks"])))
    say(columns(table, width=terminal_width()))
    say("\n sizes               parameters of the smallest and the largest published checkpoint")
    say(f" outputs, gradients  largest difference from {measured_on};")
    say("                     naive: transformers has no such family, and a naive model written from the paper is the reference")
    say(" more about one  modelzoo models NAME")
    say(' load one   modelzoo.from_pretrained("FOLDER or hub id", task="classification")')
    say(" train one  modelzoo train bert-boolq model=FOLDER")


def _show(row: dict[str, Any], measured_on: str) -> None:
    say(f"{row['family']}: modelzoo.{row['class']}\n")
    say(columns([("task", "class in its files"), *row["architectures"].items()]))
    sizes = [(name, f"{count:,}") for name, count in row["sizes"].items()] or [("none is public", "")]
    say("\n" + columns([("published checkpoint", "parameters"), *sizes]))
    output, gradient = _figures(row["parity"])
    if row["parity"].get("compared"):
        count = row["parity"]["compared"]
        say(f"\n compared with {measured_on}: {count} tiny models, one for each task and each of the variants below;")
        say(f" largest difference of an output {output}, of a gradient {gradient}")
    else:
        say("\n compared with a naive model written from the paper, since transformers has no such family")
    for variant in row["variants"]:
        say("   " + ", ".join(f"{key}={_json(value)}" for key, value in variant.items()))
    keys = [(key, ours, default) for key, (ours, default) in row["config_keys"].items()]
    say(
        "\n"
        + columns([("key of config.json", "argument", "default"), *((key, ours, _json(default)) for key, ours, default in keys)])
    )
    if row["required"]:
        need = [(key, " or ".join(map(_json, allowed))) for key, allowed in row["required"].items()]
        say("\n" + columns([("refused unless", "it is"), *need]))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
