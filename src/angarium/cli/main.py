"""The entry point of the command line: global options and error handling.

A command returns its exit code or raises. An AngariumError becomes one line on stderr and exit code
2 for an invalid setting, 1 otherwise; `--debug` shows the traceback. Each command imports its
dependencies when it runs, so that `--help` and completion stay fast.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from angarium import __version__
from angarium.cli.bench import bench
from angarium.cli.conversation import conversation_commands
from angarium.cli.demo import demo
from angarium.cli.dispatch import dispatch_commands
from angarium.cli.doctor import doctor
from angarium.cli.find import find
from angarium.cli.journal import journal_commands
from angarium.cli.lake import lake_commands
from angarium.cli.output import print_error, print_line
from angarium.cli.pickup import pickup_commands
from angarium.cli.publish import publish
from angarium.cli.result import result
from angarium.cli.routing import routing_commands
from angarium.cli.serve import serve
from angarium.cli.tokens import token_commands
from angarium.cli.top import top
from angarium.cli.transactions import pipeline_commands, transaction_commands
from angarium.cli.up import up
from angarium.runtime.errors import AngariumError, SettingInvalid


@dataclass
class Options:
    """Global options, filled in while the command line is read."""

    debug: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; without `arguments` that of this process."""
    code = _run(sys.argv[1:] if arguments is None else list(arguments))
    if arguments is None and "pyarrow" in sys.modules:
        # The command has released what it used. With Arrow loaded, a process was seen to abort when
        # the C++ objects of living threads were destroyed at its end ("terminate called without an
        # active exception"), so this process ends without destroying them.
        logging.shutdown()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code


def _run(given: Sequence[str]) -> int:
    options = Options()
    app = application(next((each for each in given if not each.startswith("-")), ""))
    try:
        code = app(given, prog_name="angarium", standalone_mode=False, obj=options)
    except typer.TyperException as error:
        return _misread(error)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except AngariumError as error:
        code = 2 if isinstance(error, SettingInvalid) else 1
        return _failed(str(error), code, options)
    except Exception as error:
        what = f"unexpected {type(error).__name__}: {error}"
        return _failed(f"{what}; run `angarium --debug …` to see where", 1, options)
    return code if isinstance(code, int) else 0


def application(name: str = "") -> typer.Typer:
    """All commands, or only the one with this name: to build all takes a third of a short run."""
    # Plain help: rich would double the time it takes.
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_options)
    known = name in _COMMANDS or name in _GROUPS
    for command, function in _COMMANDS.items():
        if not known or command == name:
            app.command(command)(function)
    for group, commands in _GROUPS.items():
        if not known or group == name:
            app.add_typer(commands(), name=group, hidden=group in _ALIASES)
    return app


_COMMANDS: dict[str, Callable[..., int]] = {
    "up": up,
    "serve": serve,
    "doctor": doctor,
    "publish": publish,
    "result": result,
    "demo": demo,
    "find": find,
    "top": top,
    "bench": bench,
}
_GROUPS: dict[str, Callable[[], typer.Typer]] = {
    "dispatch": dispatch_commands,
    "conversation": conversation_commands,
    "routing": routing_commands,
    "route": routing_commands,
    "transactions": transaction_commands,
    "tx": transaction_commands,
    "pickup": pickup_commands,
    "pipeline": pipeline_commands,
    "token": token_commands,
    "lake": lake_commands,
    "journal": journal_commands,
}
_ALIASES = ("route", "tx")


def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Log more, and show tracebacks of errors.")
    ] = False,
    new: Annotated[
        bool,
        typer.Option(
            "--new", help="Use .angarium in this folder, also if it is empty and another one runs."
        ),
    ] = False,
) -> None:
    """Message delivery on Redis or Valkey: in order, accounted for, nothing lost."""
    context.obj.debug = debug
    if new:
        os.environ.setdefault("ANGARIUM_HOME", ".angarium")
    if version:
        print_line(f"angarium {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print_line(context.get_help())
        raise typer.Exit


def _misread(error: typer.TyperException) -> int:
    """Print the mistake in the command line, and where to find help."""
    context = getattr(error, "ctx", None)
    path = "angarium" if context is None else context.command_path
    problem = error.format_message()
    if context is not None and ("Missing command" in problem or problem.startswith("Usage:")):
        print_line(context.get_help())  # a group without a command: list its commands
        return 2
    return _refuse(f"{problem.rstrip('.')}; see {path} --help", 2)


def _failed(problem: str, code: int, options: Options) -> int:
    if options.debug:
        import traceback

        traceback.print_exc()
    return _refuse(problem, code)


def _refuse(problem: str, code: int) -> int:
    print_error(f"angarium: {' '.join(problem.split())}")
    return code


if __name__ == "__main__":
    sys.exit(main())
