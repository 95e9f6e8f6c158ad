"""Processes that work together: torch.distributed's process group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch.distributed as dist

_alone: ContextVar[bool] = ContextVar("alone", default=False)


class ProcessError(RuntimeError):
    """Another process failed, left, or was given another job."""


def grouped() -> bool:
    """Whether there is a process group to work with."""
    return dist.is_available() and dist.is_initialized() and not _alone.get()


def rank() -> int:
    """This process's number; 0 without a group."""
    return dist.get_rank() if grouped() else 0


def count() -> int:
    """The number of processes that work together."""
    return dist.get_world_size() if grouped() else 1


@contextmanager
def alone() -> Iterator[None]:
    """Inside this context a process does the whole job by itself."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)
