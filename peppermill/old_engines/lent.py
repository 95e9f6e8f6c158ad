"""Tensors that are kept are read by whoever comes: on a GPU by several streams, each of which runs at its own pace.

torch orders what happens on one stream, and no more. What is kept must be made before another stream reads it; and when
it is dropped, its memory must not become anybody else's before every stream has read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor


class Lent:
    """Tensors that are kept: finished from now on, and there until each stream that reads them is done."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors: dict[torch.device, list[Tensor]] = {}
        for tensor in tensors:
            if tensor.is_cuda:
                self.tensors.setdefault(tensor.device, []).append(tensor)
        self.streams: set[torch.cuda.Stream] = set()
        for device in self.tensors:
            finish(device)

    def read(self) -> None:
        """To be said by a thread before its stream reads; once is enough for all that this stream will read."""
        for device, tensors in self.tensors.items():
            stream = torch.cuda.current_stream(device)
            if stream not in self.streams:
                for tensor in tensors:
                    tensor.record_stream(stream)
                self.streams.add(stream)

    def first(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A function that reads these tensors, and says so."""
        return partial(self._run, run) if self.tensors else run

    def _run(self, run: Callable[..., Tensor], *args: Any) -> Tensor:
        self.read()
        return run(*args)


def finish(device: torch.device) -> None:
    """Wait until a GPU has made what this thread asked it for; a graph that is being captured makes nothing."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream().synchronize()
