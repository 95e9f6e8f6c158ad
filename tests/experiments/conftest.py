"""Small data sets in the published file formats, on which every experiment runs in seconds."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import peppermill as pm
from experiments import table2
from experiments.settings import Settings


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


def write_data(folder: Path, seed: int = 0) -> Path:
    """MNIST and Fashion-MNIST as idx files, CIFAR-10 and CIFAR-100 as npz: 300 + 100 images each."""
    for name in ("mnist", "fashion-mnist"):
        (folder / name).mkdir(parents=True)
        for part, items in (("train", 300), ("t10k", 100)):
            pixels, labels = drawn(items, 10, (28, 28), seed + items)
            write_idx(folder / name / f"{part}-images-idx3-ubyte.gz", pixels)
            write_idx(folder / name / f"{part}-labels-idx1-ubyte.gz", labels)
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        (x_train, y_train), (x_test, y_test) = (drawn(n, classes, (32, 32, 3), seed + n) for n in (300, 100))
        np.savez(folder / f"{name}.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return folder


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def tiny(folder: Path, out: Path, **changes: Any) -> Settings:
    small: dict[str, Any] = {
        "rows": ("mnist-mlp",), "models": 2, "epochs": 2, "size": 4, "dropout_passes": 3, "ensemble_size": 2,
        "ensemble_draws": 3, "our_tuning_size": 4,
    }  # fmt: skip
    places = {"data": folder, "out": out / "results", "checkpoints": out / "work"}
    return Settings(**places, say=lambda text: None, **small | changes)


@pytest.fixture(scope="session")
def whole(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, dict[str, Any]]:
    """A row of Table 2, never killed. Not to be changed."""
    settings = tiny(data_folder, tmp_path_factory.mktemp("whole"))
    return settings, table2.main(settings)["mnist-mlp"]


@pytest.fixture(autouse=True)
def quiet() -> None:
    """On so few items noise may not help."""
    warnings.simplefilter("ignore", pm.PepWarning)
