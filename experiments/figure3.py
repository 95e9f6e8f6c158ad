"""Figure 3: the more a network overfits, the larger the PEP effect and sigma*.

Five networks are trained for each of CIFAR-10, MNIST (MLP) and MNIST (CNN), and examined after each of the 15 epochs.
Overfitting is the test NLL less the training loss of that epoch; the PEP effect is the test NLL of the network less
that of its ensemble. The authors dropped points with negative overfitting or sigma* <= 0.001; here all are kept.

Every network is examined with noise on every kernel, as in the authors' script of this figure for MNIST (CNN), and with
noise on the layers that their scripts perturb in Table 2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from scipy import stats
from torch import Tensor

import peppermill as pm
from experiments.resume import plain, provenance, read_result, write_result
from experiments.settings import ROWS, arithmetic, paper_layers
from experiments.settings import Settings as Table2Settings
from experiments.table2.training import Schedule, State
from experiments.table2.work import Work

KIND = "peppermill figure 3"
PANELS = ("cifar10", "mnist-mlp", "mnist-cnn")  # b, c, d


@dataclass(frozen=True)
class Settings(Table2Settings):
    """The networks of Table 2, examined after every epoch."""

    rows: tuple[str, ...] = PANELS
    models: int = 5  # the authors' scripts


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
    """Every row's points and correlations, into figure3.json; other rows there with these settings stay."""
    path = settings.out / "figure3.json"
    known = read_result(path, KIND) or {}
    experiments = known["experiments"] if known.get("settings") == settings.identity() else {}
    for name in settings.rows:
        work = Work(name, settings)
        with arithmetic(settings.precision):
            experiments[name] = work.stage("figure3-points", partial(examine, work))
        for title, one in layer_choices(experiments[name]).items():
            points = [Point(**point) for point in one["points"]]
            one["correlations"] = plain(correlations(points))
            rho = interval(one["correlations"]["overfitting and effect"])
            settings.say(
                f"Figure 3, {work.row.title}, {title}: Spearman {rho} of overfitting and PEP effect, "
                f"{len(points)} points"
            )
    ordered = {name: experiments[name] for name in sorted(experiments, key=[*PANELS, *ROWS].index)}
    content = {"experiments": ordered, "settings": settings.identity()}
    return write_result(path, KIND, content, settings.seeds[0])


def examine(work: Work) -> dict[str, Any]:
    """Train with every epoch kept, then fit PEP on each of them: on every kernel, and on the layers of Table 2."""
    settings, epochs = work.settings, range(1, work.settings.epochs + 1)
    schedule = Schedule((work.row.learning_rate,) * settings.epochs, keep=tuple(epochs))
    trained = work.trained("figure3 training", schedule)
    every_kernel, table2_layers = list[dict[str, Any]](), list[dict[str, Any]]()
    for epoch in epochs:
        states = [one.states[epoch] for one in trained]
        for stage, parameters, points in (
            (f"figure3-{epoch}", "kernels", every_kernel),
            (f"figure3-table2-layers-{epoch}", paper_layers, table2_layers),
        ):
            found = work.stage(stage, partial(_after_epoch, work, states, parameters))
            for seed, one, numbers in zip(settings.seeds, trained, found, strict=True):
                points.append(asdict(Point(seed, epoch, one.losses[epoch - 1], *numbers)))
        nll, pep, pep_table2 = (
            sum(point[key] for point in points[-len(states) :]) / len(states)
            for points, key in ((every_kernel, "test_nll"), (every_kernel, "pep_nll"), (table2_layers, "pep_nll"))
        )
        shown = f"NLL {nll:.4f}, PEP {pep:.4f}, on the layers of Table 2 {pep_table2:.4f}"
        settings.say(f"Figure 3, {work.row.title}: after epoch {epoch} {shown}")
    return {
        "title": work.row.title,
        "learning_rate": work.row.learning_rate,
        "points": every_kernel,
        "table2_layers": {"points": table2_layers},
        "provenance": provenance(settings.seeds[0]),
    }


def layer_choices(experiment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Points and correlations for each choice of layers."""
    return {"every kernel": experiment, "layers of Table 2": experiment["table2_layers"]}


def _after_epoch(
    work: Work, states: Sequence[State], parameters: str | Callable[[str, Tensor], bool]
) -> list[tuple[float, float, float]]:
    """Test NLL, PEP's test NLL and sigma* of every network, with noise on these parameters."""
    found = []
    for seed, state in zip(work.settings.seeds, states, strict=True):
        network, noise = work.network(state), pm.Noise("gaussian", antithetic=False, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.PepWarning)  # a best sigma of 0 is a point of the figure
            pep = work.fit(network, work.settings.our_tuning_size, noise, parameters=parameters)
        alone, together = (pm.predict(one, work.data.test) for one in (network, pep.with_size(work.settings.size)))
        nll, pep_nll = (pm.metrics.nll(one.log_probs, one.labels) for one in (alone, together))
        found.append((nll, pep_nll, pep.sigma))
    return found


def correlations(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """Spearman's correlation of overfitting with the PEP effect and with sigma*, over all points."""
    overfitting = [point.overfitting for point in points]
    return {
        "overfitting and effect": rank_correlation(overfitting, [point.effect for point in points]),
        "overfitting and sigma": rank_correlation(overfitting, [point.sigma for point in points]),
    }


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Spearman's rho with the interval of Bonett and Wright (2000): Fisher's z, variance (1 + rho^2/2) / (n - 3)."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return dict.fromkeys(("rho", "lower", "upper", "p_value"), math.nan)
    rho, p_value = map(float, stats.spearmanr(first, second))
    lower, upper = (-1.0, 1.0) if len(first) < 4 else (rho, rho)
    if len(first) > 3 and abs(rho) < 1:
        half = float(stats.norm.ppf(0.975)) * math.sqrt((1 + rho**2 / 2) / (len(first) - 3))
        lower, upper = math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)
    return {"rho": rho, "lower": lower, "upper": upper, "p_value": p_value}


def interval(found: Mapping[str, float | None], digits: int = 3) -> str:
    """A correlation and its interval; there is none for points that are all equal in one of the two quantities."""
    if found["rho"] is None:
        return "none"
    return f"{found['rho']:.{digits}f} [{found['lower']:.{digits}f}, {found['upper']:.{digits}f}]"
