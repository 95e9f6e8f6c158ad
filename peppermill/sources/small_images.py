"""`mnist:test`, `fashion-mnist:`, `cifar10:`, `cifar100:` with `train` or `test`: downloaded once, checked, cached.

`cifar10:test?mean=0.491,0.482,0.447&std=0.247,0.243,0.262` scales the images as a network wants them. If you have the
files already, name their folder with `PEPPERMILL_DATA`: it holds `mnist/`, `fashion-mnist/`, `cifar10/`, `cifar100/`
with the published files (CIFAR's binary version), or `NAME.npz` with the arrays x_train [N, 28, 28] or [N, 32, 32, 3],
y_train, x_test, y_test.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tarfile
import urllib.request
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from peppermill.plumbing.files import cache_folder, write_atomically
from peppermill.plumbing.progress import progress
from peppermill.sources.pictures import mean_and_std
from peppermill.sources.source import split_query

VARIABLE = "PEPPERMILL_DATA"
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Published:
    """A data set: classes, shape of an image, SHA-256 of its files by name, and the folders that offer them."""

    classes: int
    shape: tuple[int, int, int]  # channels, height, width
    sums: dict[str, str]
    folders: tuple[str, ...]


TORONTO = ("https://www.cs.toronto.edu/~kriz/",)
DATASETS = {
    "mnist": Published(
        10,
        (1, 28, 28),
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ),
    "fashion-mnist": Published(
        10,
        (1, 28, 28),
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
    ),
    "cifar10": Published(
        10,
        (3, 32, 32),
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        TORONTO,
    ),
    "cifar100": Published(
        100,
        (3, 32, 32),
        {"cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"},
        TORONTO,
    ),
}


def data(name: str, text: str, *_: object) -> tuple[Tensor, Tensor]:
    """(images, labels) of `name:train` or `name:test`: 0..1, or minus mean over std if the options say so."""
    split, options = split_query(text, name, ("mean", "std"))
    published = DATASETS[name]
    if split not in ("train", "test"):
        raise ValueError(f"{name}:{split} must be {name}:train or {name}:test.")
    mean, std = mean_and_std(f"{name}:{split}", options, published.shape[:1])
    pixels, labels = _read(name, published, split)
    images = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
    inside = labels.dtype.kind in "iu" and len(labels) and labels.min() >= 0 and labels.max() < published.classes
    if images.shape != (len(labels), *published.shape) or images.dtype != np.uint8 or not inside:
        raise ValueError(
            f"{name} is damaged: it has images {list(images.shape)} of type {images.dtype} and {len(labels)} labels. "
            f"Expected bytes (uint8) of shape {list(published.shape)}, and a label in 0..{published.classes - 1} for "
            "each. Get it again."
        )
    scaled = (torch.from_numpy(images.copy()).float() / 255 - mean) / std
    return scaled, torch.from_numpy(labels.astype(np.int64))


def _read(name: str, published: Published, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes [N, height, width] or [N, height, width, 3], and labels."""
    folder = Path(os.environ.get(VARIABLE) or cache_folder()) / name
    npz = next((path for path in (folder / f"{name}.npz", folder.with_name(f"{name}.npz")) if path.is_file()), None)
    if npz is None:
        _download(name, published, folder)
    try:
        if npz:
            with np.load(npz, allow_pickle=False) as arrays:
                return arrays[f"x_{split}"], arrays[f"y_{split}"].ravel()
        if published.shape[0] == 3:
            return _cifar(folder / next(iter(published.sums)), split)
        images, labels = (folder / file for file in published.sums if file.startswith(split.replace("test", "t10k")))
        return read_idx(images), read_idx(labels)
    except Exception as error:  # damaged bytes can make a decoder raise anything
        raise ValueError(f"{npz or folder} is incomplete or damaged ({error}): delete it and get it again.") from error


def read_idx(path: Traversable) -> np.ndarray:
    """The array in a file of MNIST's format; `path` is a Path or a resource of a package."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path.name} does not begin as an idx file of bytes does")
    shape = np.frombuffer(raw, ">i4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def _cifar(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label, or of a coarse and a fine one, and 3,072 bytes: red, green, blue."""
    names = ("data_batch", "train.bin") if split == "train" else ("test",)
    with tarfile.open(path, "r:gz") as archive:
        members = [name for name in sorted(archive.getnames()) if Path(name).name.startswith(names)]
        raw = b"".join(archive.extractfile(name).read() for name in members)  # type: ignore[union-attr]
    labels = 2 if "100" in path.name else 1
    records = np.frombuffer(raw, np.uint8).reshape(-1, labels + 3072)
    return records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, labels - 1]


def _download(name: str, published: Published, folder: Path) -> None:
    """Get the files that are not there, and write them only if they are whole; nothing if the user named the folder."""
    missing, failures = [file for file in published.sums if not (folder / file).is_file()], []
    for file in missing if VARIABLE not in os.environ else ():
        for address in published.folders:
            request = urllib.request.Request(address + file, headers={"User-Agent": "peppermill"})
            try:
                with (
                    progress(f"downloading {file}"),
                    urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer,
                ):
                    content = answer.read()
                if hashlib.sha256(content).hexdigest() != published.sums[file]:
                    raise OSError("its SHA-256 is not the published one")
                write_atomically(folder / file, content)
                break
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{address}{file} ({error})")
    if not all((folder / file).is_file() for file in missing):
        tried = f" Tried {'; '.join(failures)}." if failures else ""
        raise FileNotFoundError(
            f"{name} is not in {folder}. Put {', '.join(published.sums)} (from {published.folders[0]}) into a folder "
            f"{name}/ and name its parent with {VARIABLE}, or unset {VARIABLE} and connect to the network.{tried}"
        )
