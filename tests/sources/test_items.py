"""Items in files as a Dataset: each is decoded once, by several threads, and damaged ones are counted."""

import os
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import peppermill as pm
from peppermill.data import Batches
from peppermill.datasets.loaders import rebuild_loader
from peppermill.plumbing.warnings import PepWarning
from peppermill.sources.items import Items, cores
from peppermill.sources.pictures import Preparation, square
from tests.sources.pictures import picture

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
PREPARE = Preparation(partial(square, resize=10, size=8), MEAN, STD)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Where the cache of decoded items goes."""
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


@pytest.mark.parametrize("prepare", [PREPARE, lambda image: PREPARE(image)], ids=["in two steps", "in one step"])
@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_read_is_what_a_loop_prepares(prepare, workers):
    data = items(prepare=prepare, workers=workers)
    for _ in range(2):
        inputs, labels = read_all(data)
        assert torch.equal(inputs, expected(range(20)))
        assert torch.equal(labels, torch.arange(20) % 3)


@pytest.mark.filterwarnings("ignore:noise does not help here")
def test_an_item_is_loaded_once_in_a_whole_job(monkeypatch):
    """Also by a fit that cannot keep the data in memory, and by a part of the items."""
    monkeypatch.setattr("peppermill.data.MEMORY_BYTES", 4000)
    loaded, lock = [], threading.Lock()

    def load(row):
        with lock:
            loaded.append(row)
        return picture(row)

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 3)).eval()
    data = items(load=load)
    pep = pm.fit(network, data, size=2, search=pm.Golden(lower=0.0, upper=0.1, iterations=3), batch_size=4)
    assert len(pep.search.evaluations) > 4
    pm.evaluate(network, data.take_rows(np.arange(5, 15)))
    assert sorted(loaded) == list(range(20))


def test_a_loader_of_some_batches_decodes_only_their_items():
    """As each of several processes does."""
    loaded = []
    data = items(load=lambda row: loaded.append(row) or picture(row))
    for _ in rebuild_loader(DataLoader(data, batch_size=4), batch_sampler=[[0, 1, 2, 3], [8, 9, 10, 11]]):
        pass
    assert sorted(loaded) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_full_disk_means_decoding_again(monkeypatch):
    monkeypatch.setattr("peppermill.datasets.disk_cache.FREE_SHARE", 1.1)
    data = items()
    for _ in range(2):
        assert torch.equal(read_all(data)[0], expected(range(20)))


def test_several_threads_load_at_the_same_time():
    """Each waits for the other: one thread alone would wait in vain."""
    meeting = threading.Barrier(2, timeout=30)

    def load(row):
        meeting.wait()
        return picture(row)

    assert len(read_all(items(20, load=load, workers=2), batch_size=4)[1]) == 20


def test_rows_are_taken_with_their_labels_names_and_pictures():
    part = items().take_rows(np.array([2, 5, 19])).take_rows(np.array([0, 2]))
    assert part.names == ["2.png", "19.png"]
    inputs, labels = read_all(part)
    assert labels.tolist() == [2, 1]
    assert torch.equal(inputs, expected([2, 19]))


def broken(*rows):
    """A loader for which some pictures are damaged."""

    def load(row):
        if row in rows:
            raise OSError(f"image file is truncated\n({row} bytes not processed)")
        return picture(row)

    return load


def test_damaged_items_are_counted_and_the_first_are_named(own_folder):
    with pytest.raises(ValueError) as error:
        read_all(items(load=broken(0, 3, 7, 11, 19)))
    assert str(error.value) == (
        "imagefolder:x: 5 of 20 items cannot be read: 0.png (image file is truncated (0 bytes not processed)), "
        "3.png (image file is truncated (3 bytes not processed)), 7.png (image file is truncated (7 bytes not "
        "processed)) and 2 more. Repair or remove them, or add `bad=skip` to go on without them."
    )
    assert list(own_folder.iterdir()) == []


@pytest.mark.parametrize("rows", [(0, 1), (4,), (19,), (0, 3, 7, 11, 19)])
def test_damaged_items_may_be_left_out_with_a_warning_that_counts_them(rows):
    match = rf"{len(rows)} of 20 items cannot be read: {rows[0]}\.png .* They are left out"
    with pytest.warns(PepWarning, match=match):
        found = items(load=broken(*rows), skip_bad=True).readable()
    good = [k for k in range(20) if k not in rows]
    assert found.names == [f"{k}.png" for k in good]
    inputs, labels = read_all(found)
    assert torch.equal(labels, torch.tensor(good) % 3)
    assert torch.equal(inputs, expected(good))


@pytest.mark.parametrize("skip_bad", [False, True])
def test_nothing_but_damaged_items_is_an_error(skip_bad):
    with pytest.raises(ValueError, match=r"4 of 4 items cannot be read: 0\.png"):
        read_all(items(4, load=broken(*range(4)), skip_bad=skip_bad).readable())


def test_a_mistake_in_the_preparation_is_no_damaged_picture():
    match = (
        r"^imagefolder:x holds pictures, and the model's preparation does not take 0.png \(ZeroDivisionError: division"
    )
    with pytest.raises(ValueError, match=match):
        items(prepare=lambda image: 1 / 0, skip_bad=True).readable()


@pytest.mark.parametrize(
    "prepare",
    [
        lambda row: torch.zeros(3, 8 + row // 5, 8),
        lambda row: torch.zeros(3, dtype=torch.int64 if row else torch.float32),
        lambda row: {"a" if row else "b": torch.zeros(3)},
    ],
    ids=["shapes", "types", "names"],
)
def test_inputs_of_different_kinds_are_refused(prepare):
    with pytest.raises(
        ValueError, match=r"the preparation gives .* for one item and .* for another \(\d\.png\): let it"
    ):
        read_all(items(load=int, prepare=prepare))


def test_inputs_may_have_names():
    def prepare(text):
        return {"ids": torch.tensor([ord(letter) for letter in text]), "mask": torch.ones(3, dtype=torch.bool)}

    [(inputs, labels)] = Batches(items(5, load=lambda row: f"ab{row}", prepare=prepare, pictures=False))
    assert inputs["ids"].tolist() == [[97, 98, 48 + row] for row in range(5)]
    assert inputs["mask"].tolist() == [[True] * 3] * 5
    assert labels.tolist() == [0, 1, 2, 0, 1]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to a core")
def test_cores_that_the_process_may_not_use_do_not_count():
    allowed = os.sched_getaffinity(0)
    assert cores() == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
