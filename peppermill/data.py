"""Data in any accepted form, as batches on the network's device, the same in every pass.

Data that fit in memory are read once. Larger data are read in chunks, and a DataLoader's batches are cached on disk, so
that images are not decoded again for every sigma.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from peppermill.datasets.loaders import changing_data, every, refuse_changing_head, rows_of
from peppermill.distributed.group import count, grouped, rank
from peppermill.plumbing.nested import bytes_of, digest_of, map_arrays, placed, split_batch, split_inputs
from peppermill.plumbing.networks import device_of, dtype_of, state_of
from peppermill.types import Batch, Data, Inputs

MEMORY_BYTES = 2**30  # inputs beyond this are not held in memory at once


class Batches:
    """Batches (inputs, labels) of `data` on the device of `model`, and of its type if it has only one."""

    def __init__(self, data: Data, model: Any = None, *, argument: str = "data", batch_size: int = 500) -> None:
        self.argument = argument  # the caller's name for the data, for messages
        self.source = as_batches(data, batch_size, argument)
        self.device, self.dtype = device_of(model), dtype_of(model)
        self.is_share = False  # whether these are one process's batches only
        self.stored: Iterable[list[Batch]] | None = None  # after one pass, the chunks in memory or on disk
        self._share: Batches | None = None
        self._digest: int | None = None

    def __iter__(self) -> Iterator[Batch]:
        for chunk in self.chunks():
            yield from chunk

    def chunks(self) -> Iterator[list[Batch]]:
        """The data as lists of batches, each list small enough for memory."""
        if self.stored is not None:
            yield from ([self._on_device(batch) for batch in chunk] for chunk in self.stored)
            return
        if self._digest is None and not isinstance(self.source, (Arrays, list)):
            refuse_changing_head(self.source, self.argument)
        chunk: list[Batch] = []
        size, digest, chunks, cache = 0, 0, 0, None
        with torch.random.fork_rng(devices=[]):  # a DataLoader draws a number from the global generator
            batches = iter(self.source)
        for raw in batches:
            if size >= MEMORY_BYTES:
                if chunks == 0:
                    from peppermill.datasets.disk_cache import cache_for  # most data fit in memory

                    cache = cache_for(self.source)
                cache = cache if cache and cache.add(chunks, chunk) else None
                yield chunk
                chunk, size, chunks = [], 0, chunks + 1
            batch = split_batch(raw, self.argument)
            if not isinstance(self.source, Arrays):  # which are the same in every pass
                digest = digest_of(batch, digest)
            chunk.append(self._on_device(batch))
            size += bytes_of(batch[0])
        if not chunk and not self.is_share:
            raise ValueError(f"`{self.argument}` has no items: give at least one labelled batch.")
        if self._digest not in (None, digest):
            raise changing_data(self.argument)
        self._digest = digest
        if chunks == 0:
            self.stored = [chunk]
        elif cache and cache.add(chunks, chunk):
            self.stored = cache
        yield chunk

    def share(self) -> Batches:
        """This process's batches: of P processes, process r takes batches r, r + P, r + 2 P, ..."""
        if not grouped() or self.is_share:
            return self
        if self._share is None:
            self._share = self.alike(every(self.source, rank(), count(), self.argument))
            self._share.is_share = True
        return self._share

    def gather(self, parts: Sequence[tuple[Tensor, ...]], model: Any, facts: dict[str, Any]) -> list[Tensor]:
        """What each batch of `share` gave, tensors [n, ...], as columns with the rows of all processes.

        These facts, the number of items and the weights of the model must be the same in every process.
        """
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        if grouped():
            from peppermill.distributed.gather import gather_rows  # most processes work alone

            facts = {**facts, f"number of items in `{self.argument}`": self.count_items()}
            facts["weights"] = digest_of(list(state_of(model)))
            columns = gather_rows(columns, [len(part[0]) for part in parts], facts, self.device)
        if not columns or not len(columns[0]):
            raise ValueError(f"`{self.argument}` has no item that counts: every label is the ignored one.")
        return columns

    def alike(self, batches: Iterable[Any]) -> Batches:
        """Other batches, on the same device and of the same type."""
        others = Batches(batches, argument=self.argument)
        others.device, others.dtype = self.device, self.dtype
        return others

    def count_items(self) -> int | None:
        """The number of items of all processes together, if it is known without reading them."""
        if isinstance(self.source, list):
            return sum(len(split_batch(batch, self.argument)[1]) for batch in self.source)
        items = self.source if isinstance(self.source, Arrays) else getattr(self.source, "dataset", None)
        return len(items) if isinstance(items, Sized) else None

    def _on_device(self, batch: Batch) -> Batch:
        return placed(batch[0], self.device, self.dtype), batch[1].to(self.device)


@dataclass(frozen=True)
class Arrays:
    """Inputs, and labels if there are any, of one length; what is mapped into memory does not stay there."""

    inputs: Inputs
    labels: Any
    items: int
    batch_size: int

    def __len__(self) -> int:
        return self.items

    def __iter__(self) -> Iterator[tuple[Inputs, Any]]:
        for start in range(0, self.items, self.batch_size):
            yield self.read_rows(start, min(start + self.batch_size, self.items))[1:]

    def read_rows(self, start: int, stop: int) -> tuple[np.ndarray, Inputs, Any]:
        """The numbers of these rows, their inputs and their labels."""

        def cut(array: Tensor | np.ndarray) -> Tensor:
            return array[start:stop] if isinstance(array, Tensor) else rows_of(array, start, stop)

        return np.arange(start, stop), map_arrays(cut, self.inputs), map_arrays(cut, self.labels)


def as_batches(data: Data | Inputs, batch_size: int, argument: str = "data", needs_labels: bool = True) -> Any:
    """What gives the batches of any data: Arrays, a DataLoader, or an iterable of the user's own."""
    if batch_size < 1:
        raise ValueError(f"`batch_size={batch_size}` must be at least 1 item.")
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], (Tensor, np.ndarray)) and np.ndim(data[1]):
        data = data[0], data[1] if isinstance(data[1], (Tensor, np.ndarray)) else np.asarray(data[1])  # e.g. a list
    is_bare = isinstance(data, (Tensor, np.ndarray, Mapping))
    is_pair = isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], (Tensor, np.ndarray))
    is_pair |= isinstance(data, TensorDataset) and len(data.tensors) > 1
    if is_pair or (not needs_labels and (is_bare or isinstance(data, TensorDataset))):
        inputs, labels = split_inputs(getattr(data, "tensors", data))
        lengths: set[int] = set()
        map_arrays(lambda array: lengths.add(len(array)), inputs)
        items = max(lengths, default=0) if labels is None else len(labels) if np.ndim(labels) else 0
        if lengths != {items}:
            found = f"{', '.join(map(str, sorted(lengths))) or 'no'} inputs"
            found += "" if labels is None else f" and {items} labels"
            raise ValueError(f"`{argument}` has {found}: each input needs one label, and all arrays one length.")
        if isinstance(labels, np.ndarray) and labels.dtype.kind in "OSU":
            raise TypeError(f"the labels of `{argument}` have type {labels.dtype}: give class numbers, 0 to K - 1.")
        return Arrays(inputs, labels, items, batch_size)
    if not needs_labels and hasattr(data, "read_rows"):  # nothing is worth caching in a single pass
        return data
    if isinstance(data, Dataset) or hasattr(data, "__getitems__"):  # of Hugging Face, which are torch's in form only
        return DataLoader(data, batch_size=batch_size)  # type: ignore[arg-type]
    if isinstance(data, Iterable) and not isinstance(data, str) and not is_bare:
        return data
    raise TypeError(
        f"`{argument}` is a {type(data).__name__}: give a DataLoader, a Dataset, a list of batches, or a pair "
        "(inputs, labels); for predictions, inputs alone are enough."
    )
