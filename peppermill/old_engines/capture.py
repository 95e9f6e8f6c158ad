"""Passes of the members as one CUDA graph, on streams of their own, to be replayed as often as one likes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

MOST_STREAMS = 16
REPLAYS = 20  # of each way, to see which is quicker
WARM_UPS = 3  # passes before a capture: libraries choose their kernels and take their workspaces then
LOG = logging.getLogger(__name__)


#: Passes of one or several members each, [k, ...].
Jobs = Sequence[partial[Tensor]]


class Recording(NamedTuple):
    """Jobs that run at the same time, as often as one likes: `replay` writes their results to `outputs`, [m, ...].

    Static tensors are used between `begin`, which waits for whoever used them last, and `end`. The jobs are held: a
    graph reads what was prepared of the weights where it lies, and does not keep it alive.
    """

    outputs: Tensor
    replay: Callable[[], None]
    begin: Callable[[], None]
    end: Callable[[], None]
    jobs: Jobs = ()


#: How jobs are recorded on a device.
Capture = Callable[[Jobs, torch.device], Recording]


def quickest(ways: Sequence[Callable[[], Jobs]], capture: Capture, device: torch.device) -> Recording:
    """Of several ways to the same outputs the quickest; the first must work, another need not.

    It may be that `vmap` refuses an operation, that memory is short, or that there is no compiler.
    """
    first, *others = ways
    best = _held(first(), capture, device)
    for way in others:
        try:
            best = min(best, _held(way(), capture, device), key=partial(_seconds, device=device))
        except Exception as reason:
            LOG.debug("members as one network: %s", reason)
    return best


def _held(jobs: Jobs, capture: Capture, device: torch.device) -> Recording:
    return capture(jobs, device)._replace(jobs=jobs)


def _seconds(recording: Recording, device: torch.device) -> float:
    """How long some replays take, the second time."""
    took = 0.0
    for _ in range(2):
        start = time.perf_counter()
        for _ in range(REPLAYS):
            recording.replay()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took = time.perf_counter() - start
    return took


def capture_on_cuda(jobs: Jobs, device: torch.device) -> Recording:
    """The jobs as one CUDA graph, on streams of their own."""
    with torch.cuda.device(device):
        streams = [_stream(device) for _ in range(min(len(jobs), MOST_STREAMS))]
        side = _stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                _on_streams(jobs, streams)
        torch.cuda.current_stream(device).wait_stream(side)
        graph, done = torch.cuda.CUDAGraph(), torch.cuda.Event()  # type: ignore[no-untyped-call]
        # "thread_local": a thread that allocates memory meanwhile must not break this capture, nor be broken by it
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            outputs = _on_streams(jobs, streams)
    return Recording(
        outputs,
        graph.replay,
        begin=lambda: torch.cuda.current_stream(device).wait_event(done),
        end=lambda: done.record(torch.cuda.current_stream(device)),
    )


def _on_streams(jobs: Jobs, streams: list[torch.cuda.Stream]) -> Tensor:
    """The jobs' results in a row: all streams branch off the current one and join it again."""
    main = torch.cuda.current_stream()
    for stream in streams:
        stream.wait_stream(main)
    outputs = []
    for number, job in enumerate(jobs):
        with torch.cuda.stream(streams[number % len(streams)]):
            outputs.append(job())
    for stream in streams:
        main.wait_stream(stream)
    return torch.cat(outputs)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
