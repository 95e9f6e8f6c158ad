"""Batches on disk: what a DataLoader has decoded and memory cannot hold, so that no picture is decoded for every sigma.

The file has no name: nobody else sees it, and it is gone when the process ends, however it ends.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from peppermill.plumbing.files import spare_folder
from peppermill.plumbing.nested import bytes_of, map_tensors
from peppermill.types import Batch

SPARE = 1 / 10  # of the disk is left free: somebody else may need it


class Spilled:
    """Chunks of batches in the order in which they were added, read again as often as one likes."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []  # the batches with empty tensors in place of full ones
        self.file: Any = None

    def added(self, chunk: list[Batch]) -> Spilled | None:
        """The same with one chunk more; nothing where the disk has no room for it: the data are then read again."""
        try:
            folder = spare_folder()
            disk = shutil.disk_usage(folder)
            if disk.free - bytes_of(chunk) < SPARE * disk.total:
                return None
            if self.file is None:
                self.file = tempfile.TemporaryFile(dir=folder, prefix="peppermill-")  # noqa: SIM115 - it outlives this
                weakref.finalize(self, self.file.close)
            self.chunks.append(map_tensors(self._written, chunk))
            self.file.flush()
        except OSError:
            return None
        return self

    def __iter__(self) -> Iterator[list[Batch]]:
        place = 0
        for chunk in self.chunks:
            self.file.seek(place)  # another pass may have been here since
            yield list(map_tensors(self._read, chunk))
            place += bytes_of(chunk)

    def _written(self, tensor: Tensor) -> Tensor:
        """In the tensor's own order of dimensions, which kernels may depend on."""
        self.file.write(_bytes(torch.empty_like(tensor, device="cpu").copy_(tensor.detach())))
        return torch.empty_like(tensor, device="meta")

    def _read(self, like: Tensor) -> Tensor:
        tensor = torch.empty_like(like, device="cpu")
        if self.file.readinto(_bytes(tensor)) != tensor.nbytes:
            raise OSError("the temporary file of prepared items is not what was written: is the disk damaged?")
        return tensor


def is_worth_spilling(source: Any) -> bool:
    """Whether reading again may mean decoding again: not where the items are in memory, or on disk already."""
    dataset = getattr(source, "dataset", None)
    stored = isinstance(dataset, TensorDataset) or getattr(dataset, "is_stored", False)
    return isinstance(source, DataLoader) and not stored


def _bytes(tensor: Tensor) -> Any:
    """The memory of a tensor that fills its own."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data
