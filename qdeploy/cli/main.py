"""The command line: `qdeploy COMMAND`. Each command lives in a file of its name.

Exit codes everywhere: 0 good, 1 a measured bad result, 2 bad input or an interrupted run,
3 (gate) not enough evidence.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from qdeploy.core.errors import QdeployError, UnknownNameError

# Command -> (module in qdeploy.cli, function). A module is imported when its command is looked up:
# most commands need little of the package.
_COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "init"),
    "doctor": ("doctor", "doctor"),
    "train-plan": ("train_plan", "train_plan"),
    "train": ("train", "train"),
    "calib": ("calib", "calib_app"),
    "quantize": ("quantize", "quantize"),
    "eval": ("eval", "eval_"),
    "gate": ("gate", "gate"),
    "schema": ("schema", "schema"),
    "demo": ("demo", "demo"),
}


class _Group(TyperGroup):
    """Imports a command when it is looked up, and turns whatever a user can cause into one clear
    message and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            raise UnknownNameError("command", cmd_name, _COMMANDS)
        module, attribute = _COMMANDS[cmd_name]
        found = getattr(importlib.import_module(f"qdeploy.cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            found = _typer_of(found, cmd_name)
        return typer.main.get_command(found)

    def invoke(self, ctx: Any) -> Any:
        debug = bool(ctx.params.get("debug")) or os.environ.get("QDEPLOY_DEBUG") == "1"
        try:
            return super().invoke(ctx)
        except QdeployError as error:
            _explain(error.message, error.hint, debug)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _explain(
                "interrupted: finished work is kept, nothing half-written is left", None, debug
            )
            raise typer.Exit(2) from None
        except BrokenPipeError:
            # The reader of our output (head, less) has gone: nothing is wrong.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            _explain(_os_error(error), None, debug)
            raise typer.Exit(2) from None


def _explain(message: str, hint: str | None, debug: bool) -> None:
    from qdeploy.core.console import explain, stderr

    explain(message, hint)
    if debug:
        stderr().print_exception()


def _os_error(error: OSError) -> str:
    where = f": {error.filename}" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return f"no space left on the disk{where}; what was half-written has been removed"
    return f"{error.strerror or error}{where}"


app = typer.Typer(
    name="qdeploy",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan, quantize, evaluate and gate language models: which of them may go to production, "
    "for which kind of request, decided by measurement.",
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    if version:
        from qdeploy import __version__

        typer.echo(f"qdeploy {__version__}")
        raise typer.Exit(0)


def _typer_of(function: Callable[..., Any], name: str) -> typer.Typer:
    """A command of its own from a command's function."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name)(function)
    return alone


def run() -> None:
    """Entry point of the `qdeploy` script."""
    # torch's threads spin while they wait, which on a machine shared with other work makes small
    # products many times slower; asleep they cost nothing measurable on an idle one.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Looking for pydantic's plug-ins costs more than some commands take.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    # A polite kill cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()
