"""Batches that every process gets from every other: for the few examples on which all must look in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from peppermill.data import map_tensors
from peppermill.processes.group import grouped
from peppermill.processes.messages import every
from peppermill.processes.results import gather


def leaves(value: Any) -> list[Any]:
    """What a nest of dicts, tuples and lists holds, in order."""
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def everybodys(batches: list[Any], device: torch.device) -> list[Any]:
    """The batches of all processes, in order of rank, all nests of one kind; none for a process that has none.

    Tensors travel as bytes. What is no tensor must be the same in all batches.
    """
    if not grouped():
        return batches
    tensors = [[leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)] for batch in batches]
    kinds = every("the batches", [[[list(t.shape), str(t.dtype)] for t in row] for row in tensors])
    described = [row for mine in kinds for row in mine]
    width = len(described[0]) if described else 0
    columns = [_column([row[k] for row in tensors], [row[k] for row in described], device) for k in range(width)]
    rows = zip(*columns, strict=True)
    return [_filled(batches[0], iter(row)) for row in rows] if batches else []


def _column(mine: list[Tensor], described: list[Any], device: torch.device) -> list[Tensor]:
    """One tensor of each batch, of all processes."""
    content = gather(torch.cat([torch.empty(0, dtype=torch.uint8, device=device), *map(_bytes, mine)]))
    found, start = [], 0
    for shape, kind in described:
        empty = torch.empty(shape, dtype=getattr(torch, kind.removeprefix("torch.")), device=device)
        part = content[start : start + empty.nbytes].clone()  # of its own, so that its first byte is well placed
        found.append(part.view(empty.dtype).view(shape) if empty.numel() else empty)
        start += empty.nbytes
    return found


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _filled(nest: Any, values: Iterator[Tensor]) -> Any:
    return map_tensors(lambda _: next(values), nest)
