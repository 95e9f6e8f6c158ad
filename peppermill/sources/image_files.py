"""The file formats in which the small image sets are published, as arrays; nothing that could run code is read.

Every reader takes a folder and returns ((train images, labels), (test images, labels)), or None where the folder does
not have its form. Images are bytes, [N, height, width] or [N, height, width, 3].
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from peppermill.sources.pictures import picture

Split: TypeAlias = tuple[np.ndarray, np.ndarray]
Arrays: TypeAlias = tuple[Split, Split]

_IDX = (("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"))
_COLUMNS, _SIDE = 4, 32  # of a strip


def idx(folder: Path) -> Arrays | None:
    """The four files of MNIST and Fashion-MNIST."""
    paths = [[_first(folder / f"{name}.gz", folder / name) for name in pair] for pair in _IDX]
    if any(path is None for pair in paths for path in pair):
        return None
    train, test = ((_idx(pair[0]), _idx(pair[1])) for pair in paths)  # type: ignore[arg-type]
    return train, test


def cifar10_binary(folder: Path) -> Arrays | None:
    """Records of one label and 3,072 bytes: red, green, blue."""
    read = _archive(folder, "cifar-10-binary.tar.gz", "cifar-10-batches-bin")
    if read is None:
        return None
    parts = [read(f"data_batch_{k}.bin", partial(_records, labels=1)) for k in range(1, 6)]
    return _joined(parts), read("test_batch.bin", partial(_records, labels=1))


def cifar100_binary(folder: Path) -> Arrays | None:
    """Records of a coarse label, a fine label, which is ours, and 3,072 bytes."""
    read = _archive(folder, "cifar-100-binary.tar.gz", "cifar-100-binary")
    if read is None:
        return None
    return read("train.bin", partial(_records, labels=2)), read("test.bin", partial(_records, labels=2))


def cifar10_python(folder: Path) -> Arrays | None:
    """Pickled dictionaries, opened by a reader that knows arrays, lists, numbers and text, and refuses all else."""
    read = _archive(folder, "cifar-10-python.tar.gz", "cifar-10-batches-py")
    if read is None:
        return None
    parts = [read(f"data_batch_{k}", partial(_batch, labels=b"labels")) for k in range(1, 6)]
    return _joined(parts), read("test_batch", partial(_batch, labels=b"labels"))


def cifar100_python(folder: Path) -> Arrays | None:
    """As `cifar10_python`, with the fine labels."""
    read = _archive(folder, "cifar-100-python.tar.gz", "cifar-100-python")
    if read is None:
        return None
    return read("train", partial(_batch, labels=b"fine_labels")), read("test", partial(_batch, labels=b"fine_labels"))


def npz(path: Path) -> Arrays | None:
    """One file with x_train, y_train, x_test, y_test."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return (arrays["x_train"], arrays["y_train"].ravel()), (arrays["x_test"], arrays["y_test"].ravel())
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must hold the arrays x_train, y_train, x_test and y_test ({error}).") from error


def strips(folder: Path, name: str) -> Arrays | None:
    """Lossless pictures with the CIFAR images one below the other in four columns, and `labels.npz`.

    Nothing in these files tells one data set from another, so the folder must have its name.
    """
    if folder.name != name:
        return None
    labels, train, test = folder / "labels.npz", sorted(folder.glob("train_*.webp")), sorted(folder.glob("test_*.webp"))
    if not (labels.is_file() and train and test):
        return None
    try:
        with np.load(labels, allow_pickle=False) as arrays:
            known = arrays["train"], arrays["test"]
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{labels} must hold the arrays train and test ({error}).") from error
    return (_strips(train), known[0]), (_strips(test), known[1])


def _idx(path: Path) -> np.ndarray:
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
        if raw[:3] != b"\x00\x00\x08":
            raise ValueError("it does not begin as an idx file of bytes does")
        shape = np.frombuffer(raw, ">i4", raw[3], offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
    except (EOFError, OSError, ValueError, IndexError, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged ({error}): delete it and get it again.") from error


def _archive(folder: Path, archive: str, unpacked: str) -> Callable[[str, Callable[[bytes], Split]], Split] | None:
    """A function that reads a file by name: of the unpacked folder where it is there, else of the archive."""
    place = folder / unpacked if (folder / unpacked).is_dir() else folder / archive
    if not place.exists():
        return None
    contents = _archive_contents(place) if place.is_file() else None

    def read(name: str, parse: Callable[[bytes], Split]) -> Split:
        try:
            return parse(contents[name] if contents is not None else (place / name).read_bytes())
        except (OSError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise ValueError(f"{name} in {place} is absent or damaged ({error}): get {archive} again.") from error

    return read


def _archive_contents(path: Path) -> dict[str, bytes]:
    """Every plain file of the archive by its last name, in one pass; nothing is unpacked to the disk."""
    try:
        with tarfile.open(path) as archive:
            files = ((member, archive.extractfile(member)) for member in archive if member.isfile())
            return {Path(member.name).name: file.read() for member, file in files if file is not None}
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged ({error}): delete it and get it again.") from error


def _records(raw: bytes, labels: int) -> Split:
    """Images and the last of the labels before each."""
    if not raw:
        raise ValueError("it is empty")
    records = np.frombuffer(raw, np.uint8).reshape(-1, labels + 3 * _SIDE * _SIDE)
    return _planes(records[:, labels:]), records[:, labels - 1]


def _joined(parts: list[Split]) -> Split:
    return np.concatenate([pixels for pixels, _ in parts]), np.concatenate([labels for _, labels in parts])


def _planes(pixels: np.ndarray) -> np.ndarray:
    return pixels.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)


def _batch(raw: bytes, labels: bytes) -> Split:
    content = _PlainUnpickler(io.BytesIO(raw), encoding="bytes").load()
    return _planes(np.asarray(content[b"data"], np.uint8)), np.asarray(content[labels])


class _PlainUnpickler(pickle.Unpickler):
    """Arrays of numbers, beside the lists, numbers and text that need no class; a file can be from anybody."""

    _ALLOWED = ("dtype", "ndarray", "_reconstruct")

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in self._ALLOWED:
            return np.empty(0).__reduce__()[0] if name == "_reconstruct" else getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes in the old protocols
            return lambda text, encoding: text.encode(encoding)
        raise ValueError(f"this pickle file asks for {module}.{name}: it is not a CIFAR batch, and was not opened.")


def _strips(paths: list[Path]) -> np.ndarray:
    parts = []
    for path in paths:
        try:
            cells = np.asarray(picture(path)).reshape(-1, _SIDE, _COLUMNS, _SIDE, 3).transpose(2, 0, 1, 3, 4)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} is truncated or damaged ({error}): get it again.") from error
        parts.append(cells.reshape(-1, _SIDE, _SIDE, 3))
    return np.concatenate(parts)


def _first(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_file()), None)
