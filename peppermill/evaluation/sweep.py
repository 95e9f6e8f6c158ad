"""L(sigma), its members and every score along a grid of sigma: the data of Figure 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from peppermill import metrics
from peppermill.calibrators import UNCALIBRATED
from peppermill.data import Batches
from peppermill.engines import Engine, engine_named
from peppermill.ensemble import PepEnsemble
from peppermill.evaluation.scores import ByScore, column_of, item_scores, number
from peppermill.metrics import SCORES
from peppermill.noise import Noise
from peppermill.passes import run_members
from peppermill.plumbing.display import Table, shows_table
from peppermill.plumbing.progress import progress
from peppermill.tuning.result import evaluate_pass
from peppermill.tuning.search import START, grow_bracket

if TYPE_CHECKING:
    from peppermill.parameters import Selection
    from peppermill.types import Data, EngineName, LawName, LikelihoodLike, Precision
    from peppermill.views import ViewsLike

STEPS = 20  # of the grid across the peak


@dataclass(frozen=True)
class SweepPoint(ByScore[float]):
    """One sigma: mean log-likelihoods of the ensemble and of each member, the best T, scores and reliability at T = 1.

    The scores of `metrics.SCORES` are attributes: nll, brier, ece, error, aurc.
    """

    sigma: float
    log_likelihood: float
    member_log_likelihoods: tuple[float, ...]
    temperature: float
    tempered_log_likelihood: float
    scores: Mapping[str, float]
    reliability: metrics.Reliability

    @property
    def mean_member_log_likelihood(self) -> float:
        """The average of the members' own curves in Figure 1."""
        return sum(self.member_log_likelihoods) / len(self.member_log_likelihoods)


@shows_table
@dataclass(frozen=True)
class Sweep:
    """Points in ascending order of sigma, N items and the number of bins of their reliability tables."""

    points: tuple[SweepPoint, ...]
    items: int
    bins: int

    @property
    def best(self) -> SweepPoint:
        return max(self.points, key=lambda point: point.log_likelihood)

    def table(self) -> Table:
        """Every sigma: log-likelihoods, the best T, and the scores at T = 1; the best is marked."""
        return sweep_table([{**vars(point), **point.scores} for point in self.points], self.items, self.bins)


def sweep_table(points: Sequence[Mapping[str, Any]], items: int, bins: int) -> Table:
    """The table of a sweep from its points as a run file holds them; the log-likelihood stands for the NLL."""
    scores = [name for name in SCORES if name in points[0] and name != "nll"]
    curve = [(p["sigma"], -math.inf if p["log_likelihood"] is None else p["log_likelihood"]) for p in points]
    best, rows = max(curve, key=lambda point: point[1])[0], []
    for point in points:
        members = point["member_log_likelihoods"]
        average = None if None in members else sum(members) / len(members)
        values = {"L": point["log_likelihood"], "average": average, "T": point["temperature"]}
        values |= {"L(T)": point["tempered_log_likelihood"], **{name: point[name] for name in scores}}
        texts = [number(name, value).replace("–", "not finite") for name, value in values.items()]
        rows.append([f"{point['sigma']:.4g}", *texts, "<- best" if point["sigma"] == best else ""])
    columns = ["sigma", "L(sigma)/N", "members' average", "best T", "L(sigma, T)/N"]
    names = [*columns, *(column_of(name, bins) for name in scores), ""]
    return Table(names, rows, f"{items:,} items", curve=curve)


def sweep_sigma(
    model: nn.Module,
    data: Data,
    sigmas: Sequence[float] | None = None,
    *,
    parameters: Selection = "kernels",
    size: int = 10,
    noise: LawName | Noise = "gaussian",
    antithetic: bool = True,
    seed: int = 0,
    likelihood: LikelihoodLike = "categorical",
    views: ViewsLike = None,
    bins: int = metrics.BINS,
    batch_size: int = 500,
    engine: EngineName | Engine = "auto",
    precision: Precision | None = None,
) -> Sweep:
    """L(sigma) and every score on a grid that contains 0; without `sigmas`, the grid has twenty steps across the peak.

    The options are those of `fit`, and the same seed gives the same members.
    """
    noise = noise if isinstance(noise, Noise) else Noise(noise, antithetic, seed)
    engine = engine_named(engine, precision)
    pep = PepEnsemble.at_sigma(
        model, 0.0, parameters=parameters, size=size, noise=noise, likelihood=likelihood, views=views, engine=engine
    )
    return sweep_ensemble(pep, data, sigmas, bins=bins, batch_size=batch_size)


def sweep_ensemble(
    pep: PepEnsemble, data: Data, sigmas: Sequence[float] | None, *, bins: int = metrics.BINS, batch_size: int = 500
) -> Sweep:
    """The sweep of an ensemble's own members, without its temperature."""
    if pep.likelihood.name == "gaussian":
        raise ValueError("`sweep_sigma` scores classifiers: use `fit(...).search` for a Gaussian likelihood.")
    if sigmas is not None and any(not 0 <= sigma < math.inf for sigma in sigmas):
        raise ValueError(f"`sigmas={list(sigmas)}` must be sizes of noise, zero or positive, and finite.")
    batches = Batches(data, pep.model, batch_size=batch_size)
    items, steps = batches.count_items(), STEPS if sigmas is None else len({*sigmas} - {0.0})
    with progress("sweeping sigma", items and items * (1 + pep.size * steps)) as tick:
        request = pep.request(batches, tick)
        if sigmas is None:
            start = START * pep.perturbation.scale()
            upper = grow_bracket(lambda s: evaluate_pass(run_members(request, s), False).log_likelihood, start)
            sigmas = [upper * step / STEPS for step in range(1, STEPS + 1)]
        points = []
        for sigma in sorted({0.0, *map(float, sigmas)}):
            members = run_members(request, sigma)
            found = pep.with_calibrator(UNCALIBRATED).predictions_of(members)
            tempered = evaluate_pass(members, joint=True)
            points.append(
                SweepPoint(
                    sigma=sigma,
                    log_likelihood=float(found.log_likelihoods.mean()),
                    member_log_likelihoods=tuple(members.member_log_likelihoods.mean(dim=1).tolist()),
                    temperature=tempered.temperature,
                    tempered_log_likelihood=tempered.tempered_log_likelihood / len(found.labels),
                    scores={name: float(score.value()) for name, score in item_scores(found, bins).items()},
                    reliability=metrics.reliability(found.log_probs, found.labels, bins),
                )
            )
    return Sweep(tuple(points), len(found.labels), bins)
