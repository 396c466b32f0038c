"""The `modelzoo` command: its commands, its first screen, and how an error ends it.

Nothing heavy is imported before a command runs: settings are checked without torch, and torch is loaded only by what needs it.
"""

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import typer
from typer.core import TyperGroup

from modelzoo.cli.catalogue import explain, init, recipes
from modelzoo.cli.check_command import check
from modelzoo.cli.checkpoint_commands import convert, verify
from modelzoo.cli.completing import SettingsCommand
from modelzoo.cli.console import Ended, say, say_error
from modelzoo.cli.data_command import data_show
from modelzoo.cli.demo import demo
from modelzoo.cli.doctor import doctor
from modelzoo.cli.export_command import export
from modelzoo.cli.families import models
from modelzoo.cli.generate_command import generate
from modelzoo.cli.info_command import info
from modelzoo.cli.plan_command import plan
from modelzoo.cli.push_command import push
from modelzoo.cli.run_commands import compare, plot, runs
from modelzoo.cli.screen import Command, first_screen
from modelzoo.cli.show_command import show
from modelzoo.cli.slurm_command import slurm
from modelzoo.cli.store_command import data_build
from modelzoo.cli.training_commands import resume, train
from modelzoo.cli.use_commands import evaluate, predict
from modelzoo.errors import InputError, ModelZooError, closest
from modelzoo.launch import CtrlC

__all__ = ["COMMANDS", "build_app", "main"]

COMMANDS = (
    Command("start", recipes, "", "complete runs that ship with the project"),
    Command("", init, "RECIPE", "copy a recipe here to edit it"),
    Command("", demo, "[key=value ...]", "ten seconds on two cores, without network", takes_settings=True),
    Command(
        "look",
        data_show,
        line="modelzoo data show RECIPE | data build ..",
        summary="tokens and loss mask; a store to pretrain on",
        takes_settings=True,
        name="data show",
    ),
    Command("", data_build, summary="texts tokenized once, read from disk", name="data build", is_named=False),
    Command("", plan, "RECIPE [key=value ...]", "memory, time, disk, and what would fit", takes_settings=True),
    Command("", check, "RECIPE [key=value ...]", "everything that can fail, before it costs", takes_settings=True),
    Command("run", train, "RECIPE [key=value ...]", "train; a recipe by name or YAML file", takes_settings=True),
    Command("", resume, "RUN [key=value ...]", "continue a run exactly where it stopped", takes_settings=True),
    Command("", slurm, "RECIPE --nodes N", "an sbatch file that requeues and resumes", takes_settings=True),
    Command("use", evaluate, "RUN|MODEL data=FILE", "metrics on rows of your own", takes_settings=True, name="eval"),
    Command("", predict, "RUN|MODEL --text TEXT", "labels for texts", takes_settings=True),
    Command("", generate, "RUN|MODEL --text TEXT", "what a language model writes", takes_settings=True),
    Command("after", runs, "[FOLDER]", "what became of your runs"),
    Command(
        "",
        show,
        line="modelzoo show RUN | plot RUN.. | compare RUN..",
        summary="one run or recipe; curves; runs side by side",
        takes_settings=True,
    ),
    Command("", plot, summary="curves as text or picture", is_named=False),
    Command("", compare, summary="what differs between runs", is_named=False),
    Command("", export, line="modelzoo export RUN DST | push RUN USER/NAME", summary="a result for others, verified; to the hub"),
    Command("", push, summary="a result to the hub", is_named=False),
    Command("models", info, line="modelzoo info MODEL | models [NAME]", summary="one model; all families, sizes and tasks"),
    Command("", models, summary="families, their sizes and tasks", is_named=False),
    Command("", convert, line="modelzoo convert SRC DST | verify FOLDER", summary="to a clean folder; logits against transformers"),
    Command("", verify, summary="logits and gradients against transformers", is_named=False),
    Command("help", doctor, "", "versions and traps; what a setting means", line="modelzoo doctor | explain KEY"),
    Command("", explain, "[KEY]", "what a setting means", is_named=False),
)

_INTERRUPTED = 130
_SETTINGS_CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


class _Group(TyperGroup):
    """The top command: one screen for help, a suggestion for an unknown command."""

    def get_help(self, ctx: Any) -> str:
        """Return the first screen."""
        return first_screen(version("modelzoo-hub"), COMMANDS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the first screen."""
        formatter.write(self.get_help(ctx) + "\n")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is meant, or refuse with the nearest one."""
        if args[0] not in self.commands:
            near = closest(args[0], self.commands)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.commands)}"
            raise InputError(f"command {args[0]!r} is not known; {hint}")
        return super().resolve_command(ctx, args)


def build_app() -> typer.Typer:
    """Return the application with all commands."""
    app = typer.Typer(cls=_Group, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.callback(invoke_without_command=True)
    def first(
        ctx: typer.Context,
        show_version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    ) -> None:
        if show_version:
            say(f"modelzoo {version('modelzoo-hub')}")
        elif ctx.invoked_subcommand is None:
            say(ctx.get_help())

    groups: dict[str, typer.Typer] = {}
    for command in COMMANDS:
        context, kind = (_SETTINGS_CONTEXT, SettingsCommand) if command.takes_settings else ({}, None)
        group, _, word = command.word.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=command.summary)
            app.add_typer(groups[group], name=group)
        home = groups[group] if group else app
        home.command(word, cls=kind, context_settings=context)(command.function)
        if group and command.function.__doc__ and len(groups[group].registered_commands) == 1:
            # one command alone would be called without its name
            groups[group].callback()(_nothing)
    return app


def _nothing() -> None:
    """Look at the data of a recipe."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: What was typed after `modelzoo`; by default the process's own arguments.

    Returns:
        The exit code: 0, the error's own (2 for wrong input), 75 for a run that was stopped and can be resumed, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    is_debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        code = _run(words, is_debug)
        if code == _INTERRUPTED:  # typer turns Ctrl-C into this code without a word
            say_error("interrupted")
        return code if isinstance(code, int) else 0
    except Ended as end:
        return end.exit_code
    except ModelZooError as error:
        if is_debug:
            raise
        say_error(str(error), everywhere=not isinstance(error, InputError))
        return error.exit_code
    except typer.TyperException as error:
        say_error(f"{_of_option(error)}\n  modelzoo {words[0] if words else ''} --help says what it takes")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        say_error("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:  # `modelzoo explain | head` closes our stdout
        sys.stderr.close()
        return 0
    except Exception as error:  # the last line of defence: a fault of ours is one block, and its trace is there when asked for
        if is_debug:
            raise
        say_error(_fault(error), everywhere=True)
        return 1


def _run(words: list[str], is_debug: bool) -> Any:
    """Run the command; an error of after Ctrl-C is what a library made of it."""
    with CtrlC() as ctrl_c:
        try:
            return build_app()(words, prog_name="modelzoo", standalone_mode=False, obj={"is_debug": is_debug})
        except Exception as error:
            if ctrl_c.was_pressed and not isinstance(error, Ended):
                raise KeyboardInterrupt from error
            raise


def _of_option(error: Exception) -> str:
    """Return what is wrong with a word of the command line, and with which."""
    parameter = getattr(error, "param", None)
    names = ", ".join(getattr(parameter, "opts", ()) or ())
    text = str(error).removeprefix("Value error, ")
    return text if not names.startswith("-") or names in text else f"{names}: {text[:1].lower()}{text[1:]}"


def _fault(error: Exception) -> str:
    """Return one block about an exception that modelzoo did not raise on purpose."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None else ""
    advice = "this was not foreseen; the same command with --debug shows where it came from"
    return f"{type(error).__name__}: {error}{place}\n  {advice}"
