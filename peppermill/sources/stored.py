"""Prepared items, held: in memory up to a limit, beyond it in a file without a name, which ends with the process."""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from peppermill.held import as_inputs
from peppermill.plumbing.files import spare_folder
from peppermill.sources.levels import Levels


class Column:
    """One of the network's inputs, for all items: [N, ...] as it is, or as bytes where the levels allow it."""

    def __init__(self, count: int, example: Tensor, kept_bytes: int, levels: Levels | None) -> None:
        self.count, self.example, self.kept_bytes, self.levels = count, example, kept_bytes, levels
        dtype = torch.uint8 if levels else example.dtype
        self.rows = room((count, *example.shape), dtype, kept_bytes)

    def packed(self, value: Tensor) -> Tensor:
        """What would be written of one item: bytes where they say it all. Any thread may ask."""
        if value.shape != self.example.shape or value.dtype != self.example.dtype:
            raise ValueError(
                f"the preparation gives arrays of {list(self.example.shape)} ({self.example.dtype}) and of "
                f"{list(value.shape)} ({value.dtype}): let it resize or pad every item to one shape."
            )
        codes = self.levels.encode(value) if self.levels else None
        return value if codes is None else codes

    def write(self, row: int, packed: Tensor) -> None:
        """Keep one item. The first that bytes cannot hold turns all before it back into numbers."""
        if self.is_packed and packed.dtype != torch.uint8:
            narrow = self.rows
            self.rows = room((self.count, *self.example.shape), self.example.dtype, self.kept_bytes)
            for k in range(row):
                self.rows[k] = self._numbers(narrow[k])
        self.rows[row] = packed if self.is_packed else self._numbers(packed)

    def unpacked(self, row: int) -> Tensor:
        """One item as the network takes it."""
        return self._numbers(self.rows[row])

    def numbers(self, first: int, last: int) -> Tensor:
        """The items from one to another, as the network takes them; not copied where they are held as they are."""
        return torch.stack([self.unpacked(k) for k in range(first, last)]) if self.is_packed else self.rows[first:last]

    @property
    def is_packed(self) -> bool:
        """Whether bytes stand for numbers."""
        return self.levels is not None and self.rows.dtype == torch.uint8

    def _numbers(self, packed: Tensor) -> Tensor:
        return self.levels.decode(packed) if self.levels and packed.dtype == torch.uint8 else packed


class Unpacking(Dataset[Any]):
    """Items of which some arrays are held as bytes; numbers again when they are read."""

    is_stored = True  # there is nothing to be gained by keeping its batches

    def __init__(self, columns: dict[str | None, Column], labels: Tensor) -> None:
        self.columns, self.labels = columns, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Any, Tensor]:
        return as_inputs({key: column.unpacked(row) for key, column in self.columns.items()}), self.labels[row]


def stored(columns: dict[str | None, Column], labels: Tensor) -> Any:
    """Data as `fit` takes them: a pair (inputs, labels), not copied, or a Dataset that unpacks bytes."""
    if any(column.is_packed for column in columns.values()):
        return Unpacking(columns, labels)
    return as_inputs({key: column.rows[: len(labels)] for key, column in columns.items()}), labels


def room(shape: Sequence[int], dtype: torch.dtype, kept_bytes: int) -> Tensor:
    """An array to be filled: in memory where it fits, else in a file."""
    size = math.prod(shape) * dtype.itemsize
    if size <= kept_bytes:
        return torch.empty(*shape, dtype=dtype)
    return torch.from_numpy(_nameless_file(size)).view(dtype).view(*shape)


def _nameless_file(size: int) -> np.ndarray:
    """Bytes on disk that nobody else sees, and that are gone when the process ends, however it ends.

    The room is claimed first: a disk that is full while a mapped file is written kills the process without a word.
    """
    folder = spare_folder()
    with tempfile.TemporaryFile(dir=folder, prefix="peppermill-") as file:
        try:
            if shutil.disk_usage(folder).free < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise OSError(
                f"the prepared items need {size / 1e9:.1f} GB on disk, which {folder} does not have "
                f"({error.strerror}): name a folder on a larger disk with TMPDIR."
            ) from error
        return np.memmap(file, np.uint8, "r+", shape=(size,))
