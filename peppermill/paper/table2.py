"""Table 2: MNIST, Fashion MNIST, CIFAR-10 and CIFAR-100; the paper's six columns, and ours beside them.

For each row 25 networks are trained together, and 25 more with dropout; every method is then asked about the test
images. Each stage of a row is kept as it is done, so that a run killed at any moment continues where it was.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import peppermill as pm
from peppermill.files import read_json, write_atomically
from peppermill.likelihood import temper
from peppermill.paper import swa_schedules
from peppermill.paper.masks import Dropped
from peppermill.paper.members import Directions, Images, Stack, StackedMembers, log_probs_of
from peppermill.paper.rows import EPOCHS, ROWS, SEEDS, Row, RowData, row_data, row_named
from peppermill.paper.stacked import State, forward
from peppermill.paper.training import Machine, Schedule, Trained, precision, train_together
from peppermill.paper.tuned import (
    Found,
    our_sigma,
    our_sigma_and_temperature,
    paper_sigma,
    refit_temperatures,
    tune_together,
)
from peppermill.results import provenance
from peppermill.tuning import best_temperature

KIND = "peppermill table 2"
VERSION = 1
SCORES = ("nll", "brier", "ece", "error")
EVALUATION_BATCH = {"cuda": 1000, "cpu": 250}


@dataclass(frozen=True)
class Settings:
    """What to run. The defaults are the paper's; a test makes everything small."""

    rows: tuple[str, ...] = tuple(ROWS)
    seeds: tuple[int, ...] = SEEDS
    epochs: int = EPOCHS
    size: int = 25  # members at test (protocol.md, "members while tuning / at test")
    dropout_passes: int = 25  # protocol.md, "MC dropout"
    ensemble_size: int = 10  # protocol.md, "Deep ensembles"
    ensemble_draws: int = 100  # protocol.md, "Deep ensembles"
    our_tuning_size: int = 10  # members while tuning in our columns: the library's default
    bins: int = 20  # protocol.md, "ECE"
    swa: str = swa_schedules.DEFAULT  # the paper publishes none: docs/paper.md says why this one
    validation: int | None = None  # only tests shorten it
    data: Path | None = None
    out: Path = Path("results/paper")
    checkpoints: Path = Path(".local/paper")
    machine: Machine = field(default_factory=Machine)
    say: Callable[[str], None] = print

    def identity(self) -> dict[str, Any]:
        """What decides the numbers: a stage made with another identity is made again."""
        kept = {
            k: v for k, v in vars(self).items() if k not in ("rows", "data", "out", "checkpoints", "machine", "say")
        }
        return json.loads(json.dumps(kept))  # type: ignore[no-any-return]


def main(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every row of the table: computed, continued, or read where it is done."""
    rows = {name: row_named(name) for name in settings.rows}
    found = {}
    for name, row in rows.items():
        path = settings.out / f"table2-{name}.json"
        known = read_json(path, KIND, VERSION) if path.is_file() else None
        if known and known["settings"] == settings.identity():
            settings.say(f"{row.title}: done, in {path}")
        else:
            known = _run_row(name, row, settings)
            write_atomically(path, json.dumps(known, indent=1, allow_nan=False) + "\n")
            settings.say(f"{row.title}: wrote {path}")
        found[name] = known
    return found


def _run_row(name: str, row: Row, settings: Settings) -> dict[str, Any]:
    data = row_data(row, settings.data, settings.machine.device, settings.validation)
    work = _Work(name, row, settings, data)
    columns = {method: work.stage(method, partial) for method, partial in METHODS.items()}
    return {
        "format": KIND,
        "version": VERSION,
        "row": name,
        "title": row.title,
        "settings": settings.identity(),
        "row_settings": asdict(row),
        "machine": asdict(settings.machine),
        "items": {split: len(getattr(data, split).labels) for split in ("train", "validation", "test")},
        "columns": columns,
        "training": {name: work.losses[name] for name in sorted(work.losses)},
        "seconds": work.seconds,
        "provenance": provenance(settings.seeds[0]),
    }


class _Work:
    """One row in progress: its data, its trained networks, and the stages that are done."""

    def __init__(self, name: str, row: Row, settings: Settings, data: RowData) -> None:
        self.name, self.row, self.settings, self.data = name, row, settings, data
        self.folder = settings.checkpoints
        self.seconds: dict[str, float] = {}
        self.losses: dict[str, list[list[float]]] = {}
        self._stacks: dict[str, Stack] = {}
        self._found: dict[str, list[Found]] = {}

    def stage(self, name: str, compute: Callable[[_Work], dict[str, Any]]) -> dict[str, Any]:
        """The content of one column, computed once for these settings and kept in a file of its own."""
        path = self.folder / f"table2-{self.name}-{name}.json"
        identity = self.settings.identity()
        if path.is_file():
            kept = json.loads(path.read_text())
            if kept["settings"] == identity:
                self.seconds |= kept["seconds"]
                self.losses |= kept["losses"]
                return kept["column"]  # type: ignore[no-any-return]
        began, before = time.monotonic(), sum(self.seconds.values())
        column = compute(self)
        inner = sum(self.seconds.values()) - before
        self.seconds[name] = time.monotonic() - began - inner
        kept = {"settings": identity, "seconds": self.seconds, "losses": self.losses, "column": column}
        write_atomically(path, json.dumps(kept))
        self.settings.say(f"{self.row.title}: {_summary(name, column, self.seconds[name])}")
        return column

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
        if "training SWA" not in self._stacks:
            swa = swa_schedules.swa_named(self.settings.swa, self.row.learning_rate).shortened(self.settings.epochs)
            self.baseline()  # trained first: where its epochs are the first of this schedule, they are not run again
            trained = self._train("training SWA", Schedule(swa.learning_rates), dropout=False, averaged=swa.averaged)
            network, images = self.row.build(), self.data.train.images
            state = swa_schedules.refresh_batch_norm(network, trained.average, images, self.settings.machine.unfold)
            self._stacks["training SWA"] = self._stack(network, state)
        return self._stacks["training SWA"]

    def members(self, split: Images, selection: str, size: int, antithetic: bool = False) -> StackedMembers:
        """PEP members of the baselines: of the paper's layers, or of all kernels."""
        names = [
            name for name, _ in self.row.build().named_parameters() if name.endswith("weight") and "norm" not in name
        ]
        chosen = [name for name in names if selection == "kernels" or re.search(self.row.perturbed, name)]
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
        return self.folder / f"table2-{self.name}-{stage.replace(' ', '-')}.safetensors"


def baseline(work: _Work) -> dict[str, Any]:
    """The network as it is."""
    return _column(log_probs_on(work.baseline(), work.data.test), work)


def pep(work: _Work) -> dict[str, Any]:
    """PEP as the paper did it: its layers, its search, m = 25 at test."""

    def search() -> dict[str, list[Found]]:
        members = work.members(work.data.validation, "paper", work.row.tuning_size)
        return {"pep": tune_together(members, paper_sigma)[0]}

    return _pep_column(work, "paper", work.searched("pep", search))


def temperature(work: _Work) -> dict[str, Any]:
    """Temperature scaling: one T for each network by maximum validation likelihood."""
    validation = log_probs_on(work.baseline(), work.data.validation)
    found = [Found(0.0, best_temperature(one, work.data.validation.labels)[0]) for one in validation]
    return _column(_tempered(log_probs_on(work.baseline(), work.data.test), found), work, found)


def mc_dropout(work: _Work) -> dict[str, Any]:
    """MC dropout: probabilities averaged over passes with dropout active."""
    stack, passes = work.with_dropout(), work.settings.dropout_passes
    masks = Dropped(work.settings.seeds, work.settings.machine.device)
    total = None
    for number in range(passes):
        masks.restart(10_000 + number)  # beyond any epoch: other masks than in training
        log_probs = log_probs_on(stack, work.data.test, masks)
        total = log_probs if total is None else torch.logaddexp(total, log_probs)
    assert total is not None
    return _column(total - torch.tensor(float(passes)).log().item(), work)


def swa(work: _Work) -> dict[str, Any]:
    """Stochastic weight averaging."""
    return _column(log_probs_on(work.averaged(), work.data.test), work)


def deep_ensembles(work: _Work) -> dict[str, Any]:
    """Deep ensembles: the mean probability of 10 of the 25 networks, for 100 random choices of the 10."""
    log_probs, labels = log_probs_on(work.baseline(), work.data.test), work.data.test.labels
    size = min(work.settings.ensemble_size, len(log_probs))
    generator = random.Random(0)
    values: dict[str, list[float]] = {score: [] for score in SCORES}
    for _ in range(work.settings.ensemble_draws):
        chosen = generator.sample(range(len(log_probs)), size)
        averaged = log_probs[chosen].logsumexp(dim=0) - torch.tensor(float(size)).log().item()
        for score, value in _scores(averaged, labels, work.settings.bins).items():
            values[score].append(value)
    return {"scores": values, "over": f"{work.settings.ensemble_draws} draws of {size}"}


def pep_temperature(work: _Work) -> dict[str, Any]:
    """Ours: sigma and T tuned together, on the paper's layers."""

    def search() -> dict[str, list[Found]]:
        members = work.members(work.data.validation, "paper", work.settings.our_tuning_size)
        return {"joint": tune_together(members, our_sigma_and_temperature)[0]}

    found = work.searched("joint", search)
    validation = work.members(work.data.validation, "paper", work.settings.size)
    return _pep_column(work, "paper", refit_temperatures(validation, found))


def pep_antithetic(work: _Work) -> dict[str, Any]:
    """Ours: members in pairs +epsilon, -epsilon, on the paper's layers; an even number of them."""

    def search() -> dict[str, list[Found]]:
        members = work.members(work.data.validation, "paper", work.settings.our_tuning_size, antithetic=True)
        return {"antithetic": tune_together(members, our_sigma)[0]}

    return _pep_column(work, "paper", work.searched("antithetic", search), antithetic=True)


def pep_kernels(work: _Work) -> dict[str, Any]:
    """Ours: every kernel perturbed."""
    return _pep_column(work, "kernels", work.searched("kernels", lambda: _search_kernels(work)))


def pep_kernels_temperature(work: _Work) -> dict[str, Any]:
    """Ours: every kernel perturbed, sigma and T tuned together."""
    found = work.searched("joint kernels", lambda: _search_kernels(work))
    validation = work.members(work.data.validation, "kernels", work.settings.size)
    return _pep_column(work, "kernels", refit_temperatures(validation, found))


#: The columns: the paper's in its order, then ours. A new one is one function and one row here.
METHODS: dict[str, Callable[[_Work], dict[str, Any]]] = {
    "baseline": baseline,
    "pep": pep,
    "temperature": temperature,
    "mc_dropout": mc_dropout,
    "swa": swa,
    "deep_ensembles": deep_ensembles,
    "pep_temperature": pep_temperature,
    "pep_kernels_temperature": pep_kernels_temperature,
    "pep_antithetic": pep_antithetic,
    "pep_kernels": pep_kernels,
}


@torch.no_grad()
def log_probs_on(stack: Stack, data: Images, masks: Dropped | None = None) -> Tensor:
    """Log-probabilities [S, N, K] of every network, in float64; with masks, of one pass with dropout active."""
    machine, parts = stack.machine, []
    with precision(machine):
        for batch in torch.split(data.images, EVALUATION_BATCH[data.images.device.type]):
            if masks and not masks.knows(len(batch)):
                forward(stack.network, stack.state, batch, masks=masks, unfold=machine.unfold)  # learns the shapes
            if masks:
                masks.refill(len(batch))
            parts.append(log_probs_of(forward(stack.network, stack.state, batch, masks=masks, unfold=machine.unfold)))
    return torch.cat(parts, dim=1)


def _search_kernels(work: _Work) -> dict[str, list[Found]]:
    members = work.members(work.data.validation, "kernels", work.settings.our_tuning_size)
    alone, joint = tune_together(members, our_sigma, our_sigma_and_temperature)
    return {"kernels": alone, "joint kernels": joint}


def _pep_column(work: _Work, selection: str, found: list[Found], antithetic: bool = False) -> dict[str, Any]:
    size = work.settings.size // 2 * 2 if antithetic else work.settings.size
    members = work.members(work.data.test, selection, max(1, size), antithetic)
    passes = members.run({index: one.sigma for index, one in enumerate(found)})
    log_probs = torch.stack([passes[index].averaged for index in range(len(found))])
    return _column(_tempered(log_probs, found), work, found)


def _tempered(log_probs: Tensor, found: Sequence[Found]) -> Tensor:
    return torch.stack([temper(one, at.temperature) for one, at in zip(log_probs, found, strict=True)])


def _column(log_probs: Tensor, work: _Work, found: Sequence[Found] = ()) -> dict[str, Any]:
    """Every network's scores, and what was fitted for each."""
    each = [_scores(one, work.data.test.labels, work.settings.bins) for one in log_probs]
    column: dict[str, Any] = {"scores": {score: [one[score] for one in each] for score in SCORES}, "over": "models"}
    if any(one.sigma for one in found):
        column["sigma"] = [one.sigma for one in found]
    if any(one.temperature != 1 for one in found):
        column["temperature"] = [one.temperature for one in found]
    return column


def _scores(log_probs: Tensor, labels: Tensor, bins: int) -> dict[str, float]:
    return {
        "nll": pm.metrics.nll(log_probs, labels),
        "brier": pm.metrics.brier_score(log_probs, labels),
        "ece": pm.metrics.expected_calibration_error(log_probs, labels, bins),
        "error": pm.metrics.error_rate(log_probs, labels),
    }


def _summary(name: str, column: Mapping[str, Any], seconds: float) -> str:
    means = {score: torch.tensor(values).mean().item() for score, values in column["scores"].items()}
    return (
        f"{name}: NLL {means['nll']:.4f}, Brier {means['brier']:.4f}, ECE {100 * means['ece']:.3f} %, "
        f"error {100 * means['error']:.3f} % ({seconds:.1f} s)"
    )


def tiny(settings: Settings, **changes: Any) -> Settings:
    """The same experiment in seconds: three networks, two epochs, few members."""
    small = replace(
        settings, seeds=(17, 18, 19), epochs=2, size=4, dropout_passes=3, ensemble_size=2, ensemble_draws=5,
        our_tuning_size=4, validation=60,
    )  # fmt: skip
    return replace(small, **changes)
