"""Stochastic weight averaging (Izmailov et al., 2018): candidate schedules, since the paper publishes none.

A schedule is the learning rate of each epoch and the epochs whose final weights are averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peppermill.paper.stacked import State, forward

EPOCHS = 15  # what the paper says of every baseline
REFRESH_BATCH = 500


@dataclass(frozen=True)
class Swa:
    """Learning rates of all epochs, and the numbers (from 1) of the epochs that are averaged."""

    learning_rates: tuple[float, ...]
    averaged: tuple[int, ...]

    def shortened(self, epochs: int) -> Swa:
        """The same shape in fewer epochs, for tests: `epochs` stands for the baseline's 15."""
        if epochs == EPOCHS:
            return self
        kept = max(1, round(len(self.learning_rates) * epochs / EPOCHS))
        return Swa(self.learning_rates[:kept], tuple(e for e in self.averaged if e <= kept) or (kept,))


def plain(rate: float, start: int = 4, epochs: int = EPOCHS) -> Swa:
    """The baseline's own epochs from `start` on: no other learning rate, no epoch more."""
    return Swa((rate,) * epochs, tuple(range(start, epochs + 1)))


def constant(rate: float, swa_rate: float, start: int = 10, epochs: int = EPOCHS) -> Swa:
    """From half of `start` the rate moves in a line to `swa_rate`, which holds from nine tenths of `start` on.

    The rule of Izmailov et al. and of the Keras callbacks made after it; every epoch from `start` on is averaged.
    """
    rates = []
    for epoch in range(epochs):
        moved = min(1.0, max(0.0, (epoch / start - 0.5) / 0.4))
        rates.append(rate + moved * (swa_rate - rate))
    return Swa(tuple(rates), tuple(range(start + 1, epochs + 1)))


def cyclic(rate: float, high: float, low: float, length: int = 3, start: int = 6, epochs: int = EPOCHS) -> Swa:
    """After `start` epochs, cycles in which the rate falls from `high` to `low`; the ends of cycles are averaged."""
    steps = [high + (low - high) * (k % length) / max(1, length - 1) for k in range(epochs - start)]
    ends = tuple(e for e in range(start + length, epochs + 1, length))
    return Swa((rate,) * start + tuple(steps), ends)


def longer(rate: float, swa_rate: float, more: int = EPOCHS) -> Swa:
    """The baseline's 15 epochs, then as many more at `swa_rate`, all of which are averaged."""
    return Swa((rate,) * EPOCHS + (swa_rate,) * more, tuple(range(EPOCHS + 1, EPOCHS + more + 1)))


#: Candidates by name, as functions of the row's own learning rate.
CANDIDATES: dict[str, Callable[[float], Swa]] = {
    "plain-1": lambda rate: plain(rate, 1),
    "plain-4": lambda rate: plain(rate, 4),
    "plain-10": lambda rate: plain(rate, 10),
    "constant-1e-3": lambda rate: constant(rate, 1e-3),
    "constant-2.5e-3": lambda rate: constant(rate, 2.5e-3),
    "constant-1e-2": lambda rate: constant(rate, 1e-2),
    "cyclic-3e-3": lambda rate: cyclic(rate, 3e-3, 1e-3),
    "longer-same": lambda rate: longer(rate, rate),
    "longer-1e-3": lambda rate: longer(rate, 1e-3),
    "longer-2.5e-3": lambda rate: longer(rate, 2.5e-3),
}
DEFAULT = "longer-1e-3"


def swa_named(name: str, rate: float) -> Swa:
    if name not in CANDIDATES:
        raise ValueError(f"`swa={name!r}` is unknown: choose one of {', '.join(CANDIDATES)}.")
    return CANDIDATES[name](rate)


@torch.no_grad()
def refresh_batch_norm(network: nn.Sequential, state: State, images: Tensor, unfold: bool = False) -> State:
    """The same networks with batch-norm statistics of the averaged weights: one pass over the training images."""
    refreshed = {name: value.clone() for name, value in state.items()}
    for number, batch in enumerate(torch.split(images, REFRESH_BATCH), start=1):
        forward(network, refreshed, batch, training=True, momentum=1 / number, unfold=unfold)
    return refreshed
