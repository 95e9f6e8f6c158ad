"""L(sigma), its members and every score along a grid of sigma: the data of Figure 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from peppermill import metrics
from peppermill import parameters as selection
from peppermill.calibrators.temperature import best_temperature
from peppermill.data import Batches
from peppermill.evaluation.scores import item_scores, score_named
from peppermill.likelihood import ensemble_log_likelihoods, likelihood_named
from peppermill.noise import Noise
from peppermill.old_engines.choose import engine_of
from peppermill.old_engines.engine import Engine
from peppermill.old_engines.loop import MemberPass
from peppermill.old_engines.parts import agree_on, run_all
from peppermill.parameters import Selection
from peppermill.perturbation import Perturbation
from peppermill.plumbing.modes import as_network
from peppermill.plumbing.progress import progress
from peppermill.predictions import Predictions
from peppermill.processes.results import own_total
from peppermill.processes.together import together
from peppermill.tuning.golden import START
from peppermill.tuning.search import grow_bracket
from peppermill.types import Data, Likelihood


@dataclass(frozen=True)
class SweepPoint:
    """One sigma: mean log-likelihoods of the ensemble and of each member, the best T, scores and reliability at T = 1.

    The scores of `metrics.SCORES` are attributes: nll, brier, ece, error.
    """

    sigma: float
    log_likelihood: float
    member_log_likelihoods: tuple[float, ...]
    temperature: float
    tempered_log_likelihood: float
    scores: Mapping[str, float]
    reliability: metrics.Reliability

    def __getattr__(self, name: str) -> float:
        return score_named(name, self.__dict__.get("scores", {}))  # type: ignore[no-any-return]

    @property
    def mean_member_log_likelihood(self) -> float:
        """The average of the members' own curves in Figure 1."""
        return sum(self.member_log_likelihoods) / len(self.member_log_likelihoods)


@dataclass(frozen=True)
class Sweep:
    """Points in ascending order of sigma, N items and the number of bins of their reliability tables."""

    points: tuple[SweepPoint, ...]
    items: int
    bins: int

    @property
    def best(self) -> SweepPoint:
        return max(self.points, key=lambda point: point.log_likelihood)


@together
def sweep_sigma(
    model: nn.Module,
    data: Data,
    sigmas: Sequence[float] | None = None,
    *,
    parameters: Selection = "kernels",
    size: int = 10,
    noise: str = "gaussian",
    antithetic: bool = True,
    seed: int = 0,
    likelihood: str | Likelihood = "categorical",
    bins: int = metrics.BINS,
    batch_size: int = 500,
    engine: str | Engine = "auto",
    precision: str | None = None,
) -> Sweep:
    """The whole curve on a grid of sigma, 0 always on it; without `sigmas`, twenty steps across the peak.

    The options are those of `fit`, and the same seed gives the same members.
    """
    chosen = likelihood_named(likelihood)
    if chosen.name == "gaussian":
        raise ValueError("`sweep_sigma` scores classifiers: use `fit(...).search` for a Gaussian likelihood.")
    model = as_network(model)
    perturbation = Perturbation(selection.select(model, parameters), Noise(noise, antithetic, seed), size)
    agree_on(model, perturbation, sigmas=sigmas, likelihood=chosen)
    batches, runner = Batches(data, model, batch_size=batch_size), engine_of(engine, precision)
    with progress("sweeping sigma") as tick:

        def run(sigma: float) -> MemberPass:
            return run_all(model, perturbation, sigma, batches, chosen, tick, runner)

        grid = _grid(sigmas) if sigmas is not None else _grid_across_the_peak(run, perturbation.scale())
        passes = (run(sigma) for sigma in grid)
        points = tuple(_point(members, chosen, bins) for members in passes)
    return Sweep(points, int(points[0].reliability.count.sum()), bins)


def _grid(sigmas: Sequence[float]) -> list[float]:
    if any(not 0 <= sigma < math.inf for sigma in sigmas):
        raise ValueError(f"`sigmas={list(sigmas)}` must be sizes of noise, zero or positive, and finite.")
    return sorted({0.0, *map(float, sigmas)})


def _grid_across_the_peak(run: Callable[[float], MemberPass], scale: float, steps: int = 20) -> list[float]:
    bracket = grow_bracket(lambda sigma: _log_likelihood(run(sigma)), START * scale)
    return [bracket.upper * step / steps for step in range(steps + 1)]


def _point(members: MemberPass, likelihood: Likelihood, bins: int) -> SweepPoint:
    items, averaged, labels = len(members.labels), members.averaged, members.labels
    log_likelihoods = ensemble_log_likelihoods(members.member_log_likelihoods)
    predictions = Predictions(averaged, labels, log_likelihoods, likelihood)
    temperature, tempered = best_temperature(averaged, labels)
    return SweepPoint(
        sigma=members.sigma,
        log_likelihood=_log_likelihood(members) / items,
        member_log_likelihoods=tuple(_means(members.member_log_likelihoods)),
        temperature=temperature,
        tempered_log_likelihood=tempered / items,
        scores={name: float(score.value()) for name, score in item_scores(predictions, bins).items()},
        reliability=metrics.reliability(averaged, labels, bins),
    )


def _log_likelihood(members: MemberPass) -> float:
    return own_total(ensemble_log_likelihoods(members.member_log_likelihoods))


def _means(member_log_likelihoods: Tensor) -> list[float]:
    return [float(row.mean()) for row in member_log_likelihoods]
