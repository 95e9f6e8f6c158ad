"""The part of the data that each of several processes takes.

A part is a run of whole batches, so that every call of the network is one that a single process would make, and the
parts, in order of rank, are the data in their own order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from peppermill.data import Batches, Pair, digest_of, map_tensors, split_batch
from peppermill.held import Held
from peppermill.processes.group import count, grouped, rank
from peppermill.processes.results import agree

LOADER_OPTIONS = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


@dataclass(frozen=True)
class Cut:
    """How data can be cut: the sizes of their batches, the batches from one to another, and a sample of them all."""

    sizes: Sequence[int]
    between: Callable[[int, int], Iterable[Any]]
    sample: Any


def part_of(data: Batches) -> Batches:
    """This process's batches: all, where there is one process; none, where there are fewer batches than processes."""
    if not grouped():
        return data
    if data.part is None:
        data.part = _part(data)
    return data.part


def run_of_batches(sizes: Sequence[int], process: int, processes: int) -> tuple[int, int]:
    """The first batch of a process and the first that is no longer its: each batch goes where its middle lies."""
    items, before, owners = sum(sizes), 0, []
    for size in sizes:
        owners.append(min(processes - 1, (2 * before + size) * processes // max(1, 2 * items)))
        before += size
    return sum(owner < process for owner in owners), sum(owner <= process for owner in owners)


def sizes_of(items: int, batch_size: int) -> list[int]:
    """Those of the batches of so many items."""
    return [min(batch_size, items - start) for start in range(0, items, batch_size)]


def run_of_items(sizes: Sequence[int], process: int, processes: int) -> range:
    """The items in the batches of a process."""
    first, last = run_of_batches(sizes, process, processes)
    return range(sum(sizes[:first]), sum(sizes[:last]))


def _part(data: Batches) -> Batches:
    cut = _cut(data)
    agree(
        {
            f"number of items in `{data.argument}`": sum(cut.sizes),
            f"batches of `{data.argument}`": f"{len(cut.sizes)} (digest {zlib.crc32(str(list(cut.sizes)).encode()):x})",
            f"items in `{data.argument}`": f"those with digest {digest_of(cut.sample):x}",
        }
    )
    if not sum(cut.sizes):
        raise ValueError(f"`{data.argument}` has no items: give at least one labelled batch.")
    first, last = run_of_batches(cut.sizes, rank(), count())
    return data.over(cut.between(first, last) if first < last else [], sum(cut.sizes[:first]))


def _cut(data: Batches) -> Cut:
    source = data.source
    if isinstance(source, Pair):
        return _cut_pair(source)
    if isinstance(source, Held):
        return _cut_held(source)
    if isinstance(source, list):
        return _cut_list(source, data.argument)
    if isinstance(source, DataLoader):
        _refuse_distributed_sampler(source, data.argument)
        if _has_indices(source):
            return _cut_loader(source, data)
    return _cut_batches(data)


def _cut_pair(pair: Pair) -> Cut:
    def rows(chosen: Any) -> tuple[Any, Tensor]:
        return map_tensors(lambda t: t[chosen], pair.inputs), pair.labels[chosen]

    size, sizes = pair.batch_size, sizes_of(len(pair.labels), pair.batch_size)
    sample = (pair.labels, rows(_spread(len(pair.labels))))
    return Cut(sizes, lambda first, last: Pair(*rows(slice(first * size, last * size)), size), sample)


def _cut_held(held: Held) -> Cut:
    """By what each process holds already: the few items that it does not, come from the others."""
    sizes = sizes_of(sum(held.counts), held.batch_size)
    part = held.part([run_of_items(sizes, process, count()) for process in range(count())])
    return Cut(sizes, lambda first, last: part, held.labels)


def _cut_loader(loader: DataLoader[Any], data: Batches) -> Cut:
    """By index: no process reads another's items, but for three that all read, to see that all have the same."""
    batches, again = _indices(loader, 1), _indices(loader, 2)
    data.refuse_change(batches != again)
    flat = [index for batch in batches for index in batch]
    chosen = [[flat[k]] for k in _spread(len(flat))]
    sample = list(DataLoader(loader.dataset, batch_sampler=chosen, collate_fn=loader.collate_fn))
    return Cut(
        [len(batch) for batch in batches],
        lambda first, last: _loader_of(loader, batches[first:last]),
        (torch.tensor(zlib.crc32(str(flat).encode())), sample),
    )


def _cut_list(batches: list[Any], argument: str) -> Cut:
    labels = [split_batch(batch, argument)[1] for batch in batches]
    sample = [labels, *(batches[k] for k in _spread(len(batches)))]
    return Cut([len(one) for one in labels], lambda first, last: batches[first:last], sample)


def _cut_batches(data: Batches) -> Cut:
    """By reading: every process reads all, and keeps its part."""
    labels = [labels for _, labels in data]

    def between(first: int, last: int) -> Iterable[Any]:
        return data.kept[first:last] if data.kept is not None else _Run(data.source, first, last)

    return Cut([len(one) for one in labels], between, labels)


@dataclass(frozen=True)
class _Run:
    """The batches of a source from one to another, in every pass."""

    source: Iterable[Any]
    first: int
    last: int

    def __iter__(self) -> Iterator[Any]:
        return islice(self.source, self.first, self.last)


def _indices(loader: DataLoader[Any], seed: int) -> list[list[Any]]:
    """The indices of every batch, drawn with a generator state of its own, so that nothing repeats by accident."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [list(batch) for batch in loader.batch_sampler or ()]


def _loader_of(loader: DataLoader[Any], batches: list[list[Any]]) -> DataLoader[Any]:
    options: dict[str, Any] = {name: getattr(loader, name) for name in LOADER_OPTIONS}
    return DataLoader(loader.dataset, batch_sampler=batches, **options)


def _has_indices(loader: DataLoader[Any]) -> bool:
    """Not where the data set is a stream, gives whole batches, or is read in a way of the user's own."""
    plain = type(loader).__iter__ is DataLoader.__iter__ and loader.batch_sampler is not None
    return plain and not isinstance(loader.dataset, IterableDataset)


def _spread(items: int) -> list[int]:
    """The first, the middle and the last."""
    return sorted({0, items // 2, items - 1}) if items else []


def _refuse_distributed_sampler(loader: DataLoader[Any], argument: str) -> None:
    if isinstance(loader.sampler, DistributedSampler):
        raise ValueError(
            f"`{argument}` has a DistributedSampler, which repeats items to make parts of one size, so that no score "
            "would be right: give a DataLoader without it. The data are parted for you."
        )
