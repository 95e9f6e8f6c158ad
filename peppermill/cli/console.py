"""What every command shares: how it speaks, and how it fails."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from peppermill.cli.torchrun import Ended, heeding_launcher, in_processes, quiet_but_the_first, speaks
from peppermill.processes.messages import ProcessError
from peppermill.report import table
from peppermill.types import PepWarning

Command = TypeVar("Command", bound=Callable[..., Any])

UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]  # typer does not export it

debug = {"on": False}


class Commands(TyperGroup):
    """A group of commands in which what cannot be parsed gets one line, as every other mistake does."""

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            with quiet_but_the_first():
                code = super().main(*args, **{**options, "standalone_mode": False})
        except UsageError as error:
            _complain_of_usage(error)
            code = 2
        if options.get("standalone_mode", True):
            sys.exit(code)
        return code


_plain = functools.partial(Console, highlight=False, emoji=False)  # or `hf:cat:test` has an animal in it


def out() -> Console:
    """Where results go; wide enough for the table where there is no terminal to ask."""
    return _plain(width=None if sys.stdout.isatty() else 140, soft_wrap=False)


def say(text: str) -> None:
    """A line of results, never broken: what it says may be meant to be copied."""
    out().print(text, markup=False, soft_wrap=True)


def plain_errors(command: Command, shared: bool = False) -> Command:
    """A mistake of the user's gets a line or two and exit code 2; Ctrl-C gets 130; `--debug` gets the traceback.

    Of several processes all run a command whose work is `shared`, and the first any other; the first speaks.
    """
    run = in_processes(command, shared)

    @functools.wraps(command)
    @heeding_launcher()
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", PepWarning)
                warnings.showwarning = _note
                return run(*args, **kwargs)
        except KeyboardInterrupt as error:
            _complain("interrupted: no file was left half-written, and what was finished is kept.", error)
            raise typer.Exit(130) from None
        except Ended as error:
            _complain("ended by SIGTERM: another process was lost, or the job was ended from outside.", error)
            raise typer.Exit(143) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if debug["on"]:
                raise
            _complain(_one_line(error), error)
            raise typer.Exit(2) from None

    return guarded  # type: ignore[return-value]


def show_methods(content: Mapping[str, Any]) -> None:
    """The table of methods of a run."""
    shown = Table(
        title=escape(content["title"]),
        caption=escape(table.caption(content)),
        title_justify="left",
        caption_justify="left",
    )
    for title in table.header(content):
        shown.add_column(title, no_wrap=True)
    for cells in table.rows(content):
        shown.add_row(*(escape("\n".join(part for part in cell if part)) for cell in cells), end_section=True)
    out().print(shown)


def show_sweep(content: Mapping[str, Any]) -> None:
    """The points of a sweep, the best in bold."""
    shown = Table(*table.sweep_header(content))
    best = max(point["log_likelihood"] for point in content["points"] if point["log_likelihood"] is not None)
    for point in content["points"]:
        cells = table.sweep_cells(point)
        shown.add_row(*cells, style="bold" if point["log_likelihood"] == best else None)
    out().print(shown)


def _complain(message: str, error: BaseException | None = None) -> None:
    if speaks(error):
        _plain(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(message)}")


def _complain_of_usage(error: Any) -> None:
    """Nothing where a command without arguments has shown its help already. All processes have the same mistake."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if message:
        command = error.ctx.command_path if error.ctx else "peppermill"
        colon = "" if message.endswith("?") else ":"
        _complain(f"{message[0].lower()}{message[1:]}{colon} `{command} --help` shows what there is.")


def _one_line(error: Exception) -> str:
    expected = isinstance(error, (OSError, ImportError, ProcessError)) or (
        isinstance(error, (ValueError, TypeError)) and _is_ours(error)
    )
    message = " ".join(str(error).split()) or type(error).__name__
    return message if expected else f"{type(error).__name__}: {message} (`peppermill --debug ...` shows where.)"


def _is_ours(error: Exception) -> bool:
    """Whether this package raised it, with words for the user: a network may raise a ValueError of its own."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return frame.f_code.co_filename.startswith(str(Path(__file__).parents[1]))


def _note(message: Warning | str, *_: Any, **__: Any) -> None:
    if speaks():
        _plain(stderr=True, soft_wrap=True).print(f"[yellow]note:[/] {escape(str(message))}")
