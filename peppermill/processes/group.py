"""Who works together: the processes of torch.distributed's process group, or this one alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch.distributed as dist

_alone: ContextVar[bool] = ContextVar("alone", default=False)


def grouped() -> bool:
    """Whether there is a process group to work with."""
    return dist.is_available() and dist.is_initialized() and not _alone.get()


def rank() -> int:
    """This process's number; 0 where there is one."""
    return dist.get_rank() if grouped() else 0


def count() -> int:
    """How many processes work together."""
    return dist.get_world_size() if grouped() else 1


@contextmanager
def alone() -> Iterator[None]:
    """Within this, a process does the whole job by itself: for what only one of several is to do."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def launched() -> bool:
    """Whether torchrun, or a launcher like it, started this process as one of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def launched_rank() -> int:
    """This process's number, as its launcher says."""
    return int(os.environ["RANK"]) if launched() else 0


def local_rank() -> int:
    """This process's number on its machine: the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0")) if launched() else 0


def on_this_machine() -> int:
    """How many processes the launcher started on this machine, among which its cores are to be shared."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if launched() else 1


def idle() -> bool:
    """Whether a launcher started several processes that know nothing of each other."""
    several = launched() and int(os.environ["WORLD_SIZE"]) > 1
    return several and not _alone.get() and dist.is_available() and not dist.is_initialized()
