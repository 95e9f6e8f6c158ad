"""The columns of Table 1: the network, temperature scaling and PEP as the paper had them, then ours; on one split."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor

import peppermill as pm
from peppermill import metrics
from peppermill.calibrators.temperature import best_temperature
from peppermill.engines.loop import MemberPass
from peppermill.likelihood import ensemble_log_likelihood, temper
from peppermill.paper.image_members import Group, ImageMembers, in_pairs, one_sided
from peppermill.tuning.golden import Evaluations, SigmaSearch, tune_sigma
from peppermill.tuning.search import golden_section

TITLES = {
    "network": "Network",
    "temperature": "Temp. scaling",
    "pep": "PEP",
    "pep_temperature": "PEP with T",
    "pep_antithetic": "PEP, antithetic",
    "pep_antithetic_temperature": "PEP with T, antithetic",
}

#: Which methods are compared on the test images, the second less the first.
PAIRS = (
    ("network", "temperature"),
    *((first, second) for second in list(TITLES)[2:] for first in ("network", "temperature")),
    ("pep", "pep_temperature"),
)


@dataclass(frozen=True)
class Part:
    """Some of the images that members run over; all of them where `items` is nothing."""

    members: ImageMembers
    items: Tensor | None = None

    def run(self, sigma: float, groups: Sequence[Group] = ()) -> MemberPass:
        """The ensemble of these groups at sigma; the network itself at sigma = 0."""
        return self.members.run(sigma, groups, self.items)


@dataclass(frozen=True)
class Case:
    """One split: the images that tune, those that test, and the settings of Section 3.1."""

    tuning: Part
    test: Part
    lower: float | None
    upper: float | None
    tuning_size: int = 5  # Section 3.1
    size: int = 10  # Section 3.1
    iterations: int = 7  # Section 3.1


@dataclass(frozen=True)
class Column:
    """Every test image's scores, and what was fitted, with the (sigma, L(sigma)) that were paid for."""

    nll: Tensor
    brier: Tensor
    error: Tensor
    confidence: Tensor
    sigma: float = 0.0
    temperature: float = 1.0
    points: tuple[tuple[float, float], ...] = ()

    def reliability(self, bins: int) -> metrics.Reliability:
        """The reliability diagram of the supplement."""
        edges = metrics.equal_width_edges(bins, self.confidence.device)
        return metrics.reliability_table(self.confidence, 1 - self.error, edges)

    def scores(self, bins: int, minimum_count: int) -> dict[str, float]:
        """Means over the images; ECE without the bins of fewer than `minimum_count` images, as in Table 1."""
        nll, brier, error = (float(scores.mean()) for scores in (self.nll, self.brier, self.error))
        ece = self.reliability(bins).calibration_error(minimum_count)
        return {"nll": nll, "brier": brier, "ece": ece, "error": error}


def network(case: Case) -> Column:
    """The network as it is."""
    return _column(case.test.run(0.0))


def temperature(case: Case) -> Column:
    """Temperature scaling: T by maximum likelihood on the tuning images."""
    known = case.tuning.run(0.0)
    return _column(case.test.run(0.0), best_temperature(known.averaged, known.labels)[0])


def pep(case: Case) -> Column:
    """PEP by the paper's own search, which never tries sigma = 0; by ours where the paper gives no range."""
    groups = one_sided(case.tuning_size, case.tuning_size)
    if case.lower is None or case.upper is None:
        return _ours(case, groups, one_sided(case.tuning_size, case.size), joint=False)
    search = golden_section(
        lambda sigma: float(ensemble_log_likelihood(case.tuning.run(sigma, groups).member_log_likelihoods)),
        case.lower,
        case.upper,
        case.iterations - 1,
    )
    sigma = (search.lower + search.upper) / 2  # of the last iteration's two inner points, as of its bracket
    return _column(case.test.run(sigma, one_sided(case.tuning_size, case.size)), points=search.points)


def pep_temperature(case: Case) -> Column:
    """Ours: sigma and T tuned together, with the paper's ten members while tuning too."""
    groups = one_sided(case.tuning_size, case.size)
    return _ours(case, groups, groups, joint=True)


def pep_antithetic(case: Case) -> Column:
    """Ours: members in pairs, ten of them while tuning too."""
    return _ours(case, in_pairs(case.size), in_pairs(case.size), joint=False)


def pep_antithetic_temperature(case: Case) -> Column:
    """Ours: members in pairs, sigma and T tuned together; what `pm.fit(..., temperature=True)` does."""
    return _ours(case, in_pairs(case.size), in_pairs(case.size), joint=True)


#: The columns: the paper's in its order, then ours. A new one is one function and one row here and in `TITLES`.
METHODS: dict[str, Callable[[Case], Column]] = {
    "network": network,
    "temperature": temperature,
    "pep": pep,
    "pep_temperature": pep_temperature,
    "pep_antithetic": pep_antithetic,
    "pep_antithetic_temperature": pep_antithetic_temperature,
}


def paired(first: Column, second: Column) -> dict[str, dict[str, float]]:
    """second - first over the same images: mean, 95 % interval and p-value.

    A paired t test; of the error, where each difference is -1, 0 or 1, the exact test of McNemar.
    """
    found = {}
    for score in ("nll", "brier", "error"):
        differences = (getattr(second, score) - getattr(first, score)).cpu().numpy()
        if not differences.any():
            found[score] = {"mean": 0.0, "lower": 0.0, "upper": 0.0, "p": 1.0}
            continue
        test = stats.ttest_1samp(differences, 0.0)
        bounds = test.confidence_interval(0.95)
        better, worse = int((differences < 0).sum()), int((differences > 0).sum())
        p = stats.binomtest(better, better + worse).pvalue if score == "error" else test.pvalue
        numbers = (differences.mean(), bounds.low, bounds.high, p)
        found[score] = dict(zip(("mean", "lower", "upper", "p"), map(float, numbers), strict=True))
    return found


def comparisons(columns: Mapping[str, Column]) -> dict[str, Any]:
    """Every pair of `PAIRS`, under the name "second - first"."""
    return {f"{second} - {first}": paired(columns[first], columns[second]) for first, second in PAIRS}


def _ours(case: Case, tuning: Sequence[Group], test: Sequence[Group], joint: bool) -> Column:
    """`pm.fit`: sigma = 0 is in the race; T is fitted again where more members test than tuned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)  # a best sigma of 0, or at an end, is a number of the table here
        search = _search(case, tuning, joint)
    sigma, chosen = search.best.sigma, 1.0
    if joint:
        known = case.tuning.run(sigma, test)
        chosen = best_temperature(known.averaged, known.labels)[0]
    return _column(case.test.run(sigma, test), chosen, search.points)


def _search(case: Case, groups: Sequence[Group], joint: bool) -> SigmaSearch:
    """Where there is a range, golden sections of it: of L(sigma), and of its profile, so that all splits of the images
    share one lattice and its members are run once. Where there is none, `pm.fit(..., search="golden")`."""

    def run(sigma: float) -> MemberPass:
        return case.tuning.run(sigma, groups)

    if case.upper is None:
        scale = case.tuning.members.perturbation.scale()
        return tune_sigma(run, scale=scale, iterations=case.iterations, joint=joint)
    evaluate, lower = Evaluations(run, joint), case.lower or 0.0
    evaluate(0.0)
    golden_section(lambda sigma: evaluate(sigma).log_likelihood, lower, case.upper, case.iterations)
    if joint:
        golden_section(lambda sigma: evaluate(sigma).tempered_log_likelihood, lower, case.upper, case.iterations)
    return SigmaSearch(tuple(evaluate.known.values()), lower, case.upper, evaluate.items, joint, evaluate.passes)


def _column(found: MemberPass, chosen: float = 1.0, points: tuple[tuple[float, float], ...] = ()) -> Column:
    log_probs = temper(found.averaged, chosen)
    confidence, correct = metrics.top_label(log_probs, found.labels)
    nll = metrics.item_nll(log_probs, found.labels)
    brier = metrics.item_brier(log_probs, found.labels)
    error = torch.ones_like(nll) - correct.double()
    return Column(nll, brier, error, confidence, found.sigma, chosen, points)
