"""What identifies a network's weights: an ensemble saved as a recipe is worthless on any other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Fingerprint:
    """Counts and digests of a network's state, coarse to fine, so that a difference can be named."""

    tensors: int
    numbers: int
    types: str
    architecture: str  # names and shapes
    parameters: str  # values
    buffers: str  # values


def fingerprint(model: nn.Module) -> Fingerprint:
    """The fingerprint of the network as it is now; the same on every device, and whatever a generator's state is."""
    learned = dict(model.named_parameters(remove_duplicate=False))
    state = model.state_dict()
    return Fingerprint(
        tensors=len(state),
        numbers=sum(value.numel() for value in state.values()),
        types=",".join(sorted({str(value.dtype).removeprefix("torch.") for value in state.values()})),
        architecture=_digest(f"{name}{list(value.shape)}".encode() for name, value in state.items()),
        parameters=_digest(_bytes(value) for name, value in state.items() if name in learned),
        buffers=_digest(_bytes(value) for name, value in state.items() if name not in learned),
    )


def difference(saved: Fingerprint, found: Fingerprint) -> str:
    """What differs, in words; nothing where the two are the same."""
    if (saved.tensors, saved.numbers) != (found.tensors, found.numbers):
        return (
            f"it has {found.tensors} arrays with {found.numbers:,} numbers, the saved one has {saved.tensors} with "
            f"{saved.numbers:,}: another architecture"
        )
    if saved.architecture != found.architecture:
        return "its arrays have other names or shapes: another architecture"
    if saved.types != found.types:
        return f"its numbers are {found.types}, the saved one's are {saved.types}: convert it first"
    if saved.parameters != found.parameters:
        return "its parameters have other values: it was trained further, or from another seed"
    if saved.buffers != found.buffers:
        return "its parameters are the same, but its buffers (batch-norm statistics, say) have other values"
    return ""


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _bytes(value: Tensor) -> bytes:
    return bytes(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
