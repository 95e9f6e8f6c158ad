"""A line that says how far a long job is: shown after two seconds, on a terminal only, and gone when the job is "
"done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from peppermill.processes.group import rank
from peppermill.types import Tick

PATIENCE = 2.0  # seconds before a line appears
INTERVAL = 0.2  # seconds between two updates


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Tick]:
    """A function to call with the number of items done; `total` is left out where nobody knows it.

    Of several processes, the first shows its line.
    """
    if not is_shown():
        yield lambda items: None
        return
    line = _Line(what, total)
    try:
        yield line.advance
    finally:
        line.clear()


def is_shown() -> bool:
    """Whether somebody looks, and this process is the one to show something."""
    return sys.stderr.isatty() and rank() == 0


class _Line:
    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total = what, total
        self.done, self.start, self.shown = 0, time.monotonic(), 0.0

    def advance(self, items: int) -> None:
        self.done += items
        now = time.monotonic()
        if now - self.start >= PATIENCE and now - self.shown >= INTERVAL:
            self.shown = now
            sys.stderr.write(f"\r\033[K{self.text(now - self.start)}")
            sys.stderr.flush()

    def text(self, seconds: float) -> str:
        rate = self.done / seconds
        if self.total is None:
            return f"{self.what}  {self.done:,} forward passes of one item, {rate:,.0f}/s, {seconds:.0f} s"
        filled = min(30, 30 * self.done // max(1, self.total))
        left = max(0.0, self.total - self.done) / rate
        bar = "█" * filled + "░" * (30 - filled)
        return f"{self.what}  {bar}  {self.done:,}/{self.total:,}, {rate:,.0f}/s, {left:.0f} s left"

    def clear(self) -> None:
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
