"""Items of which each of several processes holds some, so that a picture is decoded by one process alone.

What a process holds is meant to be its part of the data, a run of whole batches. Where items were left out it is not
quite: those that belong to another's part are then sent there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor

from peppermill.processes.group import rank
from peppermill.processes.messages import every
from peppermill.processes.results import gather

#: The network's inputs for some items, by name; by None where it takes one array.
Arrays: TypeAlias = dict[str | None, Tensor]


@dataclass(frozen=True)
class Held:
    """Labelled items of several processes, which in order of rank are the data; every process knows all labels, [N].

    `inputs` gives those of this process's own items from one to another; `counts` says how many each process holds.
    """

    inputs: Callable[[int, int], Arrays]
    counts: list[int]
    labels: Tensor
    batch_size: int

    def __iter__(self) -> Iterator[Any]:
        raise ValueError("each process holds a part of these data: all must use them, together.")

    def part(self, runs: list[range]) -> Part:
        """This process's part, where `runs` says which items belong to which process. All processes ask at once."""
        held = [range(end - count, end) for count, end in zip(self.counts, accumulate(self.counts), strict=True)]
        moving = [[k for k in mine if k not in run] for mine, run in zip(held, runs, strict=True)]
        own = held[rank()]
        moved = self._exchanged([k - own.start for k in moving[rank()]]) if any(moving) else {}
        places = {k: place for place, k in enumerate(k for one in moving for k in one)}
        return Part(self.inputs, own, moved, places, runs[rank()], self.labels, self.batch_size)

    def _exchanged(self, rows: list[int]) -> Arrays:
        """What all processes hold for others, of this one these rows; who holds nothing does not know the names."""
        names = max(every("the inputs", list(self.inputs(0, 1)) if self.counts[rank()] else []), key=len)
        given = [self.inputs(row, row + 1) for row in rows]
        return {name: gather(torch.cat([one[name] for one in given] or [torch.empty(0)])) for name in names}


@dataclass(frozen=True)
class Part:
    """The items of a run, in batches: this process's own, and what was moved here, in its place among all that was."""

    inputs: Callable[[int, int], Arrays]
    own: range
    moved: Arrays
    places: dict[int, int]
    run: range
    labels: Tensor
    batch_size: int

    def __iter__(self) -> Iterator[Any]:
        for start in self.run[:: self.batch_size]:
            chosen = range(start, min(start + self.batch_size, self.run.stop))
            yield as_inputs(self._arrays(chosen)), self.labels[chosen.start : chosen.stop]

    def _arrays(self, chosen: range) -> Arrays:
        if chosen[0] in self.own and chosen[-1] in self.own:
            return self.inputs(chosen.start - self.own.start, chosen.stop - self.own.start)
        items = [self._item(k) for k in chosen]
        return {name: torch.cat([item[name] for item in items]) for name in items[0]}

    def _item(self, k: int) -> Arrays:
        if k in self.own:
            return self.inputs(k - self.own.start, k + 1 - self.own.start)
        place = self.places[k]
        return {name: array[place : place + 1] for name, array in self.moved.items()}


def as_inputs(arrays: Arrays) -> Any:
    """The only array where it has no name, a dict else."""
    return arrays.get(None, arrays)
