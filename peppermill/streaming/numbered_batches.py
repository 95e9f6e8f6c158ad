"""Data of any length as numbered batches: read when they are needed, and from any place if the data have indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, cast

import numpy as np
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from peppermill.data import Arrays, as_batches
from peppermill.datasets.loaders import rebuild_loader
from peppermill.plumbing.nested import as_arguments, digest_of, placed, shapes_of, split_inputs
from peppermill.plumbing.networks import device_of, dtype_of
from peppermill.types import Data, Inputs

DIGEST_ROWS, DIGEST_PLACES = 64, 16  # of arrays, which tell one from another
NO_ITEMS = "`data` has no items: there is nothing to predict."

#: Whether the batch of this number is needed.
Wanted = Callable[[int], bool]


@dataclass(frozen=True)
class NumberedBatch:
    """One batch, with the place of each of its items in the data; `size` is the number of items of a full batch."""

    number: int
    rows: np.ndarray
    size: int
    inputs: Inputs
    labels: Any = None
    names: Sequence[str] | None = None


def stream_of(data: Data | Inputs, batch_size: int = 500) -> Indexed | Sequential:
    """Any data as a stream: what `fit` takes, or inputs alone.

    A batch that is a tuple of several ends with its labels; a dict has them under "labels" or "label", or has none.
    """
    data = data.in_batches(batch_size) if hasattr(data, "in_batches") else data
    data = as_batches(data, batch_size, needs_labels=False)
    if hasattr(data, "read_rows"):
        return Indexed(data, len(cast(Sized, data)), batch_size)
    if not isinstance(data, DataLoader) or type(data).__iter__ is not DataLoader.__iter__:
        return Sequential(data)
    if isinstance(data.dataset, IterableDataset) or data.batch_size is None:
        return Sequential(data)
    if not isinstance(data.sampler, SequentialSampler):
        raise ValueError("`data` is shuffled, so that a restart could not go on where it ended: use `shuffle=False`.")
    return Indexed(data, len(cast(Sized, data.dataset)), data.batch_size)


def calls_of(network: nn.Module, data: Data | Inputs) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of the network's call for each batch of any data."""
    device, dtype, batch = device_of(network), dtype_of(network), None
    for batch in read_ahead(stream_of(data).read()):
        yield as_arguments(placed(batch.inputs, device, dtype))
    if batch is None:
        raise ValueError(NO_ITEMS)


@dataclass
class Indexed:
    """Batches of data with indices, a DataLoader or what has `read_rows`: only the wanted ones are read."""

    data: Any
    items: int
    batch_size: int

    @property
    def count(self) -> int:
        return -(-self.items // self.batch_size)  # also of a loader with `drop_last`, which would lose items

    def read(self, wanted: Wanted = lambda number: True) -> Iterator[NumberedBatch]:
        numbers, again = (filter(wanted, range(self.count)) for _ in range(2))
        spans = (range(k * self.batch_size, min((k + 1) * self.batch_size, self.items)) for k in again)
        if not isinstance(self.data, DataLoader):
            for number, span in zip(numbers, spans, strict=True):
                rows, *found = self.data.read_rows(span.start, span.stop)
                yield NumberedBatch(number, np.asarray(rows), self.batch_size, *found)
            return
        for number, raw in zip(numbers, rebuild_loader(self.data, batch_sampler=spans), strict=True):
            inputs, labels = split_inputs(raw)
            rows = number * self.batch_size + np.arange(_length(inputs))
            yield NumberedBatch(number, rows, self.batch_size, inputs, labels)


@dataclass
class Sequential:
    """Batches that come one after another and have no indices: those that are not wanted are read and dropped.

    What has `read_rows` is decoded only if it is wanted. The numbers of items and batches are known after reading.
    """

    data: Iterable[Any]
    items: int | None = field(default=None, init=False)
    count: int | None = field(default=None, init=False)

    def read(self, wanted: Wanted = lambda number: True) -> Iterator[NumberedBatch]:
        source = self.data
        if isinstance(source, Iterator):  # the first batch, which `fingerprint` reads, is put back
            head = list(islice(source, 1))
            self.data, source = chain(head, source), chain(head, source)
        start, number, size = 0, -1, 0
        for number, raw in enumerate(source):
            later = hasattr(raw, "read_rows")
            inputs, labels = (None, None) if later else split_inputs(raw)
            length = len(raw) if later else _length(inputs)
            size = size or length
            if wanted(number):
                rows, inputs, labels, *_ = raw.read_rows(0, length) if later else (range(length), inputs, labels)
                yield NumberedBatch(number, start + np.array(rows, int), size, inputs, labels)
            start += length
        self.items, self.count = start, number + 1


def fingerprint_of(stream: Indexed | Sequential) -> dict[str, Any]:
    """What identifies the data, as far as that is known without reading all of them: at least the first batch."""
    known, data = {} if stream.items is None else {"items": stream.items}, stream.data
    if isinstance(data, Arrays):  # rows at the beginning, at the end, and at some places between
        starts = [max(0, (len(data) - DIGEST_ROWS) * k // DIGEST_PLACES) for k in range(DIGEST_PLACES + 1)]
        return {**known, "digest": digest_of([data.read_rows(k, min(k + DIGEST_ROWS, len(data))) for k in starts])}
    if hasattr(data, "digest"):
        return {**known, "digest": data.digest()}
    batch = next(stream.read(lambda number: number == 0), None)
    return {**known, "digest": None if batch is None else digest_of((batch.inputs, batch.labels))}


def _length(inputs: Inputs) -> int:
    return next((shape[0] for shape in shapes_of(inputs) if shape), 0)


def read_ahead(batches: Iterator[NumberedBatch]) -> Iterator[NumberedBatch]:
    """The same batches; a thread reads the next one while the network works on this one."""
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(next, batches, None)
        while (batch := ahead.result()) is not None:
            ahead = pool.submit(next, batches, None)
            yield batch
