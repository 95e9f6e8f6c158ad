"""The cache on disk gives back what was put in, and leaves nothing behind."""

import gc
import os
import sys

import pytest
import torch

from peppermill.datasets.disk_cache import DiskCache


@pytest.fixture
def room(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_what_comes_back_is_what_was_added_in_any_order(room):
    cache = DiskCache()
    nests = [
        {"x": torch.arange(6.0).view(2, 3), "mask": torch.tensor([True, False])},
        (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.tensor([1, 2])),
        torch.ones(3, dtype=torch.bfloat16),
    ]
    assert all(cache.add(number, nest) for number, nest in enumerate(nests))
    assert torch.equal(cache[2], nests[2])
    assert torch.equal(cache[0]["x"], nests[0]["x"])
    assert torch.equal(cache[0]["mask"], nests[0]["mask"])
    assert torch.equal(cache[1][0], nests[1][0])
    assert cache[1][0].stride() == nests[1][0].stride()
    assert len(list(cache)) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="the system must list the open files")
def test_the_file_has_no_name_and_ends_with_the_cache(room):
    def is_open():
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return any(str(room) in os.readlink(link) for link in links if os.path.lexists(link))

    cache = DiskCache()
    assert cache.add(0, torch.zeros(1000))
    assert list(room.iterdir()) == []
    assert is_open()
    del cache
    gc.collect()
    assert not is_open()


def test_a_full_disk_adds_nothing_and_keeps_what_is_there(room, monkeypatch):
    cache = DiskCache()
    assert cache.add(0, torch.ones(3))
    monkeypatch.setattr("peppermill.datasets.disk_cache.FREE_SHARE", 1.1)
    assert not cache.add(1, torch.zeros(3))
    assert torch.equal(cache[0], torch.ones(3))
    assert len(list(cache)) == 1
