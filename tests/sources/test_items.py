"""Items that are read once, by several threads, into memory or into a file that nobody sees."""

import errno
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import peppermill as pm
from peppermill.data import Batches
from peppermill.sources import stored
from peppermill.sources.items import Items, cores
from peppermill.sources.levels import Levels, levels_of
from peppermill.sources.pictures import constant_picture
from peppermill.sources.preparation import Preparation
from peppermill.sources.stored import Column, Unpacking
from peppermill.types import PepWarning
from tests.sources.pictures import picture

PREPARE = Preparation(8, 10, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
FLOATS = 3 * 8 * 8 * 4  # bytes of one prepared picture


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Where a file of prepared items goes."""
    (tmp_path / "room").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "room"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "room"


def items(count=20, load=picture, prepare=PREPARE, **more):
    labels = torch.arange(count) % 3
    return Items("imagefolder:x", [f"{k}.png" for k in range(count)], labels, load, prepare, **more)


def read_all(data, batch_size=7):
    found = list(Batches(data, batch_size=batch_size))
    return torch.cat([inputs for inputs, _ in found]), torch.cat([labels for _, labels in found])


def expected(rows, prepare=PREPARE):
    return torch.stack([prepare(picture(int(k))) for k in rows])


PLACES = {"memory": 2**20, "bytes in memory": 20 * FLOATS // 2, "bytes on disk": 100, "nothing": 0}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_read_is_what_a_loop_prepares_wherever_it_is_kept(place, workers):
    data = items(workers=workers).read(PLACES[place])
    for _ in range(2):
        inputs, labels = read_all(data)
        assert torch.equal(inputs, expected(range(20)))
        assert torch.equal(labels, torch.arange(20) % 3)


def test_what_fits_is_kept_as_it_is_and_what_does_not_as_bytes():
    assert isinstance(items().read(20 * FLOATS), tuple)
    packed = items().read(20 * FLOATS - 1)
    assert isinstance(packed, Unpacking)
    assert packed.columns[None].rows.dtype == torch.uint8


@pytest.mark.filterwarnings("ignore:noise does not help here")
def test_an_item_is_loaded_once_in_a_whole_fit():
    """Beyond the limit too, where the data do not fit into the memory that a fit keeps."""
    loaded = []
    lock = threading.Lock()

    def load(row):
        with lock:
            loaded.append(row)
        return picture(row)

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 3)).eval()
    for kept_bytes in (2**20, 0):
        loaded.clear()
        chosen = items(load=load)
        chosen.first_input()
        pep = pm.fit(network, chosen.read(kept_bytes), size=2, lower=0.0, upper=0.1, iterations=3)
        assert len(pep.search.evaluations) > 4
        assert sorted(loaded) == list(range(20))


def test_several_threads_load_at_the_same_time():
    """Each waits for the other: one thread alone would wait in vain."""
    meeting = threading.Barrier(2, timeout=30)

    def load(row):
        if row:  # the first item is read before the threads start
            meeting.wait()
        return picture(row)

    assert len(items(21, load=load, workers=2).read()[1]) == 21


def test_rows_are_taken_with_their_labels_names_and_pictures():
    part = items().take_rows(np.array([2, 5, 19])).take_rows(np.array([0, 2]))
    assert part.names == ["2.png", "19.png"]
    inputs, labels = part.read()
    assert labels.tolist() == [2, 1]
    assert torch.equal(inputs, expected([2, 19]))


def broken(*rows):
    """A loader for which some pictures are damaged."""

    def load(row):
        if row in rows:
            raise OSError(f"image file is truncated\n({row} bytes not processed)")
        return picture(row)

    return load


def test_damaged_items_are_counted_and_the_first_are_named():
    with pytest.raises(ValueError) as error:
        items(load=broken(0, 3, 7, 11, 19)).read()
    assert str(error.value) == (
        "imagefolder:x: 5 of 20 items cannot be read: 0.png (image file is truncated (0 bytes not processed)), "
        "3.png (image file is truncated (3 bytes not processed)), 7.png (image file is truncated (7 bytes not "
        "processed)) and 2 more. Repair or remove them, or add `bad=skip` to go on without them."
    )


@pytest.mark.parametrize("kept_bytes", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("rows", [(0, 1), (4,), (19,), (0, 3, 7, 11, 19)])
def test_damaged_items_may_be_left_out_with_a_warning_that_counts_them(kept_bytes, rows):
    with pytest.warns(
        PepWarning, match=rf"{len(rows)} of 20 items cannot be read: {rows[0]}\.png .* They are left out"
    ):
        inputs, labels = read_all(items(load=broken(*rows), skip_bad=True).read(kept_bytes))
    good = [k for k in range(20) if k not in rows]
    assert torch.equal(labels, torch.tensor(good) % 3)
    assert torch.equal(inputs, expected(good))


@pytest.mark.parametrize("skip_bad", [False, True])
def test_nothing_but_damaged_items_is_an_error(skip_bad):
    with pytest.raises(ValueError, match=r"4 of 4 items cannot be read: 0\.png"):
        items(4, load=broken(*range(4)), skip_bad=skip_bad).read()


def test_a_mistake_in_the_preparation_is_no_damaged_picture():
    match = (
        r"^imagefolder:x holds pictures, and the model's preparation does not take 0.png \(ZeroDivisionError: division"
    )
    with pytest.raises(ValueError, match=match):
        items(prepare=lambda image: 1 / 0, skip_bad=True).read()


def test_pictures_of_different_shapes_are_refused():
    with pytest.raises(
        ValueError, match=r"arrays of \[3, 8, 8\] \(torch.float32\) and of \[3, 9, 8\] \(torch.float32\): let"
    ):
        items(load=lambda row: 8 + row // 5, prepare=lambda height: torch.zeros(3, height, 8)).read()


def test_inputs_of_different_names_are_refused():
    with pytest.raises(ValueError, match=r"the preparation gives a for one item and b for another \(1\.png\)"):
        items(2, load="ab".__getitem__, prepare=lambda name: {name: torch.zeros(3)}, pictures=False).read()


def test_inputs_may_have_names():
    def prepare(text):
        return {"ids": torch.tensor([ord(letter) for letter in text]), "mask": torch.ones(3, dtype=torch.bool)}

    for kept_bytes in (2**20, 0):
        chosen = items(5, load=lambda row: f"ab{row}", prepare=prepare, pictures=False)
        inputs, labels = chosen.read(kept_bytes)
        assert inputs["ids"].tolist() == [[97, 98, 48 + row] for row in range(5)]
        assert inputs["mask"].tolist() == [[True] * 3] * 5
        assert labels.tolist() == [0, 1, 2, 0, 1]
        assert chosen.first_input()["ids"].tolist() == [[97, 98, 48]]


def test_pictures_with_a_name_are_packed_too():
    data = items(prepare=lambda image: {"pixel_values": PREPARE(image)}).read(100)
    assert isinstance(data, Unpacking)
    found = torch.cat([inputs["pixel_values"] for inputs, _ in Batches(data, batch_size=7)])
    assert torch.equal(found, expected(range(20)))


def blurred(image):
    """Not a function of one brightness: a few numbers lie between those of the 256."""
    found = PREPARE(image)
    return (found + found.roll(1, 2)) / 2


def test_a_preparation_that_mixes_pixels_is_kept_in_full():
    inputs, _ = items(prepare=blurred).read(100)
    assert torch.equal(inputs, expected(range(20), blurred))


@pytest.mark.parametrize("odd", [1, 9, 19])
def test_one_picture_that_bytes_cannot_hold_turns_all_back_into_numbers(odd):
    first = picture(odd).getpixel((0, 0))

    def prepare(image):
        return blurred(image) if image.getpixel((0, 0)) == first else PREPARE(image)

    inputs, _ = items(prepare=prepare, workers=2).read(100)
    assert torch.equal(inputs, expected(range(20), prepare))
    assert not torch.equal(inputs, expected(range(20)))


def test_bytes_hold_exactly_the_numbers_of_the_preparation():
    levels = levels_of(PREPARE, None, PREPARE(picture()))
    for channel, (mean, std) in enumerate(zip(PREPARE.mean, PREPARE.std, strict=True)):
        scale = (torch.arange(256).float() / 255 - torch.tensor(mean)) / torch.tensor(std)
        assert torch.equal(levels.table[channel], scale)
    assert torch.equal(
        levels.encode(PREPARE(constant_picture(200, 8, 8))), torch.full((3, 8, 8), 200, dtype=torch.uint8)
    )


@pytest.mark.parametrize("value", [0.1234, float("nan"), float("inf"), 1e9])
def test_a_number_that_is_not_among_the_256_is_not_packed(value):
    levels = levels_of(PREPARE, None, PREPARE(picture()))
    changed = PREPARE(picture())
    changed[1, 2, 3] = value
    assert levels.encode(changed) is None


def test_a_preparation_that_goes_from_white_to_black_is_packed_too():
    levels = Levels(torch.arange(255, -1, -1).float().expand(3, 256) / 255)
    image = torch.rand(3, 4, 4).mul(255).round() / 255
    assert torch.equal(levels.decode(levels.encode(image)), image)


@pytest.mark.parametrize(
    "example",
    [torch.zeros(8), torch.zeros(3, 8, 8, dtype=torch.float64), torch.zeros(4, 8, 8), torch.zeros(3, 4, 4).half()],
)
def test_what_is_no_picture_of_float32_has_no_levels(example):
    assert levels_of(PREPARE, None, example) is None


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the system must tell which files are mapped")


def is_mapped(folder):
    """Whether this process has a file of that folder in its memory."""
    return str(folder) in Path("/proc/self/maps").read_text()


@on_linux
def test_the_file_has_no_name_and_ends_with_its_array(own_folder):
    """Nothing is left to delete, however the process ends."""
    array = stored.room((1000, 10), torch.float32, kept_bytes=39_999)
    assert list(own_folder.iterdir()) == []
    assert is_mapped(own_folder)
    array.fill_(7)
    assert float(array.sum()) == 70_000
    del array
    assert not is_mapped(own_folder)


@on_linux
def test_what_fits_takes_no_file(own_folder):
    array = stored.room((1000, 10), torch.float32, kept_bytes=40_000)
    assert array.shape == (1000, 10)
    assert not is_mapped(own_folder)


def test_half_precision_and_booleans_can_be_on_disk_too():
    for dtype in (torch.bfloat16, torch.bool, torch.int64):
        array = stored.room((3, 5), dtype, kept_bytes=0)
        array.copy_(torch.eye(3, 5).to(dtype))
        assert array.dtype == dtype
        assert torch.equal(array, torch.eye(3, 5).to(dtype))


def test_a_disk_without_room_is_told_before_anything_is_written(own_folder):
    with pytest.raises(
        OSError, match=r"need 1000000000.0 GB on disk, which .*room does not have \(No space left on device\)"
    ):
        stored.room((10**18,), torch.uint8, kept_bytes=0)
    assert list(own_folder.iterdir()) == []


def test_a_disk_that_refuses_is_told_too(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    with pytest.raises(OSError, match=r"quota exceeded.*name a folder on a larger disk with TMPDIR"):
        stored.room((100,), torch.uint8, kept_bytes=0)


@on_linux
def test_without_a_temporary_folder_of_ones_own_the_cache_folder_is_used(monkeypatch, tmp_path):
    """On many machines the system's temporary folder is held in memory."""
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    array = stored.room((100,), torch.uint8, kept_bytes=0)
    assert is_mapped(tmp_path / "cache" / "peppermill")
    assert list((tmp_path / "cache" / "peppermill").iterdir()) == []
    assert len(array) == 100


def test_reading_leaves_nothing_behind_when_it_fails(own_folder):
    with pytest.raises(ValueError, match="1 of 20 items cannot be read"):
        items(load=broken(19)).read(100)
    assert list(own_folder.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to a core")
def test_cores_that_the_process_may_not_use_do_not_count():
    allowed = os.sched_getaffinity(0)
    assert cores() == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_column_refuses_another_type():
    column = Column(2, torch.zeros(3), 100, None)
    with pytest.raises(ValueError, match=r"and of \[3\] \(torch.int64\): let it resize or pad every item to one shape"):
        column.packed(torch.zeros(3, dtype=torch.int64))
