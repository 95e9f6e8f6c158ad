"""npz files: arrays x and y, and nothing that could run code."""

import io
import zipfile

import numpy as np
import pytest

from peppermill.sources import npz
from peppermill.sources.npz import data


class Explosive:
    """Unpickling it would be noticed."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    return {"x": generator.normal(size=(6, 3)).astype(np.float32), "y": np.array([0, 2, 1, 1, 0, 2])}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_was_saved_comes_back(tmp_path, arrays, save):
    save(tmp_path / "data.npz", **arrays)
    inputs, labels = data(str(tmp_path / "data.npz"))
    assert inputs.dtype == np.float32
    np.testing.assert_array_equal(inputs, arrays["x"])
    np.testing.assert_array_equal(labels, arrays["y"])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_a_large_array_is_mapped_and_not_read(tmp_path, arrays, monkeypatch, order, version):
    """Whatever stands before its numbers in the file; a compressed one is read."""
    monkeypatch.setattr(npz, "MAPPED_BYTES", 1)
    arrays["x"] = np.asarray(arrays["x"], order=order)
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as raw:
                np.lib.format.write_array(raw, array, version)
    inputs, labels = data(str(tmp_path / "data.npz"))
    assert isinstance(inputs, np.memmap)
    np.testing.assert_array_equal(inputs, arrays["x"])
    np.testing.assert_array_equal(labels, arrays["y"])
    inputs[:] = 0  # a network that writes to its inputs does not reach the file
    np.testing.assert_array_equal(data(str(tmp_path / "data.npz"))[0], arrays["x"])
    np.savez_compressed(tmp_path / "small.npz", **arrays)
    assert not isinstance(data(str(tmp_path / "small.npz"))[0], np.memmap)


@pytest.mark.parametrize("name", ["x", "y"])
def test_pickled_objects_are_refused_and_not_run(tmp_path, arrays, name):
    arrays[name] = np.array([Explosive()], dtype=object)
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ValueError, match=rf"the array {name} of .*data\.npz holds pickled objects.*are refused"):
        data(str(tmp_path / "data.npz"))


def test_inputs_with_names_are_a_dict(tmp_path, arrays):
    np.savez(tmp_path / "data.npz", **{"x.ids": arrays["x"], "x.mask": arrays["x"] > 0, "y": arrays["y"]})
    inputs, labels = data(str(tmp_path / "data.npz"))
    assert list(inputs) == ["ids", "mask"]
    assert np.array_equal(inputs["ids"], arrays["x"])
    assert np.array_equal(labels, arrays["y"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*nowhere\.npz"):
        data(str(tmp_path / "nowhere.npz"))


@pytest.mark.parametrize(("kept", "missing"), [("x", "y"), ("y", "x")])
def test_a_missing_array_is_named_with_what_is_there(tmp_path, arrays, kept, missing):
    np.savez(tmp_path / "data.npz", **{kept: arrays[kept], "other": arrays[missing]})
    with pytest.raises(ValueError, match=rf"has no array {missing}, only {kept}, other: save it with `np\.savez"):
        data(str(tmp_path / "data.npz"))


def test_two_missing_arrays_are_both_named(tmp_path, arrays):
    np.savez(tmp_path / "data.npz", inputs=arrays["x"])
    with pytest.raises(ValueError, match="has no array x and no y, only inputs"):
        data(str(tmp_path / "data.npz"))


def test_what_is_no_npz_file_is_not_called_a_pickle(tmp_path, arrays):
    np.savez(tmp_path / "whole.npz", **arrays)
    np.save(tmp_path / "single.npy", arrays["x"])
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "half.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-40])
    for name in ("single.npy", "text.npz", "empty.npz", "half.npz"):
        with pytest.raises(ValueError, match=rf"{name} is not an npz file, or is truncated: save it with `np\.savez"):
            data(str(tmp_path / name))


def test_a_damaged_array_is_named(tmp_path, arrays):
    np.savez(tmp_path / "data.npz", **arrays)
    raw = bytearray((tmp_path / "data.npz").read_bytes())
    raw[raw.index(arrays["x"].tobytes()[:8])] ^= 1
    (tmp_path / "data.npz").write_bytes(raw)
    with pytest.raises(ValueError, match=r"the array x of .*data\.npz is damaged \(Bad CRC-32"):
        data(str(tmp_path / "data.npz"))


def test_an_entry_that_is_no_array_is_refused(tmp_path, arrays):
    buffer = io.BytesIO()
    np.save(buffer, arrays["y"])
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("y.npy", buffer.getvalue())
        archive.writestr("x.npy", b"not an array")
    with pytest.raises(ValueError, match=r"the array x of .* has shape \[\] and type .*: expected numbers"):
        data(str(tmp_path / "data.npz"))


def test_an_array_that_is_cut_short_is_not_called_a_pickle(tmp_path, arrays):
    entries = {}
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array)
        entries[name] = buffer.getvalue()
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x.npy", entries["x"][:-8])
        archive.writestr("y.npy", entries["y"])
    with pytest.raises(ValueError, match=r"the array x of .*data\.npz is damaged .*: save it again"):
        data(str(tmp_path / "data.npz"))


@pytest.mark.parametrize("labels", [np.array(3), np.array(["cat"] * 6), np.array([1 + 2j] * 6)])
def test_labels_that_are_no_numbers_of_items_are_refused(tmp_path, arrays, labels):
    np.savez(tmp_path / "data.npz", x=arrays["x"], y=labels)
    with pytest.raises(ValueError, match=r"the array y of .* has shape .* and type .*: expected numbers, one entry"):
        data(str(tmp_path / "data.npz"))


def test_arrays_of_different_lengths_are_refused_before_they_are_read(tmp_path):
    """The larger one promises 40 TB, more than any machine has, and holds nothing."""
    header, labels = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 10)})
    np.save(labels, np.zeros(3, dtype=int))
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", labels.getvalue())
    with pytest.raises(ValueError, match=r"have different lengths \(x 1,000,000,000,000, y 3\): each input needs one"):
        data(str(tmp_path / "data.npz"))


def test_arrays_that_exceed_the_memory_are_refused_before_they_are_read(tmp_path, monkeypatch):
    """On a machine of one page of 16 kB."""
    np.savez_compressed(tmp_path / "data.npz", x=np.zeros((1000, 10)), y=np.zeros(1000, dtype=int))
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 16384, "SC_PHYS_PAGES": 1}.get)
    with pytest.raises(ValueError, match=r"data\.npz take 0 GB, more than this machine has: save them with `np"):
        data(str(tmp_path / "data.npz"))
