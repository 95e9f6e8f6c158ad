"""Figure 3: the more a network overfits, the larger the PEP effect and sigma*.

Five networks are trained for each of CIFAR-10, MNIST (MLP) and MNIST (CNN), and all are kept after each of the 15
epochs. Overfitting is the test NLL less the training loss of that epoch; the PEP effect is the test NLL of the network
less that of its ensemble. The authors dropped points with negative overfitting or sigma* <= 0.001; here all are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

import peppermill as pm
from peppermill.evaluation.overfitting import rank_correlation
from peppermill.paper.columns import log_probs_on
from peppermill.paper.members import Directions, Images, Stack, StackedMembers
from peppermill.paper.result import write_result
from peppermill.paper.rows import ROWS, Row, RowData, row_data
from peppermill.paper.stacked import State
from peppermill.paper.trainer import Schedule
from peppermill.paper.training import train_together
from peppermill.paper.tuned import our_sigma, tune_together
from peppermill.paper.work import Settings, kept_stage, kernel_names, row_of
from peppermill.plumbing.files import read_json
from peppermill.report.provenance import provenance
from peppermill.report.run import plain

KIND = "peppermill figure 3"
VERSION = 1
EXPERIMENTS = ("cifar10", "mnist-mlp", "mnist-cnn")  # panels b, c, d
MODELS = 5  # the authors' scripts


@dataclass(frozen=True)
class Point:
    """One network after one epoch."""

    seed: int
    epoch: int
    training_nll: float
    test_nll: float
    pep_nll: float
    sigma: float

    @property
    def overfitting(self) -> float:
        return self.test_nll - self.training_nll

    @property
    def effect(self) -> float:
        """The PEP effect: baseline NLL - PEP NLL."""
        return self.test_nll - self.pep_nll


def main(settings: Settings) -> dict[str, Any]:
    """Every experiment's points and correlations, into figure3.json; others in it with these settings stay."""
    experiments = _known(settings)
    for name in settings.rows:
        row = row_of(name, settings)
        found = kept_stage(settings, f"figure3-{name}", partial(_experiment, name, row, settings), row)
        points = [Point(**one) for one in found["points"]]
        experiments[name] = found | {"correlations": plain(correlations(points))}
        said = interval(experiments[name]["correlations"]["overfitting and effect"])
        settings.say(f"Figure 3, {found['title']}: Spearman {said} of overfitting and PEP effect, {len(points)} points")
    content = {
        "format": KIND,
        "version": VERSION,
        "experiments": {name: experiments[name] for name in sorted(experiments, key=[*EXPERIMENTS, *ROWS].index)},
        "settings": settings.identity(),
        "provenance": provenance(settings.seeds[0]),
    }
    write_result(settings.out / "figure3.json", content)
    return content


def interval(found: Mapping[str, float | None], digits: int = 3) -> str:
    """A correlation and its interval; there is none of points that are all equal in one of the two."""
    if found["rho"] is None:
        return "none"
    return f"{found['rho']:.{digits}f} [{found['lower']:.{digits}f}, {found['upper']:.{digits}f}]"


def _known(settings: Settings) -> dict[str, Any]:
    """The experiments in the file, if they were run with these settings."""
    path = settings.out / "figure3.json"
    known: dict[str, Any] = read_json(path, KIND, VERSION) if path.is_file() else {}
    return known["experiments"] if known.get("settings") == settings.identity() else {}


def correlations(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """Of overfitting with the PEP effect and with sigma*, over all points: Spearman's."""
    overfitting = [point.overfitting for point in points]
    return {
        "overfitting and effect": asdict(rank_correlation(overfitting, [point.effect for point in points])),
        "overfitting and sigma": asdict(rank_correlation(overfitting, [point.sigma for point in points])),
    }


def _experiment(name: str, row: Row, settings: Settings) -> dict[str, Any]:
    """Train, and look at all networks after each epoch; both are kept, so that a killed run goes on."""
    data = row_data(row, settings.data, settings.machine.device, settings.validation)
    weights = settings.folder / f"figure3-{name}.safetensors"

    def look(epoch: int, state: State) -> None:
        seen(epoch, lambda: {"networks": _after_epoch(epoch, state, row, data, settings)})

    def seen(epoch: int, compute: Callable[[], dict[str, Any]]) -> list[list[float]]:
        found: list[list[float]] = kept_stage(settings, f"figure3-{name}-{epoch}", compute, row)["networks"]
        return found

    def lost() -> dict[str, Any]:
        raise ValueError(f"what was seen after an epoch before is gone: delete {weights} too, and run again.")

    trained = train_together(
        row.build(),
        data.train.images,
        data.train.labels,
        settings.seeds,
        Schedule((row.learning_rate,) * settings.epochs),
        settings.machine,
        checkpoint=weights,
        settings={"row": name},
        watch=look,
        say=lambda text: settings.say(f"Figure 3, {row.title}: {text}"),
    )
    points = [
        asdict(Point(seed, epoch, float(trained.losses[epoch - 1, s]), *found))
        for epoch in range(1, settings.epochs + 1)
        for s, (seed, found) in enumerate(zip(settings.seeds, seen(epoch, lost), strict=True))
    ]
    return {
        "title": row.title,
        "learning_rate": row.learning_rate,
        "points": points,
        "provenance": provenance(settings.seeds[0]),
    }


def _after_epoch(
    epoch: int, state: State, row: Row, data: RowData, settings: Settings
) -> list[tuple[float, float, float]]:
    """Test NLL, PEP's test NLL and sigma* of every network after one epoch; every kernel is perturbed."""
    stack = Stack(row.build(), state, Directions(state, settings.seeds), settings.machine)
    names = kernel_names(stack.network)
    validation = StackedMembers(stack, data.validation, names, settings.our_tuning_size, antithetic=False)
    found = tune_together(validation, our_sigma)[0]
    test = StackedMembers(stack, data.test, names, settings.size, antithetic=False)
    passes = test.run({index: one.sigma for index, one in enumerate(found)})
    pep = [_nll(passes[index].averaged, data.test) for index in range(len(found))]
    alone = [_nll(one, data.test) for one in log_probs_on(stack, data.test)]
    settings.say(
        f"Figure 3, {row.title}: after epoch {epoch} NLL {np.mean(alone):.4f}, PEP {np.mean(pep):.4f}, sigma "
        f"{np.mean([one.sigma for one in found]):.4g}"
    )
    return [(a, p, one.sigma) for a, p, one in zip(alone, pep, found, strict=True)]


def _nll(log_probs: torch.Tensor, data: Images) -> float:
    return pm.metrics.nll(log_probs, data.labels)
