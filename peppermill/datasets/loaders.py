"""DataLoaders with some options changed, and every k-th batch of any source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

LOADER_OPTIONS = (
    *("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("generator", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"),
)


def rebuild_loader(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """The same DataLoader with some arguments changed; every other option is the user's.

    Another `dataset` is read in its own order, because a sampler belongs to the items that it was made for.
    """
    kept = {name: getattr(loader, name) for name in LOADER_OPTIONS if getattr(loader, name, "") != ""}
    batches: dict[str, Any]
    if "batch_sampler" in changes:
        batches = {}
    elif loader.batch_size is None and loader.batch_sampler is not None and "dataset" not in changes:
        batches = {"batch_sampler": loader.batch_sampler}
    else:
        reordered = {"dataset", "sampler", "shuffle"} & set(changes) or isinstance(loader.dataset, IterableDataset)
        batches = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        batches |= {} if reordered else {"sampler": loader.sampler}
    return DataLoader(**{**kept, **batches, **changes})


@dataclass(frozen=True)
class Stride:
    """Every `step`-th batch of a source, in every pass."""

    source: Iterable[Any]
    first: int
    step: int

    def __iter__(self) -> Iterator[Any]:
        return islice(self.source, self.first, None, self.step)


def every(source: Any, first: int, step: int, argument: str) -> Iterable[Any]:
    """Every `step`-th batch; a DataLoader with indices does not read the others."""
    if isinstance(source, list):
        return source[first::step]
    if isinstance(source, DataLoader) and type(source.sampler).__name__ == "DistributedSampler":
        raise ValueError(
            f"`{argument}` has a DistributedSampler, which repeats items to make equal parts, so scores would be "
            "wrong: give a DataLoader without it. peppermill shards the data itself."
        )
    plain = isinstance(source, DataLoader) and type(source).__iter__ is DataLoader.__iter__
    if not plain or source.batch_sampler is None or isinstance(source.dataset, IterableDataset):
        return Stride(source, first, step)
    batches = [drawn(lambda: [list(batch) for batch in source.batch_sampler], seed) for seed in (1, 2)]
    if batches[0] != batches[1]:
        raise changing_data(argument)
    return rebuild_loader(source, batch_sampler=batches[0][first::step])


def drawn(read: Any, seed: int) -> Any:
    """What `read` returns with the global generator in a state of its own, so that nothing repeats by accident."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return read()


def changing_data(argument: str) -> ValueError:
    """The error for data that are not the same in every pass."""
    return ValueError(
        f"`{argument}` changes between two passes: it is shuffled, augmented or can be read only once. Every sigma "
        "must be judged on the same items, or L(sigma) cannot be compared. Use `shuffle=False`, the transforms of "
        "evaluation, and a DataLoader or a list of batches instead of a generator."
    )
