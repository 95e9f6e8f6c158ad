"""Data sets by name: the published files, npz, and downloads that break or lie; all on files made here."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from peppermill.sources import data_from
from peppermill.sources.small_images import DATASETS

GENERATOR = np.random.default_rng(0)
GREY = {split: GENERATOR.integers(0, 256, (n, 28, 28), dtype=np.uint8) for split, n in (("train", 7), ("test", 3))}
COLOUR = {
    split: GENERATOR.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for split, n in (("train", 10), ("test", 4))
}
LABELS = {split: (np.arange(len(COLOUR[split])) * 3 % 10).astype(np.uint8) for split in COLOUR}


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(header + array.tobytes())


def idx_files():
    files = {}
    for part, split in (("train", "train"), ("t10k", "test")):
        files[f"{part}-images-idx3-ubyte.gz"] = idx(GREY[split])
        files[f"{part}-labels-idx1-ubyte.gz"] = idx(LABELS["train"][: len(GREY[split])])
    return files


def binary_archive(name):
    """CIFAR's binary version: five batches and a test batch, or train and test with a coarse label first."""
    planes = {split: images.transpose(0, 3, 1, 2).reshape(len(images), -1) for split, images in COLOUR.items()}
    if name == "cifar100":
        rows = {split: np.column_stack([LABELS[split] // 2, LABELS[split], planes[split]]) for split in COLOUR}
        files = {f"cifar-100-binary/{split}.bin": rows[split].astype(np.uint8).tobytes() for split in COLOUR}
        files["cifar-100-binary/fine_label_names.txt"] = b"apple"
    else:
        rows = {split: np.column_stack([LABELS[split], planes[split]]).astype(np.uint8) for split in COLOUR}
        parts = {f"data_batch_{k + 1}.bin": rows["train"][2 * k : 2 * k + 2].tobytes() for k in range(5)}
        parts |= {"test_batch.bin": rows["test"].tobytes(), "batches.meta.txt": b"airplane"}
        files = {f"cifar-10-batches-bin/{part}": content for part, content in parts.items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for file, content in files.items():
            member = tarfile.TarInfo(file)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEPPERMILL_DATA", str(tmp_path))
    return tmp_path


def test_idx_files_are_read(folder):
    write(folder / "fashion-mnist", idx_files())
    for split in ("train", "test"):
        images, labels = data_from(f"fashion-mnist:{split}")
        np.testing.assert_allclose(images.numpy()[:, 0], GREY[split] / np.float32(255))
        assert labels.tolist() == LABELS["train"][: len(images)].tolist()
    with pytest.raises(ValueError, match="fashion-mnist:valid must be fashion-mnist:train or fashion-mnist:test"):
        data_from("fashion-mnist:valid")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", ["archive", "npz"])
def test_cifar_is_read_from_its_archive_and_from_npz(folder, name, form):
    if form == "archive":
        write(folder / name, {f"cifar-{name.removeprefix('cifar')}-binary.tar.gz": binary_archive(name)})
    else:
        arrays = {f"{kind}_{s}": value[s] for kind, value in (("x", COLOUR), ("y", LABELS)) for s in COLOUR}
        np.savez(folder / f"{name}.npz", **arrays)
    for split in COLOUR:
        images, labels = data_from(f"{name}:{split}")
        np.testing.assert_allclose(images.numpy(), COLOUR[split].transpose(0, 3, 1, 2) / np.float32(255))
        assert labels.tolist() == LABELS[split].tolist()
        assert labels.dtype == torch.int64


def test_mean_and_std_scale_the_images(folder):
    write(folder / "cifar10", {"cifar-10-binary.tar.gz": binary_archive("cifar10")})
    plain, _ = data_from("cifar10:test")
    scaled, _ = data_from("cifar10:test?mean=0.5,0.4,0.3&std=0.2,0.25,0.5")
    expected = (plain[:, 2] - 0.3) / 0.5
    torch.testing.assert_close(scaled[:, 2], expected)
    with pytest.raises(ValueError, match=r"cifar10:test: `mean=0.5` must be 3 numbers, separated by commas"):
        data_from("cifar10:test?mean=0.5")


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        gzip.compress(b"\x00\x00\x09\x01"),
        idx(GREY["train"])[:-40],
        b"no gzip",
        idx(GREY["train"])[:10] + b"!" * 99,
    ],
    ids=["empty", "of another type", "cut off", "not gzip", "overwritten"],
)
def test_a_damaged_file_is_named(folder, damaged):
    write(folder / "mnist", idx_files() | {"train-images-idx3-ubyte.gz": damaged})
    with pytest.raises(ValueError, match=r"mnist is incomplete or damaged .* get it again"):
        data_from("mnist:train")


@pytest.mark.parametrize(
    "content", [b"", b"no archive", binary_archive("cifar10")[:-2000]], ids=["empty", "not an archive", "cut off"]
)
def test_a_damaged_archive_is_named(folder, content):
    write(folder / "cifar10", {"cifar-10-binary.tar.gz": content})
    with pytest.raises(ValueError, match=r"cifar10 is incomplete or damaged .* get it again"):
        data_from("cifar10:train")


@pytest.mark.parametrize(
    "changed",
    [
        {"x_test": np.zeros((3, 32, 32), np.uint8)},
        {"x_test": np.zeros((3, 28, 28), np.float32)},
        {"x_test": np.zeros((2, 28, 28), np.uint8)},
        {"y_test": np.array([0, -1, 2])},
        {"y_test": np.array([0, 10, 2])},
        {"y_test": np.array([0.5, 1.0, 2.0])},
    ],
)
def test_arrays_that_are_not_this_data_set_are_refused(folder, changed):
    arrays = {"x_train": GREY["train"], "y_train": np.arange(7), "x_test": GREY["test"], "y_test": np.arange(3)}
    np.savez(folder / "mnist.npz", **arrays | changed)
    with pytest.raises(
        ValueError, match=r"mnist is damaged: it has images .* Expected bytes \(uint8\) of shape \[1, 28"
    ):
        data_from("mnist:test")


def test_an_npz_without_an_array_is_refused(folder):
    np.savez(folder / "cifar100.npz", x_train=COLOUR["train"])
    with pytest.raises(ValueError, match=r"cifar100.npz is incomplete or damaged .*x_test"):
        data_from("cifar100:test")


def test_a_named_folder_without_the_data_says_what_is_missing_and_where_it_is(folder):
    with pytest.raises(FileNotFoundError, match=r"mnist is not in .* Put train-images-idx3-ubyte.gz, .* \(from https:"):
        data_from("mnist:test")
    with pytest.raises(FileNotFoundError, match=r"Put cifar-10-binary.tar.gz \(from https://www.cs.toronto.edu"):
        data_from("cifar10:test")


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A web server on this machine that offers the files in a dict; those in `/broken/` break off."""
    files, asked = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            content = files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content) + (100 if "broken" in self.path else 0)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PEPPERMILL_DATA", raising=False)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in idx_files().items()}
    offered = (f"{address}/absent/", f"{address}/broken/", f"{address}/wrong/", f"{address}/right/")
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], sums=sums, folders=offered))
    yield files, asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_data_set_is_downloaded_once_and_only_whole_files_with_the_right_sum_are_kept(shelf, tmp_path):
    files, asked = shelf
    for name, content in idx_files().items():
        files |= {f"/broken/{name}": content[:10], f"/wrong/{name}": b"x" * 500, f"/right/{name}": content}
    images, _ = data_from("mnist:test")
    assert len(asked) == 4 * 4
    assert torch.equal(data_from("mnist:test")[0], images)
    assert len(asked) == 4 * 4
    assert sorted(file.name for file in (tmp_path / "peppermill" / "mnist").iterdir()) == sorted(idx_files())


def test_without_a_connection_the_message_has_names_and_addresses(shelf, tmp_path):
    files, _ = shelf
    files["/wrong/train-images-idx3-ubyte.gz"] = b"x" * 500
    match = r"Put train-images-idx3-ubyte.gz, .*\(from http://127.0.0.1:\d+/.*404.*SHA-256 is not the published one"
    with pytest.raises(FileNotFoundError, match=match):
        data_from("mnist:test")
    assert not list((tmp_path / "peppermill").glob("mnist/*"))


def test_the_sums_that_we_ask_for_are_sha_256_of_every_file():
    sums = [digest for published in DATASETS.values() for digest in published.sums.values()]
    assert len(set(sums)) == len(sums) == 10
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in sums)
