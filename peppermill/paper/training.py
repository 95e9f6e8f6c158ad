"""All seeds of a row trained together, with checkpoints from which a killed run goes on.

Everything random is a function of (seed, epoch) alone: the initial kernels, the order of the items, the dropout masks.
A network therefore does not depend on its neighbours, and a run that was killed continues from the last epoch as if
nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.paper.checkpoint import read_checkpoint, write_checkpoint
from peppermill.paper.machine import Machine, precision
from peppermill.paper.stacked import State
from peppermill.paper.trainer import Schedule, Trainer

PATIENCE = 60.0  # seconds between two checkpoints

#: Called after each epoch with its number (1, 2, ...) and the state of the networks.
Watch = Callable[[int, State], None]


@dataclass(frozen=True)
class Trained:
    """The state of S networks after the last epoch, the mean training loss of every epoch, [epochs, S], and the average
    of the states after the epochs that were to be averaged."""

    state: State
    losses: Tensor
    average: State


def train_together(
    network: nn.Sequential,
    images: Tensor,
    labels: Tensor,
    seeds: Sequence[int],
    schedule: Schedule,
    machine: Machine,
    *,
    averaged: Sequence[int] = (),
    checkpoint: Path | None = None,
    beginning: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Trained:
    """Train one network for each seed on the same items; average the weights after the epochs `averaged` (1, 2, ...).

    With `checkpoint`, what was trained is kept there and taken up again, provided that the settings agree; `watch` then
    sees the epochs of this run only. `beginning` is the checkpoint of another run whose epochs are the first of ours.
    """
    settings = {**(settings or {}), "precision": machine.precision}
    identity = _identity(seeds, schedule, averaged, len(labels), settings)
    found = read_checkpoint(checkpoint, identity, machine.device) if checkpoint else None
    if beginning and not found:
        found = _read_beginning(beginning, seeds, schedule, averaged, len(labels), settings, machine.device)
    if found and found[1]["epoch"] == schedule.epochs:
        return Trained(_part("state", found[0]), found[0]["losses"].cpu(), _part("mean", found[0]))
    with precision(machine):
        trainer = Trainer(network, images, labels, seeds, schedule, machine)
        done, losses = trainer.load(found) if found else (0, torch.empty(0, len(seeds)))
        mean = _part("mean", found[0]) if found else {}
        saved = time.monotonic()
        for epoch in range(done, schedule.epochs):
            began = time.monotonic()
            losses = torch.cat([losses, trainer.epoch(epoch)[None]])
            said = f"epoch {epoch + 1:2d}  training loss {float(losses[-1].mean()):.4f}"
            say(f"{said}  {time.monotonic() - began:.1f} s")
            if watch:
                watch(epoch + 1, trainer.state)
            if epoch + 1 in averaged:
                mean = _averaged(mean, trainer.state, sum(number <= epoch + 1 for number in averaged))
            if checkpoint and (epoch + 1 == schedule.epochs or time.monotonic() - saved > PATIENCE):
                write_checkpoint(checkpoint, trainer.tensors(losses, mean), identity, epoch=epoch + 1)
                saved = time.monotonic()
    return Trained({name: value.detach().clone() for name, value in trainer.state.items()}, losses, mean)


def _identity(
    seeds: Sequence[int], schedule: Schedule, averaged: Sequence[int], items: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "seeds": list(seeds),
        "learning_rates": list(schedule.learning_rates),
        "batch_size": schedule.batch_size,
        "momentum": schedule.momentum,
        "items": items,
        "averaged": list(averaged),
        **settings,
    }


def _read_beginning(
    path: Path,
    seeds: Sequence[int],
    schedule: Schedule,
    averaged: Sequence[int],
    items: int,
    settings: Mapping[str, Any],
    device: str,
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The checkpoint of a finished run of fewer epochs, if its learning rates are the first of ours."""
    for epochs in range(schedule.epochs - 1, 0, -1):
        shorter = replace(schedule, learning_rates=schedule.learning_rates[:epochs])
        found = read_checkpoint(path, _identity(seeds, shorter, (), items, settings), device)
        if found and found[1]["epoch"] == epochs and min(averaged, default=epochs + 1) > epochs:
            return found
    return None


def _averaged(mean: State, state: State, count: int) -> State:
    """The mean of `count` states, from the mean of those before and the last."""
    if not mean:
        return {name: value.detach().clone() for name, value in state.items()}
    return {name: mean[name] + (value.detach() - mean[name]) / count for name, value in state.items()}


def _part(prefix: str, tensors: Mapping[str, Tensor]) -> State:
    return {name[len(prefix) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{prefix}.")}
