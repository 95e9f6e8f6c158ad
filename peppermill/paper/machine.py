"""Where and how an experiment computes: the device, CUDA graphs, and the arithmetic of its products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Machine:
    """Where and how to compute; nothing here changes what is computed beyond rounding."""

    device: str = "cpu"
    graphs: bool = True  # on a GPU: each step as one CUDA graph
    precision: str = "tf32"  # "float32", "tf32" or "bfloat16"; the CPU computes in float32 unless it is "bfloat16"
    compiled: bool = False  # while training: the layers as compiled code, where the minute that this takes pays

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "tf32", "bfloat16"):
            raise ValueError(f"`precision={self.precision!r}` must be float32, tf32 or bfloat16.")


@contextmanager
def precision(machine: Machine) -> Iterator[None]:
    """The arithmetic of matrix products and convolutions, put back afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch.set_float32_matmul_precision("highest" if machine.precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = machine.precision != "float32"
    torch.backends.cudnn.deterministic = True  # a run that was killed ends with the same table
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        torch.backends.cudnn.deterministic = before[2]


def synchronize(device: str) -> None:
    """Wait until the device has done what it was asked; a CPU always has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
