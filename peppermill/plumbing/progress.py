"""A line that says how far a long job is: shown after two seconds, on a terminal or in a notebook, then cleared."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from peppermill.distributed.group import rank
from peppermill.types import Tick

DELAY_SECONDS = 2.0  # before the line appears
INTERVAL_SECONDS = 0.2  # between two updates
BAR_CHARACTERS = 30


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Tick]:
    """A function to call with the number of items done; `total` is None if nobody knows it."""
    if not is_shown():
        yield lambda items: None
        return
    line = ProgressLine(what, total)
    try:
        yield line.advance
    finally:
        if line.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def is_shown() -> bool:
    """Whether this process shows its progress: the first of them does, on a terminal or in a notebook."""
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules) and rank() == 0


class ProgressLine:
    """The line itself: what is done, how many items, and since when."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total = what, total
        self.done, self.start, self.shown = 0, time.monotonic(), 0.0

    def advance(self, items: int) -> None:
        self.done += items
        now = time.monotonic()
        if now - self.start >= DELAY_SECONDS and now - self.shown >= INTERVAL_SECONDS:
            self.shown = now
            sys.stderr.write(f"\r\033[K{self.text(now - self.start)}")
            sys.stderr.flush()

    def text(self, seconds: float) -> str:
        rate = self.done / seconds
        if self.total is None:
            return f"{self.what}  {self.done:,} forward passes of one item, {rate:,.0f}/s, {seconds:.0f} s"
        filled = min(BAR_CHARACTERS, BAR_CHARACTERS * self.done // max(1, self.total))
        left = max(0.0, self.total - self.done) / rate
        bar = "█" * filled + "░" * (BAR_CHARACTERS - filled)
        return f"{self.what}  {bar}  {self.done:,}/{self.total:,}, {rate:,.0f}/s, {left:.0f} s left"
