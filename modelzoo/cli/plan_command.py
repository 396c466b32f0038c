"""`modelzoo plan`: what a recipe will take, here or on another machine, before anything is allocated."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from modelzoo.cli import completing as complete
from modelzoo.cli.console import Ended, say, say_json
from modelzoo.errors import ConfigError

__all__ = ["plan"]

DOES_NOT_FIT = 3
"""Exit code of a plan that does not fit."""


def plan(
    ctx: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", autocompletion=complete.recipes, help="As for train; key=value after it changes a setting."
        ),
    ],
    ranks: Annotated[int | None, typer.Option(min=1, help="Processes; by default parallel.ranks, or one.")] = None,
    machine: Annotated[
        str, typer.Option(help="this, a known one (h100-80gb, a100-80gb, ...), or a YAML file of figures.")
    ] = "this",
    device_memory: Annotated[str | None, typer.Option(help="Of an accelerator, as 80 (GiB) or 80GB.")] = None,
    host_memory: Annotated[str | None, typer.Option(help="Of the host for one rank, as 48 (GiB) or 64GB.")] = None,
    disk_bandwidth: Annotated[str | None, typer.Option(help="Reading and writing, as 3 (GB/s) or 500MB/s.")] = None,
    task: Annotated[str | None, typer.Option(help="Another head than the recipe's, as causal_lm.")] = None,
    why: Annotated[str | None, typer.Option(help="Explain one line of the plan: activations, gather, compute, ...")] = None,
    measure: Annotated[bool, typer.Option("--probe", help="Measure this machine first, for about 2 seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Say what a run takes, tier by tier, what it moves, how long a step is, whether it fits, and what else would.

    modelzoo plan bert-boolq model=FOLDER data.train=FILE

    modelzoo plan bert-boolq model=FOLDER --ranks 8 --machine a100-80gb parallel.precision=bfloat16

    The model's config.json is enough: no weight is read, and nothing of the model's size is allocated. Where model and data are on
    this machine, the first 10,000 training rows are read for their lengths; else each is taken as long as data.max_length allows.
    Exit code 3 if it does not fit.
    """
    from modelzoo.config import resolve_settings

    settings = resolve_settings(recipe, ctx.args).settings
    from modelzoo.plan import parse_amount
    from modelzoo.run import plan_training

    amounts = {
        "device_memory": None if device_memory is None else parse_amount(device_memory, bare="GiB", option="--device-memory"),
        "host_memory": None if host_memory is None else parse_amount(host_memory, bare="GiB", option="--host-memory"),
    }
    if disk_bandwidth is not None:
        rate = float(parse_amount(disk_bandwidth, bare="GB", option="--disk-bandwidth"))
        amounts |= {"disk_read": rate, "disk_write": rate}  # type: ignore[dict-item]  # rates are floats
    where = _machine(machine, amounts, is_measured=measure)
    found = plan_training(settings, ranks=ranks, machine=where, task=task)  # type: ignore[arg-type]  # the family refuses what it has not
    if why is not None:
        say(found.explain(why))
        return
    if as_json:
        say_json(found.to_json())
    else:
        say(str(found))
    if not found.fits:
        raise Ended(DOES_NOT_FIT)


def _machine(name: str, amounts: dict[str, Any], *, is_measured: bool) -> Any:
    """Return the machine that is planned for."""
    from modelzoo.plan import find_machine, probe

    if is_measured and name != "this":
        raise ConfigError(f"--probe measures this machine, found --machine {name}; leave one of the two out")
    found = find_machine(name, **amounts)
    if not is_measured:
        return found
    # what was said of the machine holds, whatever is measured
    said = {key: getattr(found, key) for key in amounts if key.startswith("disk_")}
    return dataclasses.replace(probe(found, Path.cwd()), **said)
