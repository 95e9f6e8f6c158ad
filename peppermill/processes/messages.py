"""What travels between processes: short texts, and tensors; a failure travels in place of a text.

Each process talks to each, so that all notice at once when one is gone; in a ring, only its neighbors would.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from peppermill.processes.group import count, grouped, rank

FRAME = 4096  # bytes that always travel; a longer text needs a second round
TAG = 6180  # tells our messages from others' in the same group

_gloo: dict[Any, Any] = {}  # beside a group that carries only what lies on GPUs, one of ours


class ProcessError(RuntimeError):
    """Another process failed or was lost: the one with the number `process`."""

    def __init__(self, message: str, process: int) -> None:
        super().__init__(message)
        self.process = process


def every(what: str, content: Any) -> list[Any]:
    """What every process gave here, in order of rank; it travels as JSON, in which floats keep every bit."""
    return _exchange({"what": what, "content": content}) if grouped() else [content]


def tell_failure(error: Exception) -> bool:
    """Send the error where the others expect a message, so that none waits for ever; false where one is lost."""
    with suppress(ProcessError):
        _exchange({"what": "a failure", "failure": f"{type(error).__name__}: {error}"})
        return True
    return False


def swap(buffers: list[Tensor]) -> None:
    """Send our own buffer, the one at our rank, and fill the others', which lie in main memory."""
    group = _gloo_group()
    work: list[tuple[int, Any]] = []
    for process in (process for process in range(count()) if process != rank()):
        with _may_be_lost(process):
            work += [(process, job) for job in _talk(process, buffers[rank()], buffers[process], group)]
    for process, job in work:
        with _may_be_lost(process):
            job.wait()


def _talk(process: int, ours: Tensor, theirs: Tensor, group: Any) -> Iterator[Any]:
    if theirs.numel():
        yield dist.irecv(theirs, process, group, TAG)
    if ours.numel():
        yield dist.isend(ours, process, group, TAG)


@contextmanager
def _may_be_lost(process: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ProcessError(
            f"process {process} of {count()} was lost, or ended before the others did. Look at what it said; every "
            f"process must call the same functions, or use `with pm.alone():`. ({_reason(error)})",
            process,
        ) from error


def _reason(error: Exception) -> str:
    """Gloo's own words, without the line of its code and its advice."""
    text = re.sub(r"^\[\S*\] ", "", str(error).splitlines()[0])
    return re.sub(r"\. .*", "", text)[:160].rstrip(".")


def _exchange(message: Mapping[str, Any]) -> list[Any]:
    """Every process's content; another's failure is raised here, unless this process has failed itself."""
    found = [json.loads(text) for text in _swap_texts(json.dumps(message).encode())]
    for process, other in enumerate(() if "failure" in message else found):
        if "failure" in other:
            raise ProcessError(f"process {process} of {count()} failed. {other['failure']}", process)
        if other["what"] != message["what"]:
            raise ProcessError(
                f"process {process} of {count()} is at {other['what']}, and process {rank()} at {message['what']}: let "
                "every process call the same functions in the same order, or use `with pm.alone():`.",
                process,
            )
    return [other.get("content") for other in found]


def _swap_texts(text: bytes) -> list[bytes]:
    """A first round has the length of each text and its beginning; where one is longer, a second has the rest."""
    framed = len(text).to_bytes(8, "big") + text
    beginnings = _swap_bytes([FRAME] * count(), framed[:FRAME])
    lengths = [8 + int.from_bytes(beginning[:8], "big") for beginning in beginnings]
    if max(lengths) <= FRAME:
        return [beginning[8:length] for beginning, length in zip(beginnings, lengths, strict=True)]
    rests = _swap_bytes([max(0, length - FRAME) for length in lengths], framed[FRAME:])
    return [(a + b)[8:length] for a, b, length in zip(beginnings, rests, lengths, strict=True)]


def _swap_bytes(lengths: list[int], text: bytes) -> list[bytes]:
    arrays = [np.zeros(length, dtype=np.uint8) for length in lengths]
    arrays[rank()][: len(text)] = np.frombuffer(text, dtype=np.uint8)
    swap([torch.from_numpy(array) for array in arrays])
    return [array.tobytes() for array in arrays]


def _gloo_group() -> Any:
    """The group itself where it carries what lies in main memory; else one of ours beside it."""
    world = dist.group.WORLD
    if "cpu:gloo" in dist.get_backend_config():
        return world
    if world not in _gloo:
        _gloo.clear()
        _gloo[world] = dist.new_group(backend="gloo")
    return _gloo[world]
