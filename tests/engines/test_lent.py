"""What is kept and read by several streams; `scripts/check_gpu.py --checks dropped,threads` tries it on a GPU."""

from types import SimpleNamespace

import pytest
import torch

from peppermill.engines import lent
from peppermill.engines.lent import Lent


@pytest.fixture
def streams(monkeypatch):
    """A GPU as far as streams go: which one is current, and how often it was waited for."""
    found = SimpleNamespace(current="first", waits=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: found.current)
    monkeypatch.setattr(lent, "finish", lambda device: setattr(found, "waits", found.waits + 1))
    return found


class OnGpu:
    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self):
        self.told = []

    def record_stream(self, stream):
        self.told.append(stream)


def test_each_stream_that_reads_is_told_to_the_memory_once(streams):
    tensors = [OnGpu(), OnGpu()]
    run = Lent(tensors).first(lambda value: value + 1)
    for streams.current in ("first", "second", "first", "second"):
        assert run(1) == 2
    assert [tensor.told for tensor in tensors] == [["first", "second"]] * 2
    assert streams.waits == 1


def test_on_a_cpu_nothing_comes_between_a_caller_and_the_function():
    def run():
        return torch.zeros(1)

    assert Lent([torch.zeros(2)]).first(run) is run
