"""The members of a network, as engines take them: a few numbers, and theta* when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.perturbation import Perturbation

#: The low precisions in which a network may compute; noise, sums and averages stay in float32 and float64.
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}

WITHOUT_GRADIENTS = "gradients may be wanted (use `torch.no_grad()` or `torch.inference_mode()`)"


@dataclass(frozen=True)
class Members:
    """The members theta_j of one network at one sigma."""

    model: nn.Module
    size: int
    sigma: float
    key: tuple[Any, ...]  # equal keys around one state of the network: equal members
    make: Callable[[], Perturbation]
    looked_up: dict[Any, Any] = field(default_factory=dict, compare=False)  # what was found out in this call

    @cached_property
    def perturbation(self) -> Perturbation:
        """theta* and the noise, made when somebody asks: that takes longer than a small network's pass."""
        return self.make()

    @property
    def count(self) -> int:
        """m; one where sigma is 0 and all are the same."""
        return self.size if self.sigma != 0 else 1

    @property
    def device(self) -> torch.device:
        return next(iter(self.perturbation.center.values())).device


def members_of(model: nn.Module, perturbation: Perturbation, sigma: float) -> Members:
    """The members of a perturbation."""
    return Members(model, perturbation.size, sigma, key_of(perturbation), lambda: perturbation)


def key_of(perturbation: Perturbation) -> tuple[Any, ...]:
    """The same for the same noise around the same arrays."""
    centers = tuple((name, value.data_ptr(), value.dtype) for name, value in perturbation.center.items())
    return perturbation.noise, perturbation.size, centers


def check_precision(precision: str | None) -> None:
    """Raise where a precision has no name."""
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(
            f"`precision={precision!r}` is unknown: choose one of {', '.join(PRECISIONS)}, or leave it out to compute "
            "in the network's own type."
        )


def is_exact(members: Members) -> bool:
    """Whether sums may be arranged in another way: in low precision that would be another number."""
    wide = all(value.dtype in (torch.float32, torch.float64) for value in members.perturbation.center.values())
    return wide and not torch.is_autocast_enabled(members.device.type)


def needs_gradients(members: Members, args: Any, kwargs: Any) -> bool:
    """Whether somebody may differentiate the outputs."""
    if not torch.is_grad_enabled():
        return False
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return any(value.requires_grad for value in (*tensors, *members.model.parameters()))
