"""A command under torchrun: its work is shared by all processes, or left to the first."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
import torch.distributed as dist

from peppermill.processes.group import alone, launched, launched_rank, local_rank
from peppermill.processes.messages import ProcessError
from peppermill.processes.together import telling_failures

GRACE = 5.0  # seconds in which a process that is to end may still hear why


class Ended(BaseException):
    """The launcher has ended this process."""


def in_processes(command: Callable[..., Any], shared: bool) -> Callable[..., Any]:
    """The same command; of several processes that were launched, all share its work, or the first does it alone."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not launched():
            return command(*args, **kwargs)
        if shared:
            with _process_group(kwargs["device"]), telling_failures():
                return command(*args, **kwargs)
        with alone():
            return command(*args, **kwargs) if launched_rank() == 0 else None

    return run


@contextmanager
def quiet_but_the_first() -> Iterator[None]:
    """Within this, of several processes that were launched only the first prints.

    The libraries of Hugging Face draw bars of their own, which belong on a terminal, once; they read this as they are
    imported.
    """
    if launched_rank() or not sys.stderr.isatty():
        for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
            os.environ.setdefault(name, "1")
    if launched_rank() == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield


def own_gpu(device: str) -> str:
    """`cuda` is the GPU with this process's number on its machine, where several were launched."""
    return f"cuda:{local_rank()}" if device == "cuda" and launched() else device


def speaks(error: BaseException | None = None) -> bool:
    """Whether it is for this process to tell the user: for the first, and for others where the first cannot know."""
    lost_the_first = isinstance(error, ProcessError) and error.process == 0
    its_own = isinstance(error, Exception) and not isinstance(error, ProcessError)
    return launched_rank() == 0 or lost_the_first or (its_own and not getattr(error, "told_to_all", False))


@contextmanager
def heeding_launcher() -> Iterator[None]:
    """Within this, SIGTERM is an exception, `Ended`, some seconds later, where a launcher started several processes.

    torchrun ends all of them as soon as one is lost. The others then hear of the loss themselves, where they wait for
    it, and have the time to say so; the first has a second more, so that it is not itself taken for lost.
    """
    if not launched() or threading.current_thread() is not threading.main_thread():
        yield
        return
    grace = GRACE if launched_rank() else GRACE + 1
    before = [
        (number, signal.signal(number, handler))
        for number, handler in (
            (signal.SIGTERM, lambda *_: signal.setitimer(signal.ITIMER_REAL, grace)),
            (signal.SIGALRM, _end),
        )
    ]
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before:
            signal.signal(number, handler)


def _end(*_: Any) -> None:
    raise Ended


@contextmanager
def _process_group(device: str) -> Iterator[None]:
    """Gloo carries what lies in main memory; NCCL, where each process has a GPU of its own, what lies there."""
    if dist.is_initialized():
        yield
        return
    by_nccl = device == "cuda" and torch.cuda.is_available()
    if by_nccl:
        _take_gpu()
    dist.init_process_group("cpu:gloo,cuda:nccl" if by_nccl else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _take_gpu() -> None:
    if local_rank() >= torch.cuda.device_count():
        raise ValueError(
            f"`--device cuda` gives each process a GPU of its own, and this machine has {torch.cuda.device_count()}: "
            "start as many processes, or let all use one with `--device cuda:0`."
        )
    torch.cuda.set_device(local_rank())
