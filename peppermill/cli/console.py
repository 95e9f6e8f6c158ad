"""What every command shares: how it prints, where it writes, and how it fails."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from peppermill.cli import torchrun

UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]  # typer does not export it
INTERRUPTED = 130  # the exit code after Ctrl-C

debug = {"on": False}


def harden_streams() -> None:
    """Make every text printable, also on a terminal without Greek letters and on a closed stream."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="replace")


def say(text: object) -> None:
    """Print a line or a table of results; it is never wrapped, because users copy commands from it.

    If nobody reads it any more, as after `| head`, the command goes on: it still has files to write.
    """
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def notes() -> Iterator[None]:
    """Print this library's warnings as notes, one line each; those of other libraries only with `--debug`."""
    from peppermill.plumbing.warnings import PepWarning

    def note(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if torchrun.launched_rank() == 0 and (debug["on"] or issubclass(category, PepWarning)):
            complain(str(message), "note", "yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("always", PepWarning)
        warnings.showwarning = note
        yield


def complain(message: str, kind: str = "error", style: str = "bold red") -> None:
    """Print a line on the error stream."""
    console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    console.print(f"[{style}]{kind}:[/] {escape(message)}")


def complain_of(error: Exception) -> int:
    """Report an error in one line, with its type if it was not written for users, and return the exit code."""
    if isinstance(error, typer.Abort):  # Ctrl-C, in older versions of typer
        return INTERRUPTED
    if not isinstance(error, UsageError):
        *_, (frame, _) = walk_tb(error.__traceback__)
        ours = frame.f_code.co_filename.startswith(str(Path(__file__).parents[1]))
        for_users = (OSError, ImportError, ValueError, TypeError) if ours else (OSError, ImportError)
        expected = isinstance(error, for_users) or type(error).__module__.startswith("peppermill.")
        message = " ".join(str(error).split()) or type(error).__name__
        with_type = f"{type(error).__name__}: {message} (`peppermill --debug ...` shows where.)"
        complain(message if expected else with_type)
        return 2
    if torchrun.launched_rank():
        time.sleep(torchrun.REPORT_SECONDS)
        return 2
    message = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    if message:  # without arguments, the help was shown and the message is empty
        context = error.ctx  # type: ignore[attr-defined]
        command = context.command_path if context else "peppermill"
        colon = "" if message.endswith("?") else ":"
        complain(f"{message[0].lower()}{message[1:]}{colon} see `{command} --help`.")
    return 2
