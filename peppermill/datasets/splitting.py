"""Split data into tuning items and test items: disjoint, complete, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, Subset

from peppermill.data import Arrays, Batches, as_batches
from peppermill.datasets.loaders import rebuild_loader
from peppermill.plumbing.nested import map_tensors, raw_bytes, sha256, tensors_of
from peppermill.types import Data

LONGEST_NAME = 200  # characters: a recipe stays small


@dataclass(frozen=True)
class Split:
    """Which of N items are for tuning: `validation` of them, drawn by the seed; the rest are for testing.

    `data` is the user's name for the data, and `fingerprint` identifies them.
    """

    data: str
    items: int
    validation: int
    seed: int
    fingerprint: str

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the tuning items and of the test items, each in the order of the data."""
        # numpy promises that this generator never changes, so that every version draws the same split.
        order = np.random.RandomState(self.seed).permutation(self.items)
        return np.sort(order[: self.validation]), np.sort(order[self.validation :])

    def fits(self, data: Data) -> bool:
        """Whether these are the items that were split."""
        return fingerprint(data, labels_of(data)) == self.fingerprint

    def is_called(self, name: str) -> bool:
        """Whether this is the user's name for the data; options after a question mark do not count."""
        return bool(self.data) and self.data == name.partition("?")[0][-LONGEST_NAME:]


def split_off(data: Data, validation: int, *, seed: int = 0) -> tuple[Data, Data]:
    """(tuning, test): `validation` items drawn at random, and the rest; in the order of the data, none in both.

    For a pair (inputs, labels), a Dataset, a DataLoader that does not shuffle, or a list of batches.
    """
    tuning, rest = split_of(data, validation, seed).rows()
    return take(data, tuning), take(data, rest)


def split_of(data: Data, validation: int, seed: int = 0, name: str = "") -> Split:
    """The split, without taking any item."""
    labels = labels_of(data)
    if not 0 < validation < len(labels):
        cure = "leave it out to tune on all" if validation == len(labels) else "some must be left to test on"
        raise ValueError(f"`validation={validation}` must be at least 1 and less than the {len(labels)} items: {cure}.")
    if not 0 <= seed < 2**32:
        raise ValueError(f"`seed={seed}` of the split must lie in 0..{2**32 - 1}.")
    return Split(name.partition("?")[0][-LONGEST_NAME:], len(labels), validation, seed, fingerprint(data, labels))


def take(data: Data, rows: np.ndarray) -> Data:
    """The items of these rows, in the same form of data."""
    if hasattr(data, "take_rows"):
        return cast(Data, data.take_rows(rows))
    if isinstance(data, list):
        batches, start = [], 0
        for inputs, labels in Batches(data):
            inside = torch.from_numpy(rows[(rows >= start) & (rows < start + len(labels))] - start)
            batches += [map_tensors(lambda t, inside=inside: t[inside], (inputs, labels))] if len(inside) else []
            start += len(labels)
        return batches
    if isinstance(data, DataLoader):
        return rebuild_loader(data, dataset=Subset(data.dataset, rows.tolist()))
    if isinstance(data, Dataset):
        return Subset(data, rows.tolist())
    pair, chosen = as_batches(data, 1), torch.from_numpy(rows)
    return cast(Data, map_tensors(lambda t: t[chosen.to(t.device)], (pair.inputs, pair.labels)))


def labels_of(data: Data) -> Tensor:
    """All labels in the order of the data; the inputs are not read if the data list their labels."""
    if isinstance(data, DataLoader):
        if not isinstance(data.sampler, SequentialSampler) or data.batch_size is None or data.drop_last:
            raise ValueError(
                "this DataLoader cannot be split: it shuffles, samples, or drops the last items. Use `shuffle=False` "
                "and no sampler, `batch_size=` and `drop_last=False`."
            )
        return labels_of(data.dataset)
    arrays = as_batches(data, 1)
    if isinstance(arrays, Arrays):
        return torch.as_tensor(arrays.labels)
    if not isinstance(data, list) and (not hasattr(data, "__len__") or isinstance(data, (tuple, IterableDataset))):
        raise TypeError(
            f"data of the form {type(data).__name__} cannot be split, because their length is unknown: "
            "give a pair (inputs, labels), a Dataset, a DataLoader that does not shuffle, or a list of batches."
        )
    for name in ("labels", "targets"):
        found = getattr(data, name, None)
        if isinstance(found, (Tensor, np.ndarray, list)) and len(found) == len(cast(Sized, data)):
            return torch.as_tensor(found)
    return torch.cat([labels for _, labels in Batches(data)])


def fingerprint(data: Data, labels: Tensor) -> str:
    """A digest of the labels in their order, and of the items' names or of inputs in memory, if there are any."""
    tensors = (labels, *tensors_of(data[0] if isinstance(data, tuple) else ()))
    arrays = (part for t in tensors for part in (f"{t.dtype}{list(t.shape)}".encode(), raw_bytes(t)))
    return sha256(chain(arrays, (f"{name}\n".encode() for name in getattr(data, "names", ()))))
