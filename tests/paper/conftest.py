"""Small data sets in the published file formats, on which every experiment runs in seconds."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest


def drawn(items: int, classes: int, shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of bytes that are noise around a pattern of their class, so that there is something to learn."""
    generator = np.random.default_rng(seed)
    patterns = np.random.default_rng(99).uniform(40, 215, (classes, *shape))
    labels = generator.integers(0, classes, items)
    pixels = patterns[labels] + generator.normal(0, 90, (items, *shape))
    return pixels.clip(0, 255).astype(np.uint8), labels.astype(np.uint8)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST and Fashion-MNIST as idx files, CIFAR-10 and CIFAR-100 as npz: 240 + 100 images, of Fashion-MNIST fewer."""
    folder = tmp_path_factory.mktemp("data")
    for name, train, test in (("mnist", 240, 100), ("fashion-mnist", 80, 20)):
        (folder / name).mkdir()
        for part, items in (("train", train), ("t10k", test)):
            pixels, labels = drawn(items, 10, (28, 28), items)
            write_idx(folder / name / f"{part}-images-idx3-ubyte.gz", pixels)
            write_idx(folder / name / f"{part}-labels-idx1-ubyte.gz", labels)
    for seed, (name, classes) in enumerate((("cifar10", 10), ("cifar100", 100))):
        (x_train, y_train), (x_test, y_test) = (drawn(n, classes, (32, 32, 3), seed + n) for n in (240, 100))
        np.savez(folder / f"{name}.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return folder
