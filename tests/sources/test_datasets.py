"""Data sets by name: every published format, and downloads that break, lie or resume; all on files made here."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peppermill.sources import data_from, image_files
from peppermill.sources import small_images as datasets
from peppermill.sources.download import RemoteFile, fetch

GENERATOR = np.random.default_rng(0)
GREY = {split: GENERATOR.integers(0, 256, (n, 28, 28), dtype=np.uint8) for split, n in (("train", 7), ("test", 3))}
COLOUR = {
    split: GENERATOR.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for split, n in (("train", 10), ("test", 4))
}
LABELS = {split: (np.arange(len(COLOUR[split])) * 3 % 10).astype(np.uint8) for split in COLOUR}


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(header + array.tobytes())


def idx_files() -> dict[str, bytes]:
    files = {}
    for part, split in (("train", "train"), ("t10k", "test")):
        files[f"{part}-images-idx3-ubyte.gz"] = idx(GREY[split])
        files[f"{part}-labels-idx1-ubyte.gz"] = idx(LABELS["train"][: len(GREY[split])])
    return files


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def binary_files(name: str) -> dict[str, bytes]:
    """CIFAR's binary version: five batches and a test batch, or train and test with a coarse label first."""
    if name == "cifar100":
        rows = {s: np.column_stack([LABELS[s] // 2, LABELS[s], planes(COLOUR[s])]) for s in COLOUR}
        return {f"cifar-100-binary/{s}.bin": rows[s].astype(np.uint8).tobytes() for s in COLOUR}
    rows = {s: np.column_stack([LABELS[s], planes(COLOUR[s])]).astype(np.uint8) for s in COLOUR}
    batches = {
        f"cifar-10-batches-bin/data_batch_{k + 1}.bin": rows["train"][2 * k : 2 * k + 2].tobytes() for k in range(5)
    }
    return batches | {"cifar-10-batches-bin/test_batch.bin": rows["test"].tobytes()}


def python_files(name: str, protocol: int) -> dict[str, bytes]:
    """CIFAR's python version: the published files have protocol 2, whose byte keys come from Python 2."""

    def pickled(images: np.ndarray, labels: np.ndarray) -> bytes:
        key = b"fine_labels" if name == "cifar100" else b"labels"
        return pickle.dumps({b"data": planes(images), key: labels.tolist(), b"batch_label": b"one"}, protocol)

    train, test = (COLOUR["train"], LABELS["train"]), (COLOUR["test"], LABELS["test"])
    if name == "cifar100":
        return {"cifar-100-python/train": pickled(*train), "cifar-100-python/test": pickled(*test)}
    parts = {k + 1: (train[0][2 * k : 2 * k + 2], train[1][2 * k : 2 * k + 2]) for k in range(5)}
    batches = {f"cifar-10-batches-py/data_batch_{k}": pickled(*part) for k, part in parts.items()}
    return batches | {"cifar-10-batches-py/test_batch": pickled(*test)}


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def check_colour(found: datasets.Images) -> None:
    for split in ("train", "test"):
        pixels, labels = getattr(found, split)
        np.testing.assert_array_equal(pixels.numpy(), COLOUR[split].transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(labels.numpy(), LABELS[split])


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw"])
def test_idx_files_are_read_with_and_without_gz(tmp_path: Path, place: str) -> None:
    files = idx_files()
    plain = files.pop("t10k-images-idx3-ubyte.gz")
    write(tmp_path / place, files | {"t10k-images-idx3-ubyte": gzip.decompress(plain)})
    found = datasets.images("mnist", tmp_path)
    np.testing.assert_array_equal(found.train[0].numpy()[:, 0], GREY["train"])
    np.testing.assert_array_equal(found.test[0].numpy()[:, 0], GREY["test"])
    assert found.train[1].dtype == torch.int64


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("version", ["binary", "python 2", "python 4"])
def test_every_version_of_cifar_gives_the_same_images(tmp_path: Path, name: str, packed: bool, version: str) -> None:
    kind, _, protocol = version.partition(" ")
    files = binary_files(name) if kind == "binary" else python_files(name, int(protocol))
    number = name.removeprefix("cifar")
    write(tmp_path, {f"{name}/cifar-{number}-{kind}.tar.gz": archive(files)} if packed else files)
    check_colour(datasets.images(name, tmp_path))


def test_an_npz_is_read(tmp_path: Path) -> None:
    arrays = {f"{kind}_{s}": value[s] for kind, value in (("x", COLOUR), ("y", LABELS)) for s in COLOUR}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    check_colour(datasets.images("cifar10", tmp_path))
    np.savez(tmp_path / "cifar100.npz", x_train=COLOUR["train"])
    with pytest.raises(ValueError, match="must hold the arrays x_train, y_train, x_test and y_test"):
        datasets.images("cifar100", tmp_path)


def test_strips_are_read_column_by_column(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    folder = tmp_path / "cifar10"
    folder.mkdir()
    images = {s: GENERATOR.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8) for s in ("train", "test")}
    for split, pixels in images.items():
        columns = [np.concatenate(list(pixels[2 * k : 2 * k + 2])) for k in range(4)]  # two images in each column
        pillow.fromarray(np.concatenate(columns, axis=1)).save(folder / f"{split}_00.webp", lossless=True)
    np.savez(folder / "labels.npz", train=np.arange(8), test=np.arange(8))
    found = datasets.images("cifar10", tmp_path)
    np.testing.assert_array_equal(found.train[0].numpy(), images["train"].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(found.test[0].numpy(), images["test"].transpose(0, 3, 1, 2))
    (folder / "train_00.webp").write_bytes((folder / "train_00.webp").read_bytes()[:50])
    with pytest.raises(ValueError, match=r"train_00.webp is truncated or damaged .* get it again"):
        datasets.images("cifar10", tmp_path)
    (folder / "labels.npz").write_bytes(b"labels")
    with pytest.raises(ValueError, match=r"labels.npz must hold the arrays train and test"):
        datasets.images("cifar10", tmp_path)


def test_a_pickle_that_asks_for_anything_else_is_not_opened(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            return eval, (f"open({str(tmp_path / 'opened')!r}, 'w')",)

    write(tmp_path, python_files("cifar10", 4) | {"cifar-10-batches-py/data_batch_1": pickle.dumps(Evil())})
    with pytest.raises(ValueError, match=r"asks for builtins.eval: it is not a CIFAR batch, and was not opened"):
        datasets.images("cifar10", tmp_path)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        gzip.compress(b"\x00\x00\x09\x01"),
        idx(GREY["train"])[:-40],
        b"not gzip",
        idx(GREY["train"])[:10] + b"!" * 99,
    ],
    ids=[
        "empty",
        "of another type",
        "cut off",
        "not gzip",
        "overwritten",
    ],  # gzip writes the time, and a test's name must not change
)
def test_a_damaged_file_is_named(tmp_path: Path, damaged: bytes) -> None:
    write(tmp_path / "mnist", idx_files() | {"train-images-idx3-ubyte.gz": damaged})
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz is truncated or damaged .* get it again"):
        datasets.images("mnist", tmp_path)


@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("damage", ["absent", "empty", "cut off"])
def test_a_damaged_part_of_cifar_is_named(tmp_path: Path, version: str, packed: bool, damage: str) -> None:
    files = binary_files("cifar10") if version == "binary" else python_files("cifar10", 2)
    damaged = next(name for name in files if "data_batch_3" in name)
    whole = files.pop(damaged)
    files |= {} if damage == "absent" else {damaged: whole[:-40] if damage == "cut off" else b""}
    archived = f"cifar-10-{version}.tar.gz"
    write(tmp_path, {archived: archive(files)} if packed else files)
    with pytest.raises(ValueError, match=rf"data_batch_3.* in .* is absent or damaged .* get {archived} again"):
        datasets.images("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_train": np.zeros((7, 32, 32), np.uint8)}, r"an image is of shape \(1, 32, 32\), not \(1, 28, 28\)"),
        ({"x_train": np.zeros((7, 784), np.uint8)}, r"an image is of shape \(784,\), not \(1, 28, 28\)"),
        ({"y_test": np.array([0, -1, 2])}, "a label is -1, but there are 10 classes, numbered from 0"),
        ({"y_test": np.array([0.5, 1.0, 2.0])}, "a label is 0.5, but there are 10 classes"),
    ],
)
def test_arrays_that_are_not_this_data_set_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    arrays = {"x_train": GREY["train"], "y_train": np.arange(7), "x_test": GREY["test"], "y_test": np.arange(3)}
    np.savez(tmp_path / "mnist.npz", **arrays | changed)
    with pytest.raises(ValueError, match=f"mnist is damaged: {message}"):
        datasets.images("mnist", tmp_path)


def test_labels_must_be_as_many_as_images_and_of_known_classes(tmp_path: Path) -> None:
    labels = np.zeros(7, np.uint8)
    write(tmp_path / "mnist", idx_files() | {"train-labels-idx1-ubyte.gz": idx(labels[:-1])})
    with pytest.raises(ValueError, match="mnist is damaged: 7 images of type uint8 and 6 labels"):
        datasets.images("mnist", tmp_path)
    labels[3] = 10
    write(tmp_path / "mnist", {"train-labels-idx1-ubyte.gz": idx(labels)})
    with pytest.raises(ValueError, match="a label is 10, but there are 10 classes"):
        datasets.images("mnist", tmp_path)


def test_the_command_line_knows_them_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "fashion-mnist", idx_files())
    monkeypatch.setenv("PEPPERMILL_DATA", str(tmp_path))
    images, labels = data_from("fashion-mnist:test")
    np.testing.assert_allclose(images.numpy()[:, 0], GREY["test"] / np.float32(255))
    assert len(labels) == 3
    with pytest.raises(ValueError, match="fashion-mnist:valid must be fashion-mnist:train or fashion-mnist:test"):
        data_from("fashion-mnist:valid")


def test_a_named_folder_without_the_data_says_what_is_missing_and_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"mnist is not in .* Put train-images-idx3-ubyte.gz, .*yann.lecun.com"):
        datasets.images("mnist", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"one of cifar-10-binary.tar.gz, cifar-10-python.tar.gz .*toronto.edu"):
        datasets.images("cifar10", tmp_path)
    with pytest.raises(ValueError, match="there is no data set 'svhn': choose one of mnist, fashion-mnist"):
        datasets.images("svhn", tmp_path)


class Shelf:
    """A web server on this machine: files by path; some break off, some lie, some do not resume."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks_after: dict[str, int] = {}
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        self.asked.append((handler.path, asked))
        content = self.files.get(handler.path)
        if content is None:
            handler.send_error(404)
            return
        start = int(re.findall(r"\d+", asked)[0]) if asked and self.ranges else 0
        if start >= len(content):
            handler.send_error(416)
            return
        handler.send_response(206 if asked and self.ranges else 200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        limit = self.breaks_after.pop(handler.path, None)
        handler.wfile.write(content[start:] if limit is None else content[start : start + limit])


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shelf.answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    shelf.address = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
    yield shelf
    server.shutdown()
    server.server_close()
    thread.join()


CONTENT = GENERATOR.integers(0, 256, 100_000, dtype=np.uint8).tobytes()


def remote(shelf: Shelf, *paths: str) -> RemoteFile:
    addresses = tuple(f"{shelf.address}{path}" for path in paths)  # type: ignore[attr-defined]
    return RemoteFile("file.bin", hashlib.sha256(CONTENT).hexdigest(), addresses)


def test_a_download_that_breaks_off_is_not_used_and_resumes(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files["/file.bin"], shelf.breaks_after["/file.bin"] = CONTENT, 30_000
    with pytest.raises(OSError, match=r"file.bin could not be downloaded: .* broke off|IncompleteRead"):
        fetch(remote(shelf, "/file.bin"), tmp_path)
    assert not (tmp_path / "file.bin").exists()
    assert (tmp_path / "file.bin.part").stat().st_size == 30_000
    assert fetch(remote(shelf, "/file.bin"), tmp_path).read_bytes() == CONTENT
    assert shelf.asked[-1] == ("/file.bin", "bytes=30000-")
    assert not (tmp_path / "file.bin.part").exists()


def test_a_server_that_cannot_resume_is_asked_for_the_whole(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files["/file.bin"], shelf.ranges = CONTENT, False
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(remote(shelf, "/file.bin"), tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_not_ours_is_thrown_away(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files["/file.bin"] = CONTENT
    (tmp_path / "file.bin.part").write_bytes(b"something else")
    assert fetch(remote(shelf, "/file.bin"), tmp_path).read_bytes() == CONTENT
    (tmp_path / "file.bin").unlink()
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"too long")
    assert fetch(remote(shelf, "/file.bin"), tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_whole_needs_no_server(tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    file = RemoteFile("file.bin", hashlib.sha256(CONTENT).hexdigest(), ("http://127.0.0.1:9/none",))
    assert fetch(file, tmp_path).read_bytes() == CONTENT


def test_a_file_with_the_wrong_sum_is_thrown_away_and_the_mirror_is_asked(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files |= {"/wrong/file.bin": b"x" * 500, "/mirror/file.bin": CONTENT}
    assert fetch(remote(shelf, "/absent", "/wrong/file.bin", "/mirror/file.bin"), tmp_path).read_bytes() == CONTENT
    assert [path for path, _ in shelf.asked] == ["/absent", "/wrong/file.bin", "/mirror/file.bin"]
    (tmp_path / "file.bin").unlink()
    with pytest.raises(OSError, match=r"its SHA-256 is .* not .*: it was thrown away"):
        fetch(remote(shelf, "/wrong/file.bin"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def served(shelf: Shelf, name: str, files: dict[str, bytes]) -> datasets.Known:
    """A published data set whose files are on our shelf."""
    shelf.files |= {f"/{file}": content for file, content in files.items()}
    remote_files = tuple(
        RemoteFile(file, hashlib.sha256(content).hexdigest(), (f"{shelf.address}/{file}",))  # type: ignore[attr-defined]
        for file, content in files.items()
    )
    return replace(datasets.DATASETS[name], files=remote_files)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PEPPERMILL_DATA", raising=False)
    return tmp_path / "peppermill"


def test_a_data_set_is_downloaded_once_into_the_cache(
    shelf: Shelf, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(datasets.DATASETS, "mnist", served(shelf, "mnist", idx_files()))
    first = datasets.images("mnist")
    assert len(shelf.asked) == 4
    assert torch.equal(datasets.images("mnist").train[0], first.train[0])
    assert len(shelf.asked) == 4
    assert sorted(file.name for file in (cache / "mnist").iterdir()) == sorted(idx_files())


def test_of_several_archives_the_first_that_can_be_had_is_enough(
    shelf: Shelf, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = {f"cifar-10-{kind}.tar.gz": b"" for kind in ("binary", "python")}
    archives["cifar-10-python.tar.gz"] = archive(python_files("cifar10", 2))
    known = served(shelf, "cifar10", archives)
    del shelf.files["/cifar-10-binary.tar.gz"]
    monkeypatch.setitem(datasets.DATASETS, "cifar10", known)
    check_colour(datasets.images("cifar10"))


def test_offline_without_data_the_message_has_names_and_addresses(
    shelf: Shelf, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = served(shelf, "mnist", idx_files())
    shelf.files.clear()
    monkeypatch.setitem(datasets.DATASETS, "mnist", known)
    with pytest.raises(OSError, match=r"Put train-images-idx3-ubyte.gz, .*\(from http://127.0.0.1:\d+/\).* 404"):
        datasets.images("mnist")


def test_the_sums_that_we_ask_for_are_sha_256_of_every_file() -> None:
    files = [file for known in datasets.DATASETS.values() for file in known.files]
    assert len({file.sha256 for file in files}) == len(files) == 12
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in files)
    assert all(address.rpartition("/")[2] == file.name for file in files for address in file.addresses)


def test_an_empty_folder_has_no_form(tmp_path: Path) -> None:
    for reader in (image_files.idx, image_files.cifar10_binary, image_files.cifar100_python):
        assert reader(tmp_path) is None
