"""One row of Table 2 in progress: its data, its trained networks, and the stages that are done and kept."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peppermill.paper import swa_schedules
from peppermill.paper.machine import Machine
from peppermill.paper.members import Directions, Images, Stack, StackedMembers
from peppermill.paper.rows import EPOCHS, ROWS, SEEDS, Row, RowData, row_named
from peppermill.paper.stacked import State
from peppermill.paper.trainer import Schedule
from peppermill.paper.training import Trained, train_together
from peppermill.paper.tuned import Found
from peppermill.plumbing.files import write_atomically


@dataclass(frozen=True)
class Settings:
    """What to run. The defaults are the paper's; a test makes everything small."""

    rows: tuple[str, ...] = tuple(ROWS)
    seeds: tuple[int, ...] = SEEDS
    epochs: int = EPOCHS
    size: int = 25  # members at test (the authors' scripts)
    dropout_passes: int = 25  # the authors' scripts
    ensemble_size: int = 10  # the authors' scripts
    ensemble_draws: int = 100  # the authors' scripts
    our_tuning_size: int = 10  # members while tuning in our columns: the library's default
    our_search: str = "quick"  # in our columns, `fit`'s own
    bins: int = 20  # the authors' scripts
    swa: str = swa_schedules.DEFAULT  # the paper publishes none: docs/paper.md says why this one
    perturbed: str | None = None  # other layers than the row's own, as a regular expression
    learning_rate: float | None = None  # another one than the row's own, for the networks without dropout
    validation: int | None = None  # only tests shorten it
    data: Path | None = None
    out: Path = Path("results/paper")
    checkpoints: Path = Path(".local/paper")
    machine: Machine = field(default_factory=Machine)
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        swa_schedules.swa_from(self.swa, 1.0)  # a wrong one is told now, and not after an hour of training
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ValueError(f"`learning_rate={self.learning_rate:g}` must be above 0 and finite: 5e-4, say.")

    def identity(self) -> dict[str, Any]:
        """What decides the numbers: a stage made with another identity is made again."""
        apart = ("rows", "data", "out", "checkpoints", "machine", "say", "learning_rate")  # the row has the last
        kept = {name: value for name, value in vars(self).items() if name not in apart}
        return json.loads(json.dumps(kept | {"precision": self.machine.precision}))  # type: ignore[no-any-return]

    @property
    def folder(self) -> Path:
        """Where the stages of this many models are kept."""
        return self.checkpoints / f"{len(self.seeds)}-models"


def row_of(name: str, settings: Settings) -> Row:
    """The row of this name, with what these settings change in it."""
    row = row_named(name)
    changed = replace(
        row,
        perturbed=settings.perturbed or row.perturbed,
        learning_rate=settings.learning_rate or row.learning_rate,
    )
    if not paper_layers(changed):
        raise ValueError(
            f"`perturbed={changed.perturbed!r}` matches no kernel of {row.title}: it has "
            f"{', '.join(kernel_names(row.build()))}."
        )
    return changed


def kept_stage(
    settings: Settings, name: str, compute: Callable[[], dict[str, Any]], row: Row | None = None
) -> dict[str, Any]:
    """What `compute` gives, computed once for these settings of experiment and row, and kept in a file of its own."""
    path, identity = settings.folder / f"{name}.json", settings.identity() | {"row": asdict(row) if row else None}
    if "swa" not in name:  # another schedule is no reason to compute the other columns again
        del identity["swa"]
    kept = _read_stage(path) if path.is_file() else {}
    if kept.get("settings") == identity:
        return kept["content"]  # type: ignore[no-any-return]
    content = compute()
    write_atomically(path, json.dumps({"settings": identity, "content": content}))
    return content


def _read_stage(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to compute it again.") from error


def kernel_names(network: nn.Sequential) -> list[str]:
    """Every kernel by name: convolutions and dense layers, no bias, no batch norm."""
    kernels = (nn.Conv2d, nn.Linear)
    return [f"{name}.weight" for name, layer in network.named_children() if isinstance(layer, kernels)]


def paper_layers(row: Row) -> list[str]:
    """The kernels that the paper perturbs in this row, or others that the settings ask for."""
    try:
        return [name for name in kernel_names(row.build()) if re.search(row.perturbed, name)]
    except re.error as error:
        raise ValueError(f"`perturbed={row.perturbed!r}` is no regular expression: {error}.") from error


def tiny(settings: Settings, **changes: Any) -> Settings:
    """The same experiment in seconds: at most three networks, two epochs, few members."""
    small = replace(
        settings, seeds=settings.seeds[:3], epochs=2, size=4, dropout_passes=3, ensemble_size=2, ensemble_draws=5,
        our_tuning_size=4, validation=60,
    )  # fmt: skip
    return replace(small, **changes)


class Work:
    """One row in progress: its data, its trained networks, and the stages that are done."""

    def __init__(self, name: str, row: Row, settings: Settings, data: RowData) -> None:
        self.name, self.row, self.settings, self.data = name, row, settings, data
        self.seconds: dict[str, float] = {}
        self.losses: dict[str, list[list[float]]] = {}
        self._stacks: dict[str, Stack] = {}
        self._found: dict[str, list[Found]] = {}

    def stage(self, name: str, compute: Callable[[Work], dict[str, Any]]) -> dict[str, Any]:
        """The content of one column, computed once for these settings and kept in a file of its own."""
        kept = kept_stage(self.settings, f"{self.name}-{name}", lambda: self._timed(name, compute), self.row)
        self.seconds |= kept["seconds"]
        self.losses |= kept["losses"]
        return kept["column"]  # type: ignore[no-any-return]

    def _timed(self, name: str, compute: Callable[[Work], dict[str, Any]]) -> dict[str, Any]:
        """Kept with what was trained for this column alone: the others' may be trained by another schedule later."""
        began, before = time.monotonic(), set(self.seconds)
        column = compute(self)
        trained = {stage: seconds for stage, seconds in self.seconds.items() if stage not in before}
        own = time.monotonic() - began - sum(trained.values())
        self.settings.say(f"{self.row.title}: {_summary(name, column, own)}")
        losses = {stage: self.losses[stage] for stage in trained}
        return {"seconds": trained | {name: own}, "losses": losses, "column": column}

    def baseline(self) -> Stack:
        """The 25 networks without dropout."""
        rates = (self.row.learning_rate,) * self.settings.epochs
        return self._trained("training", Schedule(rates), dropout=False)

    def with_dropout(self) -> Stack:
        """The 25 networks with dropout, at their own learning rate."""
        rates = (self.row.dropout_learning_rate,) * self.settings.epochs
        return self._trained("training with dropout", Schedule(rates), dropout=True)

    def averaged(self) -> Stack:
        """The 25 networks of stochastic weight averaging, with batch-norm statistics of their own."""
        stage = f"training SWA {self.settings.swa.replace(',refresh=0', '')}"
        if stage not in self._stacks:
            swa = swa_schedules.swa_from(self.settings.swa, self.row.learning_rate).shortened(self.settings.epochs)
            self.baseline()  # trained first: where its epochs are the first of this schedule, they are not run again
            trained = self._train(stage, swa.schedule, dropout=False, averaged=swa.averaged)
            network, state, images = self.row.build(), trained.average, self.data.train.images
            if swa.refresh:
                state = swa_schedules.refresh_batch_norm(network, state, images)
            self._stacks[stage] = self._stack(network, state)
        return self._stacks[stage]

    def members(self, split: Images, selection: str, size: int, antithetic: bool = False) -> StackedMembers:
        """PEP members of the baselines: of the paper's layers, or of all kernels."""
        chosen = kernel_names(self.row.build()) if selection == "kernels" else paper_layers(self.row)
        return StackedMembers(self.baseline(), split, chosen, size, antithetic)

    def searched(self, key: str, search: Callable[[], dict[str, list[Found]]]) -> list[Found]:
        """What a search found; several columns may share one."""
        if key not in self._found:
            self._found |= search()
        return self._found[key]

    def _trained(self, stage: str, schedule: Schedule, dropout: bool) -> Stack:
        if stage not in self._stacks:
            trained = self._train(stage, schedule, dropout)
            self._stacks[stage] = self._stack(self.row.build(dropout), trained.state)
        return self._stacks[stage]

    def _train(self, stage: str, schedule: Schedule, dropout: bool, averaged: Sequence[int] = ()) -> Trained:
        began = time.monotonic()
        say = self.settings.say
        trained = train_together(
            self.row.build(dropout),
            self.data.train.images,
            self.data.train.labels,
            self.settings.seeds,
            schedule,
            self.settings.machine,
            averaged=averaged,
            checkpoint=self._weights(stage),
            beginning=self._weights("training") if averaged else None,
            settings={"row": self.name, "dropout": dropout},
            say=lambda text: say(f"{self.row.title}, {stage}: {text}"),
        )
        if stage not in self.losses:  # otherwise it was trained before, and its time is known
            self.seconds[stage] = time.monotonic() - began
            self.losses[stage] = trained.losses.tolist()
        return trained

    def _stack(self, network: Any, state: State) -> Stack:
        return Stack(network, state, Directions(state, self.settings.seeds), self.settings.machine)

    def _weights(self, stage: str) -> Path:
        return self.settings.folder / f"{self.name}-{stage.replace(' ', '-')}.safetensors"


def _summary(name: str, column: Mapping[str, Any], seconds: float) -> str:
    means = {score: torch.tensor(values).mean().item() for score, values in column["scores"].items()}
    return (
        f"{name}: NLL {means['nll']:.4f}, Brier {means['brier']:.4f}, ECE {100 * means['ece']:.3f} %, "
        f"error {100 * means['error']:.3f} % ({seconds:.1f} s)"
    )
