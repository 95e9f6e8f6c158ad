"""One row of Table 2 in progress: its data, its trained networks, and the stages that are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm
from experiments.image_sets import read_image_set
from experiments.resume import Stages, fingerprint, plain
from experiments.settings import Row, Settings
from experiments.table2.small_networks import NETWORKS
from experiments.table2.training import Schedule, State, Trained, train
from experiments.table2.weight_averaging import swa_from

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class RowData:
    """Images in 0..1 and labels of each part, on the device, and the fingerprint of all of them."""

    train: Pair
    validation: Pair
    test: Pair
    digest: str


def row_data(row: Row, folder: Path | None, device: str, items: int | None = None) -> RowData:
    """Divided by 255 and nothing else; the validation images are the last of the published training images."""
    found = read_image_set(row.data, folder)
    pixels, labels = found.train
    held = min(row.validation, len(labels) // 5)  # a small set gives a fifth
    first = slice(0, items)
    parts = (
        (pixels[:-held][first], labels[:-held][first]),
        (pixels[-held:][first], labels[-held:][first]),
        (found.test[0][first], found.test[1][first]),
    )
    train, validation, test = ((pixels.to(device).float() / 255, labels.to(device)) for pixels, labels in parts)
    return RowData(train, validation, test, fingerprint(*(tensor for part in parts for tensor in part)))


@dataclass
class Work:
    """One row in progress."""

    name: str
    settings: Settings
    seconds: dict[str, float] = field(default_factory=dict)  # of each training and each method
    losses: dict[str, list[list[float]]] = field(default_factory=dict)  # of each training, [epochs][models]
    fits: dict[Any, pm.PepEnsemble] = field(default_factory=dict)  # that several columns share

    @cached_property
    def row(self) -> Row:
        return self.settings.row(self.name)

    @cached_property
    def data(self) -> RowData:
        return row_data(self.row, self.settings.data, self.settings.device, self.settings.items)

    @cached_property
    def stages(self) -> Stages:
        return Stages(self.settings.checkpoints / "table2", self.data.digest)

    def stage(self, name: str, compute: Callable[[], Any], without: tuple[str, ...] = ()) -> Any:
        """What `compute` returns, kept with the time it took; the settings `without` do not decide it."""
        settings = {key: value for key, value in self.settings.row_identity(self.name).items() if key not in without}

        def timed() -> dict[str, Any]:
            began, before = time.monotonic(), set(self.losses)
            content = compute()
            losses = {stage: found for stage, found in self.losses.items() if stage not in before}
            trained = {stage: self.seconds[stage] for stage in losses}
            own = time.monotonic() - began - sum(trained.values())
            return {"content": content, "seconds": trained | {name: own}, "losses": losses}

        kept = self.stages.json(f"{self.name}-{name}", settings, timed)
        self.seconds |= kept["seconds"]
        self.losses |= kept["losses"]
        return kept["content"]

    @property
    def options(self) -> dict[str, Any]:
        """A GPU takes larger batches, and no CUDA graphs: a capture does not pay for one prediction."""
        return {"batch_size": 2000, "engine": "loop"} if self.data.train[0].is_cuda else {}

    def fit(self, network: nn.Module, size: int, noise: pm.Noise, **options: Any) -> pm.PepEnsemble:
        """`pm.fit` on the validation images."""
        return pm.fit(network, self.data.validation, size=size, noise=noise, **self.options, **options)

    def build(self, dropout: bool = False) -> nn.Sequential:
        """The network of this row, untrained."""
        return NETWORKS[self.row.network](self.row.classes, dropout)

    def network(self, state: State, dropout: bool = False) -> nn.Sequential:
        """The network with these weights, on the device and in evaluation mode."""
        network = self.build(dropout).to(self.settings.device)
        network.load_state_dict(state)
        return network.eval()

    @cached_property
    def networks(self) -> list[nn.Sequential]:
        """The trained networks without dropout, one for each seed."""
        schedule = Schedule((self.row.learning_rate,) * self.settings.epochs)
        trained = self.trained("training", schedule)
        return [self.network(one.states[schedule.epochs]) for one in trained]

    def dropout_networks(self) -> Iterator[nn.Sequential]:
        """The trained networks with dropout, at their own learning rate."""
        schedule = Schedule((self.row.dropout_learning_rate,) * self.settings.epochs)
        for one in self.trained("training with dropout", schedule, dropout=True):
            yield self.network(one.states[schedule.epochs], dropout=True)

    def averaged_networks(self) -> Iterator[nn.Module]:
        """Stochastic weight averaging: the mean of the weights at the ends of epochs, batch norm computed anew."""
        swa = swa_from(self.settings.swa, self.row.learning_rate).shortened(self.settings.epochs)
        schedule = Schedule(swa.learning_rates, swa.momentum, swa.averaged)
        stage = f"training SWA {self.settings.swa.replace(',refresh=0', '')}"  # which changes nothing in training
        for one in self.trained(stage, schedule):
            states = [one.states[epoch] for epoch in swa.averaged]
            if not swa.refresh:  # the statistics are averaged like the weights
                yield self.network({name: _mean([state[name] for state in states]) for name in states[0]})
                continue
            average = pm.WeightAverage()
            for state in states:
                average.add(self.network(state))
            yield average.network(self.data.train)

    def trained(self, stage: str, schedule: Schedule, dropout: bool = False) -> list[Trained]:
        """One network for each seed; each is kept in a file of its own, and only those that are missing are trained.

        A GPU trains all of them together, a CPU one after another.
        """
        began, seeds = time.monotonic(), self.settings.seeds
        prefix = f"{self.name}-{stage.replace(' ', '-')}"
        found = {seed: self._read(f"{prefix}-{seed}", schedule) for seed in seeds}
        missing = [seed for seed in seeds if found[seed] is None]
        together = len(missing) if self.data.train[0].is_cuda else 1
        for first in range(0, len(missing), together or 1):
            chosen = missing[first : first + together]
            title = f"{self.row.title}, {stage}, seed {'-'.join(map(str, dict.fromkeys((chosen[0], chosen[-1]))))}"
            runs = train(
                lambda: self.build(dropout),
                *self.data.train,
                chosen,
                schedule,
                lambda text, title=title: self.settings.say(f"{title}: {text}"),  # type: ignore[misc]
            )
            for seed, one in zip(chosen, runs, strict=True):
                tensors = {
                    f"{epoch}/{name}": value for epoch, state in one.states.items() for name, value in state.items()
                }
                tensors["losses"] = torch.tensor(one.losses, dtype=torch.float64)
                self.stages.write_tensors(f"{prefix}-{seed}", self._training_identity(schedule), tensors)
                found[seed] = one
        every = [one for one in found.values() if one is not None]
        self.seconds.setdefault(stage, time.monotonic() - began)
        self.losses.setdefault(stage, [list(epoch) for epoch in zip(*(one.losses for one in every), strict=True)])
        return every

    def _training_identity(self, schedule: Schedule) -> dict[str, Any]:
        return {"schedule": plain(schedule), "precision": self.settings.precision}

    def _read(self, name: str, schedule: Schedule) -> Trained | None:
        tensors = self.stages.read_tensors(name, self._training_identity(schedule), self.settings.device)
        if tensors is None:
            return None
        losses = tensors.pop("losses").tolist()
        states: dict[int, State] = {}
        for key, value in tensors.items():
            epoch, _, parameter = key.partition("/")
            states.setdefault(int(epoch), {})[parameter] = value
        return Trained(states, losses)


def _mean(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).double().mean(dim=0).to(tensors[0].dtype)
