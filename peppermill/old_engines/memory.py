"""Out of memory halves what is run at once and goes on, and says so once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from peppermill.data import map_tensors, output_tensor
from peppermill.plumbing.warnings import warn_user


class Room:
    """How many members, and how many items, were found to fit; nothing is known before memory ran out."""

    def __init__(self) -> None:
        self.members: int | None = None
        self.items: int | None = None
        self._told = False

    def fewer_members(self, count: int) -> None:
        self.members = count
        self._tell(f"{count} members")

    def fewer_items(self, count: int) -> None:
        self.items = count
        self._tell(f"{count} items")

    def _tell(self, what: str) -> None:
        torch.cuda.empty_cache()
        if not self._told:
            self._told = True
            warn_user(
                f"memory ran out: going on with {what} at a time, and with fewer where that is still too much. The "
                "result is the same; a smaller `batch_size` avoids the detour."
            )


def halving(attempt: Callable[[int], Tensor], most: int, shrunk: Callable[[int], None]) -> Tensor:
    """`attempt(n)` with n = `most`, or half of it, or half of that, until memory suffices."""
    while True:
        try:
            return attempt(most)
        except torch.cuda.OutOfMemoryError:
            if most <= 1:
                raise
        most = -(-most // 2)  # outside of `except`, which holds the tensors of what failed
        shrunk(most)


def in_parts(call: Callable[[Any, Any], Any], args: Any, kwargs: Any, room: Room) -> Tensor:
    """The network's outputs for one batch, from parts of the batch where the whole does not fit."""
    if room.items is None:
        try:
            return output_tensor(call(args, kwargs))
        except torch.cuda.OutOfMemoryError:
            if _items(args, kwargs) <= 1:
                raise
        room.fewer_items(-(-_items(args, kwargs) // 2))  # outside of `except`, which holds what failed
    count = _items(args, kwargs)
    return halving(
        lambda items: _joined(call, args, kwargs, count, items), min(count, room.items or count), room.fewer_items
    )


def _joined(call: Callable[[Any, Any], Any], args: Any, kwargs: Any, count: int, items: int) -> Tensor:
    if items >= count:
        return output_tensor(call(args, kwargs))
    outputs = []
    for start, (some, named) in _parts(args, kwargs, count, items):
        outputs.append(output_tensor(call(some, named)))
        if outputs[-1].shape[:1] != (min(items, count - start),):
            raise RuntimeError(
                f"memory ran out on a batch of {count} items, and the batch cannot be cut, because the network's "
                f"outputs {list(outputs[-1].shape)} do not begin with the items: use a smaller `batch_size`."
            )
    return torch.cat(outputs)


def _parts(args: Any, kwargs: Any, count: int, items: int) -> Iterator[tuple[int, tuple[Any, Any]]]:
    """Where each part starts, and its arguments: what has one row for each item is cut, the rest is for all."""
    for start in range(0, count, items):

        def cut(value: Tensor, start: int = start) -> Tensor:
            return value[start : start + items] if value.shape[:1] == (count,) else value

        yield start, (map_tensors(cut, args), map_tensors(cut, kwargs))


def _items(args: Any, kwargs: Any) -> int:
    """The length of the first tensor."""
    lengths: list[int] = []
    map_tensors(lambda value: lengths.extend(value.shape[:1]), (args, kwargs))
    return lengths[0] if lengths else 1
