"""Data in the forms people have them, as batches on the network's device, the same in every pass.

What fits is read once and kept for the whole job, so that images are not decoded again for every sigma; what does not
fit is read in chunks, each of which serves all members before the next is read, and kept on disk where there is room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from peppermill.datasets.disk_cache import Spilled, is_worth_spilling
from peppermill.foreign import plain_call
from peppermill.plumbing.devices import device_of, dtype_of
from peppermill.plumbing.nested import bytes_of
from peppermill.plumbing.nested import digest_of as digest_of
from peppermill.plumbing.nested import map_tensors as map_tensors
from peppermill.processes.group import grouped
from peppermill.types import Batch, Data, Inputs

KEPT_BYTES = 2**30  # inputs beyond this are not held at once
HEAD_ITEMS = 256  # how many items are read twice to see whether the data repeat

LOADER_OPTIONS = (
    "dataset",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


class Batches:
    """Batches (inputs, labels) of `data` on the device of `model`, and of its type where it has only one."""

    def __init__(
        self,
        data: Data,
        model: Any = None,
        *,
        argument: str = "data",
        batch_size: int = 500,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self.argument = argument  # what the caller named the data, for the messages
        self.kept_bytes = kept_bytes
        self.source = _as_batches(data, argument, batch_size)
        self.device, self.dtype = device_of(model), dtype_of(model)
        self.part: Batches | None = None  # of several processes, this one's (`parts.py`)
        self.offset: int | None = None  # of a part: how many inputs come before it
        self.kept: list[Batch] | None = None
        self.spilled: Spilled | None = None
        self._digest: int | None = None
        self._repeats = isinstance(self.source, (Pair, list))
        self._refuse_unrepeatable(now=not grouped())  # of several processes, each reads of its own part alone
        self.sizes: list[tuple[int, int]] = []  # examples and bytes of every batch, known after the first pass

    def chunks(self) -> Iterator[list[Batch]]:
        """The data as lists of batches, each list small enough to be held."""
        if self.kept is not None:
            yield self.kept
            return
        if self.spilled is not None:
            yield from ([self._on_device(batch) for batch in chunk] for chunk in self.spilled)
            return
        self._refuse_unrepeatable(now=True)
        chunk: list[Batch] = []
        size, digest, chunks, sizes = 0, 0, 0, []
        spilled = Spilled() if is_worth_spilling(self.source) else None
        for raw in _without_global_generator(self.source):
            if size >= self.kept_bytes:
                spilled = spilled and spilled.added(chunk)
                yield chunk
                chunk, size, chunks = [], 0, chunks + 1
            batch = split_batch(raw, self.argument)
            digest = digest_of(batch, digest)
            chunk.append(self._on_device(batch))
            sizes.append((len(batch[1]), bytes_of(batch[0])))
            size += sizes[-1][1]
        self.sizes = sizes
        self._finish_pass(chunk, digest, chunks)
        self.spilled = spilled.added(chunk) if spilled and chunks else None
        yield chunk

    def __iter__(self) -> Iterator[Batch]:
        for chunk in self.chunks():
            yield from chunk

    def alike(self, batches: list[Batch]) -> Batches:
        """Other batches, on the same device and of the same type."""
        others = Batches(batches, argument=self.argument)
        others.device, others.dtype = self.device, self.dtype
        return others

    def over(self, source: Iterable[Any], offset: int) -> Batches:
        """The same for a part of the data, `offset` inputs after their beginning."""
        part = copy(self)
        part.source, part.offset, part._digest = source, offset, None
        part.kept = part.spilled = self.kept = self.spilled = None
        part._repeats, part.sizes = self._repeats or isinstance(source, (Pair, list)), []
        return part

    def _finish_pass(self, chunk: list[Batch], digest: int, chunks: int) -> None:
        if not chunk and self.offset is None:
            raise ValueError(f"`{self.argument}` has no items: give at least one labelled batch.")
        self.refuse_change(self._digest not in (None, digest))
        self._digest = digest
        if chunks == 0:
            self.kept = chunk

    def _on_device(self, batch: Batch) -> Batch:
        inputs, labels = batch
        placed = map_tensors(lambda t: t.to(self.device, self.dtype if t.is_floating_point() else None), inputs)
        return placed, labels.to(self.device)

    def _refuse_unrepeatable(self, now: bool) -> None:
        if now and not self._repeats:
            once = isinstance(self.source, Iterator)
            self.refuse_change(once or _head(self.source, self.argument, 1) != _head(self.source, self.argument, 2))
            self._repeats = True

    def refuse_change(self, changed: bool) -> None:
        """Raise where the data are not the same in every pass."""
        if changed:
            raise ValueError(
                f"`{self.argument}` changes between two passes: it is shuffled, augmented or can be read only once. "
                "Every sigma must be judged on the same items, or L(sigma) cannot be compared. Use `shuffle=False`, "
                "the transforms of evaluation, and a DataLoader or a list of batches instead of a generator."
            )


def call(model: Any, inputs: Inputs) -> Any:
    """The network on one batch of inputs: `model(x)`, `model(*x)` for a tuple, `model(**x)` for a dict."""
    return plain_call(model, *as_arguments(inputs))


def rebuild_loader(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """The same DataLoader with some arguments changed; every other option is the user's.

    Another `dataset` is read in its own order, because a sampler belongs to the items that it was made for.
    """
    kept = {name: getattr(loader, name) for name in LOADER_OPTIONS if getattr(loader, name, "") != ""}
    if "batch_sampler" in changes:
        batches = {}
    elif loader.batch_size is None and loader.batch_sampler is not None and "dataset" not in changes:
        batches = {"batch_sampler": loader.batch_sampler}
    else:
        reordered = {"dataset", "sampler", "shuffle"} & set(changes) or isinstance(loader.dataset, IterableDataset)
        batches = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        batches |= {} if reordered else {"sampler": loader.sampler}
    return DataLoader(**{**kept, **batches, **changes})


def as_arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as positional and keyword arguments of the network."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})


def output_tensor(outputs: Any) -> Tensor:
    """The logits in whatever a network returns.

    A tensor, an object or a dict with `logits`, a tuple that begins with them.
    """
    found = outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("logits")
    elif hasattr(outputs, "logits"):
        found = outputs.logits
    elif isinstance(outputs, (tuple, list)) and outputs:
        found = outputs[0]
    if not isinstance(found, Tensor):
        raise TypeError(
            f"the network returned {type(outputs).__name__}, in which no tensor of logits was found. Wrap it in a "
            "module that returns a tensor, or an object with `logits`."
        )
    return found


class Pair:
    """Inputs and labels of one length, cut into batches."""

    def __init__(self, inputs: Inputs, labels: Tensor, batch_size: int) -> None:
        self.inputs, self.labels, self.batch_size = inputs, labels, batch_size

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
    lengths: set[int] = set()
    map_tensors(lambda t: lengths.add(len(t)), inputs)
    if lengths != {len(labels)}:
        raise ValueError(
            f"`{argument}` has {', '.join(map(str, sorted(lengths))) or 'no'} inputs and {len(labels)} labels: each "
            "input needs one label."
        )
    return Pair(inputs, labels, batch_size)


def split_batch(batch: Any, argument: str) -> Batch:
    """One batch as (inputs, labels); of a dict, the labels are under "labels" or "label"."""
    if isinstance(batch, Mapping):
        key = next((key for key in ("labels", "label") if key in batch), None)
        if key is not None:
            return {k: v for k, v in batch.items() if k != key}, _labels(batch[key], argument)
    elif isinstance(batch, (tuple, list)) and len(batch) >= 2:
        inputs = batch[0] if len(batch) == 2 else tuple(batch[:-1])
        return inputs, _labels(batch[-1], argument)
    raise TypeError(
        f"a batch of `{argument}` is a {type(batch).__name__} in which no labels were found: expected (inputs, labels)"
        ', or a dict with "labels".'
    )


def _labels(value: Any, argument: str) -> Tensor:
    labels = torch.as_tensor(value)
    if labels.ndim == 0:
        raise ValueError(
            f"the labels of `{argument}` are one number, {labels}: expected one for each input of a batch; data that "
            "give one item after another belong in a DataLoader."
        )
    return labels


def _head(source: Iterable[Any], argument: str, seed: int) -> int:
    """A digest of the first items, read with a generator state of its own, so that nothing repeats by accident."""
    digest, items = 0, 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for raw in islice(source, HEAD_ITEMS):
            batch = split_batch(raw, argument)
            digest, items = digest_of(batch, digest), items + len(batch[1])
            if items >= HEAD_ITEMS:
                break
    return digest


def _without_global_generator(source: Iterable[Any]) -> Iterator[Any]:
    """An iterator; a DataLoader draws a number from the global generator to make one, which is put back."""
    state = torch.get_rng_state()
    iterator = iter(source)
    torch.set_rng_state(state)
    return iterator
