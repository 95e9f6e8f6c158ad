"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 from a folder of files, as bytes.

The folder holds `mnist/` and `fashion-mnist/` with the four published idx files (`.gz` or not), `cifar10/` and
`cifar100/` with the published binary archive (`cifar-10-binary.tar.gz`) or with lossless strips: `train_00.webp`, ...,
`test_00.webp`, ... of 4 columns of 500 images each, and `labels.npz`. An `.npz` file with `x_train`, `y_train`,
`x_test` and `y_test` serves in place of any of these folders.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class ImageSet:
    """Images [N, channels, height, width] of bytes and labels [N], in the published order."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def read_image_set(name: str, folder: Path | None = None, test_only: bool = False) -> ImageSet:
    """The data set of this name, from `folder` or from the folder that `PEPPERMILL_DATA` names.

    With `test_only` the training images are not read and need not be there; those of the test stand in their place.
    """
    given = folder or Path(os.environ.get("PEPPERMILL_DATA", "data"))
    readers: dict[Path, Callable[[Path, str], Arrays]] = {
        given / f"{name}.npz": _npz,
        given / name / f"{name}.npz": _npz,
        given / name / f"{name.replace('cifar', 'cifar-')}-binary.tar.gz": _cifar_archive,
        given / name / "labels.npz": _strips,
        given / name / "t10k-labels-idx1-ubyte.gz": _idx,
        given / name / "t10k-labels-idx1-ubyte": _idx,
    }
    for path, reader in readers.items():
        if path.is_file():
            try:
                test = _tensors(*reader(path, "test"))
                return ImageSet(test if test_only else _tensors(*reader(path, "train")), test)
            except (OSError, EOFError, KeyError, IndexError, ValueError, zlib.error, zipfile.BadZipFile) as error:
                raise ValueError(f"{name} in {path.parent} is damaged or incomplete ({error}).") from error
    raise FileNotFoundError(
        f"{name} is not in {given}: put its files into {given / name} (python -m pydoc experiments.image_sets lists "
        "them), or name another folder with `--data` or PEPPERMILL_DATA."
    )


def _tensors(pixels: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    if len(pixels) != len(labels) or pixels.dtype != np.uint8:
        raise ValueError(f"{len(pixels)} images of type {pixels.dtype}, {len(labels)} labels")
    shaped = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
    return torch.from_numpy(shaped.copy()), torch.from_numpy(labels.astype(np.int64).ravel())


def _npz(path: Path, split: str) -> Arrays:
    with np.load(path, allow_pickle=False) as arrays:
        return arrays[f"x_{split}"], arrays[f"y_{split}"]


def _idx(path: Path, split: str) -> Arrays:
    """The published files of MNIST: a header with the shape, then bytes."""
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        file = path.with_name(f"{'train' if split == 'train' else 't10k'}-{kind}-ubyte{path.suffix}")
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if raw[:3] != b"\x00\x00\x08":
            raise ValueError(f"{file.name} is not an idx file of bytes")
        shape = np.frombuffer(raw, ">i4", raw[3], offset=4)
        arrays.append(np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape))
    return arrays[0], arrays[1]


def _cifar_archive(path: Path, split: str) -> Arrays:
    """The published binary version: records of one label (CIFAR-100: coarse and fine) and 3,072 bytes."""
    labels = 2 if "100" in path.name else 1
    with tarfile.open(path) as archive:
        names = sorted(name for name in archive.getnames() if name.endswith(".bin"))
        chosen = [name for name in names if ("test" in Path(name).name) == (split == "test")]
        raw = b"".join(archive.extractfile(name).read() for name in chosen)  # type: ignore[union-attr]
    records = np.frombuffer(raw, np.uint8).reshape(-1, labels + 3072)
    return records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, labels - 1]


def _strips(path: Path, split: str) -> Arrays:
    """Lossless pictures of 4 columns of 500 images, 32 by 32 pixels each."""
    from PIL import Image

    parts = []
    for file in sorted(path.parent.glob(f"{split}_*.webp")):
        strip = np.asarray(Image.open(file).convert("RGB"))
        columns = strip.reshape(-1, 32, 4, 32, 3).transpose(2, 0, 1, 3, 4)
        parts.append(columns.reshape(-1, 32, 32, 3))
    with np.load(path, allow_pickle=False) as labels:
        return np.concatenate(parts), labels[split]
