"""The data sets in every form that their reader knows."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.image_sets import read_image_set


def test_the_published_files_of_mnist_are_read(data_folder: Path) -> None:
    found = read_image_set("mnist", data_folder)
    assert found.train[0].shape == (300, 1, 28, 28)
    assert found.test[1].shape == (100,)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_archive_strips_and_arrays_give_the_same_images(data_folder: Path, tmp_path: Path, name: str) -> None:
    """40 images in a strip: 4 columns of 10; CIFAR-100 has a coarse label before the fine one."""
    generator = np.random.default_rng(3)
    images = {split: generator.integers(0, 256, (40, 32, 32, 3), np.uint8) for split in ("train", "test")}
    labels = {split: generator.integers(0, 10, 40).astype(np.uint8) for split in ("train", "test")}
    arrays, archive, strips = (tmp_path / form for form in ("arrays", "archive", "strips"))
    arrays.mkdir()
    np.savez(arrays / f"{name}.npz", **{f"x_{s}": images[s] for s in images}, **{f"y_{s}": labels[s] for s in labels})
    (strips / name).mkdir(parents=True)
    np.savez(strips / name / "labels.npz", **labels)
    (archive / name).mkdir(parents=True)
    with tarfile.open(archive / name / f"cifar-{name[5:]}-binary.tar.gz", "w:gz") as file:
        for split, pixels in images.items():
            columns = pixels.reshape(4, 10, 32, 32, 3).transpose(1, 2, 0, 3, 4).reshape(10 * 32, 4 * 32, 3)
            Image.fromarray(columns).save(strips / name / f"{split}_00.webp", lossless=True)
            planes = pixels.transpose(0, 3, 1, 2).reshape(40, -1)
            coarse = [np.zeros((40, 1), np.uint8)] if name == "cifar100" else []
            raw = np.hstack([*coarse, labels[split][:, None], planes]).tobytes()
            entry = tarfile.TarInfo(f"folder/{'test_batch' if split == 'test' else 'data_batch_1'}.bin")
            entry.size = len(raw)
            file.addfile(entry, io.BytesIO(raw))
    expected = read_image_set(name, arrays)
    for folder in (archive, strips):
        found = read_image_set(name, folder)
        for split in ("train", "test"):
            for ours, theirs in zip(getattr(found, split), getattr(expected, split), strict=True):
                assert ours.equal(theirs)


def test_absent_and_damaged_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEPPERMILL_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"mnist is not in .*: put its files into"):
        read_image_set("mnist")
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"mnist in .* is damaged or incomplete"):
        read_image_set("mnist")
