"""Data of any length as numbered batches: read when they are needed, and from any place if the data have indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from peppermill.datasets.loaders import rebuild_loader
from peppermill.plumbing.nested import digest_of, shapes_of
from peppermill.types import Data, Inputs

DIGEST_ROWS, DIGEST_PLACES = 64, 16  # of arrays, which tell one from another

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


class BatchStream(Protocol):
    """Batches in a fixed order. `items` and `count`, the number of batches, are None if only reading tells."""

    items: int | None
    count: int | None

    def read(self, wanted: Wanted) -> Iterator[NumberedBatch]: ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the data, as far as that is known without reading all of them."""
        ...


def stream_of(data: Data | Inputs, batch_size: int = 500) -> BatchStream:
    """Any data as a stream: what `fit` takes, or inputs alone.

    A batch that is a tuple of several ends with its labels; a dict has them under "labels" or "label", or has none.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size={batch_size}` must be at least 1 item.")
    if isinstance(data, TensorDataset):
        inputs, labels = data.tensors[:-1] or data.tensors, data.tensors[-1] if len(data.tensors) > 1 else None
        data = Arrays(inputs[0] if len(inputs) == 1 else inputs, labels)
    elif isinstance(data, (Tensor, np.ndarray, Mapping)):
        data = Arrays(data)
    elif isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], (Tensor, np.ndarray)):
        data = Arrays(*data)
    if hasattr(data, "read_rows"):
        return Indexed(data, batch_size)
    if hasattr(data, "in_batches"):
        return cast(BatchStream, data.in_batches(batch_size))
    if isinstance(data, Dataset) or hasattr(data, "__getitems__"):
        data = DataLoader(data, batch_size=batch_size)  # type: ignore[arg-type]
    if not isinstance(data, Iterable) or isinstance(data, str):
        raise TypeError(
            f"`data` is a {type(data).__name__}: give an array, a DataLoader, a Dataset, or an iterable of batches."
        )
    if not isinstance(data, DataLoader) or type(data).__iter__ is not DataLoader.__iter__:
        return Sequential(data)
    if isinstance(data.dataset, IterableDataset) or data.batch_size is None:
        return Sequential(data)
    if not isinstance(data.sampler, SequentialSampler):
        raise ValueError("`data` is shuffled, so that a restart could not go on where it ended: use `shuffle=False`.")
    return IndexedLoader(data)


@dataclass
class Indexed:
    """Batches of what can be read from any row on: `Arrays`, or the files of `peppermill.sources`."""

    data: Any
    batch_size: int

    def __post_init__(self) -> None:
        self.items: int | None = len(self.data)
        self.count: int | None = -(-len(self.data) // self.batch_size)

    def read(self, wanted: Wanted) -> Iterator[NumberedBatch]:
        for number in filter(wanted, range(self.count or 0)):
            start = number * self.batch_size
            rows, *found = self.data.read_rows(start, min(start + self.batch_size, len(self.data)))
            yield NumberedBatch(number, np.asarray(rows), self.batch_size, *found)

    def fingerprint(self) -> dict[str, Any]:
        return {"items": self.items, "digest": self.data.digest()}


@dataclass(frozen=True)
class Arrays:
    """An array, or a dict or tuple of arrays, and labels; what is mapped into memory does not stay there."""

    inputs: Inputs
    labels: Any = None

    def __len__(self) -> int:
        lengths = sorted({len(array) for array in (*_leaves(self.inputs), *_leaves(self.labels))})
        if len(lengths) != 1:
            raise ValueError(f"`data` needs arrays of one length, but theirs are {', '.join(map(str, lengths))}.")
        return lengths[0]

    def read_rows(self, start: int, stop: int) -> tuple[np.ndarray, Inputs, Any]:
        return np.arange(start, stop), _rows_of(self.inputs, start, stop), _rows_of(self.labels, start, stop)

    def digest(self) -> int:
        """Of rows at the beginning, at the end, and at some places between."""
        starts = [max(0, (len(self) - DIGEST_ROWS) * k // DIGEST_PLACES) for k in range(DIGEST_PLACES + 1)]
        return digest_of([self.read_rows(start, min(start + DIGEST_ROWS, len(self))) for start in starts])


def _leaves(value: Any) -> Iterator[Any]:
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ():
        yield from _leaves(part)
    if isinstance(value, (Tensor, np.ndarray)):
        yield value


def _rows_of(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _rows_of(part, start, stop) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_rows_of(part, start, stop) for part in value)
    if isinstance(value, np.memmap) and not isinstance(value.base, np.ndarray) and value.flags.c_contiguous:
        shape = (stop - start, *value.shape[1:])  # read, because the pages of a map count as memory once touched
        place = value.offset + start * (value.nbytes // len(value))
        found = np.fromfile(value.filename or "", value.dtype, int(np.prod(shape)), offset=place)
        return torch.from_numpy(found.reshape(shape))
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.require(value[start:stop], requirements="W"))
    return value if value is None else value[start:stop]


@dataclass
class IndexedLoader:
    """A DataLoader in the order of a data set with indices: only the items of wanted batches are read."""

    loader: DataLoader[Any]

    def __post_init__(self) -> None:
        assert isinstance(self.loader.dataset, Sized)
        self.items: int | None = len(self.loader.dataset)
        self.count: int | None = -(-self.items // (self.loader.batch_size or 1))  # `drop_last` would lose items

    def read(self, wanted: Wanted) -> Iterator[NumberedBatch]:
        items, size = self.items or 0, self.loader.batch_size or 1
        numbers, again = (filter(wanted, range(self.count or 0)) for _ in range(2))
        chosen = (range(k * size, min((k + 1) * size, items)) for k in again)
        for number, raw in zip(numbers, rebuild_loader(self.loader, batch_sampler=chosen), strict=True):
            inputs, labels = split_inputs(raw)
            yield NumberedBatch(number, number * size + np.arange(_length(inputs)), size, inputs, labels)

    def fingerprint(self) -> dict[str, Any]:
        return {"items": self.items, **first_batch(self)}


@dataclass
class Sequential:
    """Batches that come one after another and have no indices: those that are not wanted are read and dropped."""

    source: Iterable[Any]
    items: int | None = field(default=None, init=False)
    count: int | None = field(default=None, init=False)

    def read(self, wanted: Wanted) -> Iterator[NumberedBatch]:
        source = self.source
        if isinstance(source, Iterator):  # the first batch, which `fingerprint` reads, is put back
            head = list(islice(source, 1))
            self.source, source = chain(head, source), chain(head, source)
        start, number, size = 0, -1, 0
        for number, raw in enumerate(source):
            inputs, labels = split_inputs(raw)
            length = _length(inputs)
            size = size or length
            if wanted(number):
                yield NumberedBatch(number, start + np.arange(length), size, inputs, labels)
            start += length
        self.items, self.count = start, number + 1

    def fingerprint(self) -> dict[str, Any]:
        return first_batch(self)


def first_batch(stream: BatchStream) -> dict[str, Any]:
    """A digest of the first batch of a stream."""
    batch = next(stream.read(lambda number: number == 0), None)
    return {"digest": None if batch is None else digest_of((batch.inputs, batch.labels))}


def split_inputs(raw: Any) -> tuple[Inputs, Any]:
    """The inputs of one batch, and its labels if it has them."""
    if isinstance(raw, Mapping):
        key = next((key for key in ("labels", "label") if key in raw), None)
        return {name: value for name, value in raw.items() if name != key}, raw[key] if key else None
    if isinstance(raw, (tuple, list)):
        inputs, labels = raw[:-1] or raw, raw[-1] if len(raw) > 1 else None
        return (inputs[0] if len(inputs) == 1 else tuple(inputs)), labels
    return raw, None


def _length(inputs: Inputs) -> int:
    return next((shape[0] for shape in shapes_of(inputs) if shape), 0)


def read_ahead(batches: Iterator[NumberedBatch]) -> Iterator[NumberedBatch]:
    """The same batches; a thread reads the next one while the network works on this one."""
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(next, batches, None)
        while (batch := ahead.result()) is not None:
            ahead = pool.submit(next, batches, None)
            yield batch
