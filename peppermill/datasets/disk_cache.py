"""A cache on disk for what was decoded and does not fit in memory, so that no picture is decoded for every sigma.

The file has no name: no other process sees it, and it disappears when the process ends for any reason.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from peppermill.plumbing.files import cache_folder
from peppermill.plumbing.nested import bytes_of, map_tensors

FREE_SHARE = 1 / 10  # of the disk stays free for others


class DiskCache:
    """Nests of tensors, such as batches, by key, read as often as needed."""

    def __init__(self) -> None:
        self.entries: dict[Any, tuple[int, Any]] = {}  # place in the file; the nest with empty tensors for full ones
        self.size = 0
        self.file: Any = None

    def add(self, key: Any, nest: Any) -> bool:
        """Whether the disk had room for one entry more."""
        try:
            folder = spare_folder()
            disk = shutil.disk_usage(folder)
            if disk.free - bytes_of(nest) < FREE_SHARE * disk.total:
                return False
            if self.file is None:
                self.file = tempfile.TemporaryFile(dir=folder, prefix="peppermill-")  # noqa: SIM115 - it outlives this
                weakref.finalize(self, self.file.close)
            self.file.seek(self.size)
            entry = self.size, map_tensors(self._write, nest)
            self.file.flush()
        except OSError:
            return False
        self.entries[key] = entry
        self.size += bytes_of(nest)
        return True

    def __getitem__(self, key: Any) -> Any:
        place, nest = self.entries[key]
        self.file.seek(place)
        return map_tensors(self._read, nest)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, self.entries)

    def _write(self, tensor: Tensor) -> Tensor:
        """In the tensor's own order of dimensions, which kernels may depend on."""
        self.file.write(_memory(torch.empty_like(tensor, device="cpu").copy_(tensor.detach())))
        return torch.empty_like(tensor, device="meta")

    def _read(self, like: Tensor) -> Tensor:
        tensor = torch.empty_like(like, device="cpu")
        if self.file.readinto(_memory(tensor)) != tensor.nbytes:
            raise OSError("the temporary file of prepared items is not what was written: is the disk damaged?")
        return tensor


def cache_for(source: Any) -> DiskCache | None:
    """An empty cache if reading again may mean decoding again: not for items in memory or with their own cache."""
    dataset = getattr(source, "dataset", None)
    is_cached = isinstance(dataset, TensorDataset) or getattr(dataset, "is_cached", False)
    return DiskCache() if isinstance(source, DataLoader) and not is_cached else None


def _memory(tensor: Tensor) -> Any:
    """The bytes of a tensor that fills its own memory."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def spare_folder() -> Path:
    """Where large temporary files go: `TMPDIR` if it is set, else the cache folder; `/tmp` is often held in memory."""
    folder = Path(os.environ.get("TMPDIR") or cache_folder())
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())
