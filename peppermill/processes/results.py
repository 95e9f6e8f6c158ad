"""Results of all processes: sums over items, rows of items, and whether all were given the same job."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from peppermill.processes.group import grouped, rank
from peppermill.processes.messages import every, swap

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
LONGEST = 200  # characters of a setting that an error shows
FEW = 64  # numbers that Python adds faster than torch


def total(values: Tensor) -> float:
    """The sum over the items of all processes, in float64 and the same however the items are parted."""
    return totals(values.reshape(1, -1))[0]


def totals(rows: Tensor) -> list[float]:
    """The same for each row of [k, N], in one message: a message takes longer than many sums."""
    parts = every("sums", _high_and_low(rows))
    return [_sum([number for pair in pairs for number in pair]) for pairs in zip(*parts, strict=True)]


def own_total(values: Tensor) -> float:
    """The sum over the items that this process has, to the same last bit."""
    return own_totals(values.reshape(1, -1))[0]


def own_totals(rows: Tensor) -> list[float]:
    """The same for each row of [k, N]."""
    return [_sum(pair) for pair in _high_and_low(rows)]


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes, in order of rank, on every one of them."""
    if not grouped():
        return rows
    kinds = every("rows", [len(rows), list(rows.shape[1:]), str(rows.dtype)])
    _, width, dtype = max(kinds, key=lambda kind: bool(kind[0]))  # who has no rows does not know how wide they are
    by_nccl = rows.is_cuda and "cuda:nccl" in dist.get_backend_config()
    options: dict[str, Any] = {"dtype": getattr(torch, dtype.removeprefix("torch."))}
    buffers = [
        torch.empty(length, *width, device=rows.device if by_nccl else "cpu", **options) for length, _, _ in kinds
    ]
    buffers[rank()].copy_(rows.reshape(buffers[rank()].shape))
    every("room for rows", None)  # who has no memory left fails before the others wait for its rows
    _broadcast(buffers) if by_nccl else swap(buffers)
    return torch.cat(buffers).to(rows.device)


def agree(facts: Mapping[str, Any]) -> None:
    """Raise, on every process, where one was given something else than the first; addresses do not count."""
    first, *others = every("the settings", {name: ADDRESS.sub("", str(fact)) for name, fact in facts.items()})
    for process, other in enumerate(others, start=1):
        for name in (name for name in first if other.get(name) != first[name]):
            raise ValueError(
                f"the processes were not given the same {name}: process 0 has {_short(first[name])}, process {process} "
                f"has {_short(other.get(name, 'none'))}. Give all the same whole job: the data are parted for you."
            )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _sum(numbers: list[float]) -> float:
    return math.fsum(numbers) if all(map(math.isfinite, numbers)) else sum(numbers)


def _high_and_low(rows: Tensor) -> list[list[float]]:
    """Each row's sum as two numbers, the second what the first leaves out: the order of summing does not show in them.

    Halves are added until few numbers are left; what rounding takes from each addition is kept, exactly (Knuth).
    """
    high = (rows.cpu() if rows.device.type == "mps" else rows).double()
    low = torch.zeros_like(high)
    while high.shape[1] > FEW:
        (a, b), (c, d) = (pad(part, (0, part.shape[1] % 2)).chunk(2, dim=1) for part in (high, low))
        high = a + b
        added = high - a
        low = c + d + ((a - (high - added)) + (b - added))
    return [_pair(*row) for row in zip(high.tolist(), low.tolist(), strict=True)]


def _pair(high: list[float], low: list[float]) -> list[float]:
    """Of infinities and of what is not a number, the plain sum."""
    if not all(map(math.isfinite, high)):
        return [sum(high), 0.0]
    numbers = high + low
    found = math.fsum(numbers)
    return [found, math.fsum([*numbers, -found])]


def _broadcast(buffers: list[Tensor]) -> None:
    for process, buffer in enumerate(buffers):
        if buffer.numel():
            dist.broadcast(buffer, process)
