"""Commands under torchrun: all processes share the work of a command, or the first does it alone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from threading import Timer
from typing import Any

import typer

JOIN_SECONDS = 60  # for the others to start; PEPPERMILL_JOIN_SECONDS overrides it
NOTE_SECONDS = 5  # after which a process that waits for the others says so
REPORT_SECONDS = 10  # that a process which fails silently stays: torchrun ends all when one of them has ended


def launched() -> bool:
    """Whether torchrun, or a launcher like it, started this process as one of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def launched_rank() -> int:
    """This process's number, as its launcher says; known before the process group exists."""
    return int(os.environ["RANK"]) if launched() else 0


@contextmanager
def silence_others() -> Iterator[None]:
    """Let only the first process print, and Hugging Face draw progress bars only on its terminal."""
    if launched_rank() or sys.stderr is None or not sys.stderr.isatty():
        for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
            os.environ.setdefault(name, "1")
    if launched_rank() == 0:
        yield
    else:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            yield


@contextmanager
def processes(shared: bool, device: str) -> Iterator[bool]:
    """Whether this process works: always if the work is `shared`, through a process group; otherwise only the first.

    If several processes fail, the first of them to do so reports it, and the others end silently.
    """
    import torch.distributed as dist

    from peppermill.distributed.group import alone

    if launched() and not shared:
        with alone():
            yield launched_rank() == 0
        return
    if not launched() or dist.is_initialized():
        yield True
        return
    store = join_group(device)
    try:
        yield True
    except Exception as error:
        try:
            first = store.add("peppermill/failures", 1) == 1
        except RuntimeError:  # the process that held the store is gone
            first = True
        if not first:
            time.sleep(REPORT_SECONDS)
            raise typer.Exit(2) from error
        raise
    finally:
        dist.destroy_process_group()


def join_group(device: str) -> Any:
    """Join the process group, and give up if the others do not come."""
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    by_nccl = device in ("auto", "cuda") and torch.cuda.is_available()
    if by_nccl:
        gpu, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if gpu >= gpus:
            raise ValueError(
                f"`--device cuda` gives each process a GPU of its own, and this machine has {gpus}: start as many "
                "processes as there are GPUs, or let all of them use one with `--device cuda:0`."
            )
        torch.cuda.set_device(gpu)
    seconds = float(os.environ.get("PEPPERMILL_JOIN_SECONDS", JOIN_SECONDS))
    patience = timedelta(seconds=seconds)
    note = Timer(NOTE_SECONDS, print, [f"waiting for the other processes, {seconds:g} s at most"], {"file": sys.stderr})
    note.start()
    try:
        store, rank, count = next(rendezvous("env://", timeout=patience))
        store.set(f"peppermill/joined/{rank}", "")
        store.wait([f"peppermill/joined/{other}" for other in range(count)], patience)
    except RuntimeError as error:
        raise OSError(
            f"process {launched_rank()} of {os.environ['WORLD_SIZE']} waited {seconds:g} s for the others, and not "
            "all of them came: look at what they reported, and start all of them again."
        ) from error
    finally:
        note.cancel()
    # The group's own timeout, which is longer, is for the work: processes reach the end of a pass at different times.
    dist.init_process_group("cpu:gloo,cuda:nccl" if by_nccl else "gloo", store=store, rank=rank, world_size=count)
    return store
