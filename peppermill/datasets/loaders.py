"""Sources of batches: rows of arrays, DataLoaders with other options, every k-th batch, and whether they repeat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from peppermill.plumbing.nested import digest_of, split_batch

HEAD_ITEMS = 256  # the items that are read twice to see whether the data repeat
LOADER_OPTIONS = (
    *("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("generator", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"),
)


def rows_of(array: np.ndarray, start: int, stop: int) -> Tensor:
    """Some rows of an array; those of a mapped file are read from it, because mapped pages count as memory."""
    is_whole = not isinstance(array.base, np.ndarray) and array.flags.c_contiguous
    if isinstance(array, np.memmap) and array.mode != "c" and is_whole:  # "c": the user may have changed it in memory
        shape = (stop - start, *array.shape[1:])
        place = array.offset + start * (array.nbytes // len(array))
        found = np.fromfile(array.filename or "", array.dtype, int(np.prod(shape)), offset=place)
        return torch.from_numpy(found.reshape(shape))
    return torch.from_numpy(np.require(array[start:stop], requirements="W"))


def refuse_changing_head(source: Iterable[Any], argument: str) -> None:
    """Read the first items twice, with different states of the global generator, and raise if they differ."""
    digests = [0, 0]
    for k in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(k)
            items = 0
            for raw in source:
                batch = split_batch(raw, argument)
                digests[k], items = digest_of(batch, digests[k]), items + len(batch[1])
                if items >= HEAD_ITEMS:
                    break
    if digests[0] != digests[1] or isinstance(source, Iterator):
        raise changing_data(argument)


def changing_data(argument: str) -> ValueError:
    """The error for data that are not the same in every pass."""
    return ValueError(
        f"`{argument}` changes between two passes: it is shuffled, augmented or can be read only once. Every sigma "
        "must be judged on the same items, or L(sigma) cannot be compared. Use `shuffle=False`, the transforms of "
        "evaluation, and a DataLoader or a list of batches instead of a generator."
    )


def rebuild_loader(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """The same DataLoader with some arguments changed; every other option is the user's.

    Another `dataset` is read in its own order, because a sampler belongs to the items that it was made for.
    """
    kept = {name: getattr(loader, name) for name in LOADER_OPTIONS if getattr(loader, name, "") != ""}
    if loader.batch_size is None and loader.batch_sampler is not None and "dataset" not in changes:
        kept["batch_sampler"] = loader.batch_sampler
    elif "batch_sampler" not in changes:
        kept |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if not {"dataset", "sampler", "shuffle"} & set(changes) and not isinstance(loader.dataset, IterableDataset):
            kept["sampler"] = loader.sampler
    return DataLoader(**{**kept, **changes})


@dataclass(frozen=True)
class Stride:
    """Every `step`-th batch of a source, or list of indices of a sampler, in every pass."""

    source: Iterable[Any]
    first: int
    step: int

    def __iter__(self) -> Iterator[Any]:
        return islice(self.source, self.first, None, self.step)


def every(source: Any, first: int, step: int, argument: str) -> Iterable[Any]:
    """Every `step`-th batch; a DataLoader with indices does not read the others."""
    if type(getattr(source, "sampler", None)).__name__ == "DistributedSampler":
        raise ValueError(
            f"`{argument}` has a DistributedSampler, which repeats items to make equal parts, so scores would be "
            "wrong: give a DataLoader without it. peppermill shards the data itself."
        )
    is_plain = isinstance(source, DataLoader) and type(source).__iter__ is DataLoader.__iter__
    if not is_plain or source.batch_sampler is None or isinstance(source.dataset, IterableDataset):
        return Stride(source, first, step)
    return rebuild_loader(source, batch_sampler=Stride(source.batch_sampler, first, step))
