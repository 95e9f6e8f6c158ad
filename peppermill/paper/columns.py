"""The columns of Table 2: the paper's six methods in its order, then ours; each asked about every network of a row."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import peppermill as pm
from peppermill.calibrators.temperature import best_temperature
from peppermill.likelihood import temper
from peppermill.paper.dropping import Dropping
from peppermill.paper.machine import precision
from peppermill.paper.masks import Dropped
from peppermill.paper.members import Images, Stack, log_probs_of
from peppermill.paper.stacked import forward
from peppermill.paper.tuned import (
    Found,
    our_sigma,
    our_sigma_and_temperature,
    paper_sigma,
    refit_temperatures,
    tune_together,
)
from peppermill.paper.work import Work

SCORES = ("nll", "brier", "ece", "error")


def baseline(work: Work) -> dict[str, Any]:
    """The network as it is."""
    return column_of(log_probs_on(work.baseline(), work.data.test), work)


def pep(work: Work) -> dict[str, Any]:
    """PEP as the paper did it: its layers, its search, m = 25 at test."""

    def search() -> dict[str, list[Found]]:
        members = work.members(work.data.validation, "paper", work.row.tuning_size)
        return {"pep": tune_together(members, paper_sigma)[0]}

    return _pep_column(work, "paper", work.searched("pep", search))


def temperature(work: Work) -> dict[str, Any]:
    """Temperature scaling: one T for each network by maximum validation likelihood."""
    validation = log_probs_on(work.baseline(), work.data.validation)
    found = [Found(0.0, best_temperature(one, work.data.validation.labels)[0]) for one in validation]
    return column_of(_tempered(log_probs_on(work.baseline(), work.data.test), found), work, found)


def mc_dropout(work: Work) -> dict[str, Any]:
    """MC dropout: probabilities averaged over passes with dropout active."""
    passes, dropping = work.settings.dropout_passes, Dropping(work.with_dropout(), work.data.test)
    masks = Dropped(work.settings.seeds, work.settings.machine.device)
    total = None
    for number in range(passes):
        masks.restart(10_000 + number)  # beyond any epoch: other masks than in training
        log_probs = dropping.log_probs(masks)
        total = log_probs if total is None else torch.logaddexp(total, log_probs)
    assert total is not None
    return column_of(total - math.log(passes), work)


def swa(work: Work) -> dict[str, Any]:
    """Stochastic weight averaging."""
    return column_of(log_probs_on(work.averaged(), work.data.test), work)


def deep_ensembles(work: Work) -> dict[str, Any]:
    """Deep ensembles: the mean probability of 10 of the 25 networks, for 100 random choices of the 10."""
    log_probs, labels = log_probs_on(work.baseline(), work.data.test), work.data.test.labels
    size = min(work.settings.ensemble_size, len(log_probs))
    generator = random.Random(0)
    values: dict[str, list[float]] = {score: [] for score in SCORES}
    for _ in range(work.settings.ensemble_draws):
        chosen = generator.sample(range(len(log_probs)), size)
        averaged = log_probs[chosen].logsumexp(dim=0) - math.log(size)
        for score, value in scores_of(averaged, labels, work.settings.bins).items():
            values[score].append(value)
    return {"scores": values, "over": f"{work.settings.ensemble_draws} draws of {size}"}


def pep_temperature(work: Work) -> dict[str, Any]:
    """Ours: sigma and T tuned together, on the paper's layers."""

    def search() -> dict[str, list[Found]]:
        members = work.members(work.data.validation, "paper", work.settings.our_tuning_size)
        return {"joint": tune_together(members, our_sigma_and_temperature)[0]}

    found = work.searched("joint", search)
    validation = work.members(work.data.validation, "paper", work.settings.size)
    return _pep_column(work, "paper", refit_temperatures(validation, found))


def pep_antithetic(work: Work) -> dict[str, Any]:
    """Ours: members in pairs +epsilon, -epsilon, on the paper's layers; an even number of them."""

    def search() -> dict[str, list[Found]]:
        members = work.members(work.data.validation, "paper", work.settings.our_tuning_size, antithetic=True)
        return {"antithetic": tune_together(members, our_sigma)[0]}

    return _pep_column(work, "paper", work.searched("antithetic", search), antithetic=True)


def pep_kernels(work: Work) -> dict[str, Any]:
    """Ours: every kernel perturbed."""
    return _pep_column(work, "kernels", work.searched("kernels", lambda: _search_kernels(work)))


def pep_kernels_temperature(work: Work) -> dict[str, Any]:
    """Ours: every kernel perturbed, sigma and T tuned together."""
    found = work.searched("joint kernels", lambda: _search_kernels(work))
    validation = work.members(work.data.validation, "kernels", work.settings.size)
    return _pep_column(work, "kernels", refit_temperatures(validation, found))


#: The columns: the paper's in its order, then ours. A new one is one function and one row here.
METHODS: dict[str, Callable[[Work], dict[str, Any]]] = {
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
def log_probs_on(stack: Stack, data: Images) -> Tensor:
    """Log-probabilities [S, N, K] of every network, in float64."""
    with precision(stack.machine):
        batches = torch.split(data.images, data.batch_size)
        return torch.cat([log_probs_of(forward(stack.network, stack.state, batch)) for batch in batches], dim=1)


def _search_kernels(work: Work) -> dict[str, list[Found]]:
    members = work.members(work.data.validation, "kernels", work.settings.our_tuning_size)
    alone, joint = tune_together(members, our_sigma, our_sigma_and_temperature)
    return {"kernels": alone, "joint kernels": joint}


def _pep_column(work: Work, selection: str, found: list[Found], antithetic: bool = False) -> dict[str, Any]:
    size = work.settings.size // 2 * 2 if antithetic else work.settings.size
    members = work.members(work.data.test, selection, max(1, size), antithetic)
    passes = members.run({index: one.sigma for index, one in enumerate(found)})
    log_probs = torch.stack([passes[index].averaged for index in range(len(found))])
    return column_of(_tempered(log_probs, found), work, found)


def _tempered(log_probs: Tensor, found: Sequence[Found]) -> Tensor:
    return torch.stack([temper(one, at.temperature) for one, at in zip(log_probs, found, strict=True)])


def column_of(log_probs: Tensor, work: Work, found: Sequence[Found] = ()) -> dict[str, Any]:
    """Every network's scores, and what was fitted for each."""
    each = [scores_of(one, work.data.test.labels, work.settings.bins) for one in log_probs]
    column: dict[str, Any] = {"scores": {score: [one[score] for one in each] for score in SCORES}, "over": "models"}
    if any(one.sigma for one in found):
        column["sigma"] = [one.sigma for one in found]
    if any(one.temperature != 1 for one in found):
        column["temperature"] = [one.temperature for one in found]
    return column


def scores_of(log_probs: Tensor, labels: Tensor, bins: int) -> dict[str, float]:
    """The four scores of Table 2, as fractions."""
    return {
        "nll": pm.metrics.nll(log_probs, labels),
        "brier": pm.metrics.brier_score(log_probs, labels),
        "ece": pm.metrics.expected_calibration_error(log_probs, labels, bins),
        "error": pm.metrics.error_rate(log_probs, labels),
    }
