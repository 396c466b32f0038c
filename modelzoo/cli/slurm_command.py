"""`modelzoo slurm`: an sbatch file for a recipe, which starts it on many nodes and goes on by itself after every preemption."""

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from modelzoo.cli import completing as complete
from modelzoo.cli.console import columns, say
from modelzoo.errors import ConfigError
from modelzoo.quantities import counted

__all__ = ["sbatch_text", "slurm"]

WARNING_S = 180
"""Seconds before the time limit at which the ranks are told to save; a save must fit into it."""
TIME = re.compile(r"(\d+-)?\d+(:\d{1,2}){0,2}")

TEMPLATE = """\
#!/bin/bash
# {title}
# Submit it with: sbatch {file}
# The ranks are told {warning} s before the limit (and when they are preempted): they finish the step, save and end with code 75.
# The job is then put back into the queue, and goes on from what was saved.
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={ranks}
{gpu_lines}#SBATCH --cpus-per-task={cores}
#SBATCH --time={time}
{partition_line}#SBATCH --output={name}-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@{warning}

set -u
cd "$SLURM_SUBMIT_DIR" || exit 1
run={runs}/{name}-"$SLURM_JOB_ID"-001
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
echo "nodes $SLURM_JOB_NUM_NODES, processes $SLURM_NTASKS; they meet on $head"

if [ -f "$run/resolved.yaml" ]; then
    command=(python -m modelzoo resume "$run")
else
    command=(python -m modelzoo train {recipe}{settings} output.folder={runs} output.name={name}-"$SLURM_JOB_ID")
fi

# a preempted job's shell is sent SIGTERM too: it stays until srun has ended
trap : TERM USR1
srun --kill-on-bad-exit=0 "${{command[@]}}" &
step=$!
wait "$step"
code=$?
while kill -0 "$step" 2> /dev/null; do
    wait "$step"
    code=$?
done
if [ "$code" -eq 75 ]; then
    echo "saved; job $SLURM_JOB_ID goes back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def slurm(
    ctx: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", autocompletion=complete.recipes, help="As for train; key=value after it changes a setting."
        ),
    ],
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="One process for each; 0 computes on CPUs.")] = 1,
    ranks_per_node: Annotated[int | None, typer.Option(min=1, help="Processes a node; by default one a GPU.")] = None,
    cpus_per_rank: Annotated[int, typer.Option(min=1, help="Cores for each process.")] = 4,
    time: Annotated[str, typer.Option(help="Limit, as SLURM takes it: 4:00:00 or 1-12:00:00.")] = "24:00:00",
    partition: Annotated[str | None, typer.Option(help="Where to run; by default the cluster's own.")] = None,
    output: Annotated[Path | None, typer.Option(help="File to write; by default NAME.sbatch here.")] = None,
) -> None:
    """Write an sbatch file for a recipe: started by srun, saved before the time limit, put back into the queue and resumed.

    modelzoo slurm bert-boolq --nodes 4 --gpus-per-node 8 --time 12:00:00 data.train=FILE data.validation=FILE

    The recipe and its settings are checked first. Nothing is overwritten and nothing is submitted.
    """
    from modelzoo.config import resolve_settings

    settings = resolve_settings(recipe, ctx.args).settings
    ranks = ranks_per_node or max(gpus_per_node, 1)
    if settings.parallel.ranks not in (None, ranks * nodes):
        raise ConfigError(
            f"parallel.ranks={settings.parallel.ranks}: {counted(nodes, 'node')} x {counted(ranks, 'process')} start "
            f"{nodes * ranks}; leave it out"
        )
    if not TIME.fullmatch(time):
        raise ConfigError(f"--time {time}: expected minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES:SECONDS, as 4:00:00")
    name = re.sub(r"[^\w.-]", "-", settings.output.name or settings.recipe)
    file = output or Path(f"{name}.sbatch")
    text = sbatch_text(
        name=name,
        file=str(file),
        recipe=str(Path(recipe).resolve()) if Path(recipe).exists() else recipe,
        settings=[word for word in ctx.args if not word.startswith(("output.name=", "output.folder="))],
        runs=str(settings.output.folder),
        nodes=nodes,
        ranks=ranks,
        gpus=gpus_per_node,
        cores=cpus_per_rank,
        time=time,
        partition=partition,
    )
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file}: exists already; name another with --output, or remove it") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}; name another place with --output") from error
    gpus = f" on {counted(gpus_per_node, 'GPU')}" if gpus_per_node else " on CPUs"
    rows = [
        ["wrote", f"{file}: {counted(nodes, 'node')} x {counted(ranks, 'process')}{gpus}, at most {time}"],
        ["next", f"sbatch {file}"],
    ]
    say(columns(rows, indent=0, gap=4))


def sbatch_text(  # one argument for each line of the file that can be chosen
    *,
    name: str,
    file: str,
    recipe: str,
    settings: list[str],
    runs: str,
    nodes: int,
    ranks: int,
    gpus: int,
    cores: int,
    time: str,
    partition: str | None,
) -> str:
    """Return the text of the file.

    Args:
        name: Of the job and its runs.
        file: Where it will stand.
        recipe: As given to `modelzoo train`.
        settings: key=value words.
        runs: Folder of the runs, on a file system that all nodes share.
        nodes: Machines.
        ranks: Processes a node.
        gpus: GPUs a node, 0 for none.
        cores: Cores a process.
        time: Limit, in SLURM's form.
        partition: None takes the cluster's default.
    """
    return TEMPLATE.format(
        title=f"Training by the recipe {shlex.quote(recipe)} on {counted(nodes, 'node')} x {counted(ranks, 'process')}.",
        file=shlex.quote(file),
        name=name,
        nodes=nodes,
        ranks=ranks,
        gpu_lines=f"#SBATCH --gpus-per-node={gpus}\n" if gpus else "",
        cores=cores,
        time=time,
        partition_line=f"#SBATCH --partition={partition}\n" if partition else "",
        warning=WARNING_S,
        runs=shlex.quote(runs),
        recipe=shlex.quote(recipe),
        settings="".join(f" {shlex.quote(word)}" for word in settings),
    )
