"""Data in any accepted form, as batches on the network's device, the same in every pass.

Data that fit in memory are read once. Larger data are read in chunks, and a DataLoader's batches are cached on disk, so
that images are not decoded again for every sigma.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from peppermill.datasets.loaders import changing_data, drawn, every
from peppermill.distributed.group import count, grouped, rank
from peppermill.plumbing.nested import bytes_of, digest_of, map_tensors, placed, split_inputs, tensors_of
from peppermill.plumbing.networks import device_of, dtype_of
from peppermill.types import Batch, Data, Inputs

MEMORY_BYTES = 2**30  # inputs beyond this are not held in memory at once
HEAD_ITEMS = 256  # the items that are read twice to see whether the data repeat


class Batches:
    """Batches (inputs, labels) of `data` on the device of `model`, and of its type if it has only one."""

    def __init__(self, data: Data, model: Any = None, *, argument: str = "data", batch_size: int = 500) -> None:
        self.argument = argument  # the caller's name for the data, for messages
        self.source = _as_batches(data, argument, batch_size)
        self.device, self.dtype = device_of(model), dtype_of(model)
        self.is_share = False  # whether these are one process's batches only
        self.in_memory: list[Batch] | None = None
        self.on_disk: Iterable[list[Batch]] | None = None
        self._share: Batches | None = None
        self._digest: int | None = None
        self._repeats = isinstance(self.source, (Pair, list))

    def __iter__(self) -> Iterator[Batch]:
        for chunk in self.chunks():
            yield from chunk

    def chunks(self) -> Iterator[list[Batch]]:
        """The data as lists of batches, each list small enough for memory."""
        if self.in_memory is not None:
            yield self.in_memory
            return
        if self.on_disk is not None:
            yield from ([self._on_device(batch) for batch in chunk] for chunk in self.on_disk)
            return
        self._refuse_changing_head()
        chunk: list[Batch] = []
        size, digest, chunks = 0, 0, 0
        cache = None
        for raw in _without_global_generator(self.source):
            if size >= MEMORY_BYTES:
                if chunks == 0:
                    from peppermill.datasets.disk_cache import cache_for  # most data fit in memory

                    cache = cache_for(self.source)
                cache = None if cache is None else cache.added(chunk)
                yield chunk
                chunk, size, chunks = [], 0, chunks + 1
            batch = split_batch(raw, self.argument)
            if not isinstance(self.source, Pair):  # two tensors are the same in every pass
                digest = digest_of(batch, digest)
            chunk.append(self._on_device(batch))
            size += bytes_of(batch[0])
        if not chunk and not self.is_share:
            raise ValueError(f"`{self.argument}` has no items: give at least one labelled batch.")
        if self._digest not in (None, digest):
            raise changing_data(self.argument)
        self._digest = digest
        if chunks:
            self.on_disk = None if cache is None else cache.added(chunk)
        else:
            self.in_memory = chunk
        yield chunk

    def share(self) -> Batches:
        """This process's batches: of P processes, process r takes batches r, r + P, r + 2 P, ..."""
        if not grouped() or self.is_share:
            return self
        if self._share is None:
            self._share = part = copy(self)
            part.is_share, part.in_memory, part.on_disk, part._digest = True, None, None, None
            part.source = every(self.in_memory or self.source, rank(), count(), self.argument)
            part._repeats = self._repeats or isinstance(part.source, list)
        return self._share

    def count_items(self) -> int | None:
        """The number of items of all processes together, if it is known without reading them."""
        if isinstance(self.source, Pair):
            return len(self.source.labels)
        if isinstance(self.source, list):
            return sum(len(split_batch(batch, self.argument)[1]) for batch in self.source)
        dataset = getattr(self.source, "dataset", None)
        return len(dataset) if isinstance(dataset, Sized) else None

    def alike(self, batches: list[Batch]) -> Batches:
        """Other batches, on the same device and of the same type."""
        others = Batches(batches, argument=self.argument)
        others.device, others.dtype = self.device, self.dtype
        return others

    def _on_device(self, batch: Batch) -> Batch:
        inputs, labels = batch
        return placed(inputs, self.device, self.dtype), labels.to(self.device)

    def _refuse_changing_head(self) -> None:
        """Read the first items twice, with different states of the global generator."""
        if self._repeats:
            return
        if isinstance(self.source, Iterator) or drawn(self._head, 1) != drawn(self._head, 2):
            raise changing_data(self.argument)
        self._repeats = True

    def _head(self) -> int:
        digest, items = 0, 0
        for raw in islice(self.source, HEAD_ITEMS):
            batch = split_batch(raw, self.argument)
            digest, items = digest_of(batch, digest), items + len(batch[1])
            if items >= HEAD_ITEMS:
                break
        return digest


@dataclass(frozen=True)
class Pair:
    """Inputs and labels of one length, cut into batches."""

    inputs: Inputs
    labels: Tensor
    batch_size: int

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.labels), self.batch_size):
            chosen = slice(start, start + self.batch_size)
            yield map_tensors(lambda t, chosen=chosen: t[chosen], self.inputs), self.labels[chosen]


def _as_batches(data: Data, argument: str, batch_size: int) -> Iterable[Any]:
    if batch_size < 1:
        raise ValueError(f"`batch_size={batch_size}` must be at least 1 item.")
    if isinstance(data, (DataLoader, list)):
        return data
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], (Tensor, np.ndarray)):
        return _pair(data[0], data[1], argument, batch_size)
    if isinstance(data, TensorDataset):
        inputs = data.tensors[:-1] if len(data.tensors) > 2 else data.tensors[0]
        return _pair(inputs, data.tensors[-1], argument, batch_size)
    if isinstance(data, Dataset) or hasattr(data, "__getitems__"):  # of Hugging Face, which are torch's in form only
        return DataLoader(data, batch_size=batch_size)  # type: ignore[arg-type]
    if not isinstance(data, (Tensor, np.ndarray, str, Mapping)) and isinstance(data, Iterable):
        return data
    raise TypeError(
        f"`{argument}` is a {type(data).__name__}: give a DataLoader, a Dataset, a list of batches, or a pair "
        "(inputs, labels)."
    )


def _pair(inputs: Any, labels: Any, argument: str, batch_size: int) -> Pair:
    inputs, labels = map_tensors(lambda t: t, inputs), _labels(labels, argument)
    lengths = {len(tensor) for tensor in tensors_of(inputs)}
    if lengths != {len(labels)}:
        raise ValueError(
            f"`{argument}` has {', '.join(map(str, sorted(lengths))) or 'no'} inputs and {len(labels)} labels: each "
            "input needs one label."
        )
    return Pair(inputs, labels, batch_size)


def split_batch(batch: Any, argument: str) -> Batch:
    """One batch as (inputs, labels); in a dict, the labels are under "labels" or "label"."""
    inputs, labels = split_inputs(batch)
    if labels is None:
        raise TypeError(
            f"a batch of `{argument}` is a {type(batch).__name__} in which no labels were found: expected (inputs, "
            'labels), or a dict with "labels".'
        )
    return inputs, _labels(labels, argument)


def _labels(value: Any, argument: str) -> Tensor:
    labels = torch.as_tensor(value)
    if labels.ndim == 0:
        raise ValueError(
            f"the labels of `{argument}` are one number, {labels}: expected one for each input of a batch; data that "
            "give one item after another belong in a DataLoader."
        )
    return labels


def _without_global_generator(source: Iterable[Any]) -> Iterator[Any]:
    """An iterator; a DataLoader draws a number from the global generator to make one, and the state is put back."""
    state = torch.get_rng_state()
    iterator = iter(source)
    torch.set_rng_state(state)
    return iterator
