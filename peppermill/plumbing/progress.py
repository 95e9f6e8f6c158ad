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
    """A function to call with the number of items done; `total` is None if nobody knows it, and may be too small."""
    start, done, shown = time.monotonic(), 0, 0.0

    def tick(items: int) -> None:
        nonlocal done, shown
        done, now = done + items, time.monotonic()
        if now - start >= DELAY_SECONDS and now - shown >= INTERVAL_SECONDS:
            shown = now
            sys.stderr.write(f"\r\033[K{line_of(what, done, total, now - start)}")
            sys.stderr.flush()

    try:
        yield tick if is_shown() else lambda items: None
    finally:
        if shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def is_shown() -> bool:
    """Whether this process shows its progress: the first of them does, on a terminal or in a notebook."""
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules) and rank() == 0


def line_of(what: str, done: int, total: int | None, seconds: float) -> str:
    """The line itself: what is done, how many items, how fast, and how long it takes."""
    rate = done / seconds
    if total is None or done > total:
        return f"{what}  {done:,} forward passes of one item, {rate:,.0f}/s, {seconds:.0f} s"
    filled = BAR_CHARACTERS * done // max(1, total)
    bar = "█" * filled + "░" * (BAR_CHARACTERS - filled)
    return f"{what}  {bar}  {done:,}/{total:,}, {rate:,.0f}/s, {(total - done) / rate:.0f} s left"
