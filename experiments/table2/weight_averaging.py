"""Stochastic weight averaging (Izmailov et al., 2018): schedules to choose from, since the paper publishes none.

A schedule is the learning rate of each epoch and the epochs whose final weights are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from experiments.settings import DEFAULT_SWA, EPOCHS


@dataclass(frozen=True)
class Swa:
    """The learning rate of each epoch, the epochs (1, 2, ...) that are averaged, and what happens to batch norm.

    With `refresh` the statistics are computed anew for the averaged weights, as Izmailov et al. do. Without it they are
    averaged like the weights, as an average of all arrays of a Keras network does.
    """

    learning_rates: tuple[float, ...]
    averaged: tuple[int, ...]
    refresh: bool = True
    momentum: float | None = None  # of SGD; Adam without it

    def __post_init__(self) -> None:
        if not all(0 < rate < math.inf for rate in self.learning_rates):
            raise ValueError("a learning rate must be above 0 and finite")
        if not self.averaged or self.averaged[0] < 1:
            raise ValueError(f"it averages no epoch from 1 to {len(self.learning_rates)}, or one before the first")

    def shortened(self, epochs: int) -> Swa:
        """The same shape in fewer epochs, for tests: `epochs` stands for the baseline's 15."""
        if epochs == EPOCHS:
            return self
        kept = max(1, round(len(self.learning_rates) * epochs / EPOCHS))
        averaged = tuple(epoch for epoch in self.averaged if epoch <= kept) or (kept,)
        return replace(self, learning_rates=self.learning_rates[:kept], averaged=averaged)


def plain(rate: float, start: float = 4, epochs: float = EPOCHS) -> Swa:
    """The baseline's own epochs from `start` on: no other learning rate, no epoch more."""
    return Swa((rate,) * int(epochs), tuple(range(int(start), int(epochs) + 1)))


def fixed(rate: float, swa: float = 1e-3, start: float = 5, epochs: float = EPOCHS) -> Swa:
    """Another learning rate from the first epoch on; every epoch from `start` on is averaged."""
    return plain(swa, start, epochs)


def constant(rate: float, swa: float = 1e-3, start: float = 10, epochs: float = EPOCHS) -> Swa:
    """From half of `start` the rate moves in a line to `swa`, which holds from nine tenths of `start` on.

    The rule of Izmailov et al. and of the Keras callbacks made after it; every epoch after `start` is averaged.
    """
    moved = [min(1.0, max(0.0, (epoch / start - 0.5) / 0.4)) for epoch in range(int(epochs))]
    return Swa(tuple(rate + part * (swa - rate) for part in moved), tuple(range(int(start) + 1, int(epochs) + 1)))


def cyclic(
    rate: float, high: float = 3e-3, low: float = 1e-3, length: float = 3, start: float = 6, epochs: float = EPOCHS
) -> Swa:
    """After `start` epochs, cycles in which the rate falls from `high` to `low`; the ends of cycles are averaged."""
    first, size, last = int(start), int(length), int(epochs)
    steps = [high + (low - high) * (k % size) / max(1, size - 1) for k in range(last - first)]
    return Swa((rate,) * first + tuple(steps), tuple(range(first + size, last + 1, size)))


def longer(rate: float, swa: float = 1e-3, more: float = EPOCHS) -> Swa:
    """The baseline's 15 epochs, then `more` epochs at the rate `swa`, which are averaged."""
    count = int(more)
    return Swa((rate,) * EPOCHS + (swa,) * count, tuple(range(EPOCHS + 1, EPOCHS + count + 1)))


def sgd(
    rate: float,
    first: float = 0.1,
    swa: float = 0.01,
    start: float = 10,
    epochs: float = EPOCHS,
    momentum: float = 0.0,
) -> Swa:
    """SGD instead of Adam, as in Izmailov et al.: `constant` from the rate `first` to the rate `swa`."""
    return replace(constant(first, swa, start, epochs), momentum=momentum)


#: The kinds of schedule. A new one is one function of the row's own learning rate and one row here.
KINDS: dict[str, Callable[..., Swa]] = {
    "plain": plain,
    "fixed": fixed,
    "constant": constant,
    "cyclic": cyclic,
    "longer": longer,
    "sgd": sgd,
}


def swa_from(text: str, rate: float) -> Swa:
    """The schedule that `kind:name=number,...` describes for a row with that learning rate."""
    kind, _, options = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"`swa={text!r}` is unknown: begin with one of {', '.join(KINDS)}, as in {DEFAULT_SWA}.")
    try:
        given = {name: float(number) for name, number in (part.split("=") for part in options.split(",") if part)}
        refresh = bool(given.pop("refresh", 1))
        return replace(KINDS[kind](rate, **given), refresh=refresh)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(
            f"`swa={text!r}` must give numbers to {kind}'s own names, as in {DEFAULT_SWA} ({error})."
        ) from error
