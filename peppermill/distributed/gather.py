"""The one place where the results of all processes meet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from peppermill.distributed.group import ProcessError, count, grouped, rank

SHOWN_CHARACTERS = 200  # of a setting that an error message quotes


@contextmanager
def _meeting() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, ProcessError):
            raise
        raise ProcessError(
            f"another process failed or left before process {rank()} of {count()} had its results: look at what it "
            "printed. Every process must call the same functions, or use `with pm.alone():`. "
            f"({str(error).partition(chr(10))[0][:SHOWN_CHARACTERS]})"
        ) from error


@_meeting()
def gather_rows(columns: list[Tensor], sizes: list[int], facts: dict[str, Any], device: torch.device) -> list[Tensor]:
    """The rows of all processes in the order of the data, on every process.

    `columns` are tensors [n, ...] with the rows of this process's batches, `sizes` the number of rows of each batch.
    The k-th batch of process r is batch k * P + r of the data. `facts` must be the same everywhere.
    """
    kinds = [(tuple(column.shape[1:]), column.dtype) for column in columns] if sum(sizes) else None
    headers = exchange((sizes, kinds, {name: str(fact) for name, fact in facts.items()}))
    for process, (_, _, other) in enumerate(headers):
        for name, fact in headers[0][2].items():
            if other.get(name) != fact:
                raise ProcessError(
                    f"the processes were not given the same {name}: process 0 has {fact[:SHOWN_CHARACTERS]}, process "
                    f"{process} has {str(other.get(name))[:SHOWN_CHARACTERS]}. Pass the same, complete data and "
                    "settings to every process; peppermill shards the data itself."
                )
    known = next((kinds for _, kinds, _ in headers if kinds), None)
    if known is None:
        return columns
    lengths = [sum(sizes) for sizes, _, _ in headers]
    places = _places([sizes for sizes, _, _ in headers])
    columns = columns or [torch.zeros(0, device=device)] * len(known)  # of a process without batches
    return [
        _whole(column, kind, lengths)[places.to(column.device)] for column, kind in zip(columns, known, strict=True)
    ]


@_meeting()
def exchange(value: Any) -> list[Any]:
    """The values of all processes, on every process."""
    values: list[Any] = [value] * count()
    if grouped():
        dist.all_gather_object(values, value)
    return values


def _places(sizes: list[list[int]]) -> Tensor:
    """Where each row of the data stands when the processes' rows are laid end to end."""
    parts = [list(torch.split(torch.arange(sum(one)), one)) if one else [] for one in sizes]
    starts = torch.tensor([0, *[sum(one) for one in sizes]]).cumsum(0).tolist()
    batches = sum(map(len, parts))
    order = [parts[k % len(parts)][k // len(parts)] + starts[k % len(parts)] for k in range(batches)]
    return torch.cat(order)


def _whole(column: Tensor, kind: tuple[Any, torch.dtype], lengths: list[int]) -> Tensor:
    """The column of every process, end to end; shorter ones travel with padding."""
    shape, dtype = kind
    on_gpu = "cuda:nccl" in dist.get_backend_config() and column.is_cuda
    device = column.device if on_gpu else torch.device("cpu")
    mine = torch.zeros(max(lengths), *shape, dtype=dtype, device=device)
    if lengths[rank()]:
        mine[: lengths[rank()]] = column.to(device)
    everybody = [torch.empty_like(mine) for _ in lengths]
    dist.all_gather(everybody, mine)
    return torch.cat([part[:length] for part, length in zip(everybody, lengths, strict=True)]).to(column.device)
