"""Members from a pool: of more draws than members, those whose average fits the validation labels best.

The choice is greedy and with replacement (Caruana et al., 2004), on the log-likelihood after the temperature. A choice
flatters itself on the items it was made on, so what it is worth is estimated by cross-fitting: choose on one half of
the examples, score on the other, and back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from peppermill.calibrators.temperature import best_temperature
from peppermill.likelihood import ensemble_log_likelihoods, temper
from peppermill.passes import Request, run_members
from peppermill.plumbing.warnings import warn_user
from peppermill.tuning.result import ROUNDING, SigmaSearch, evaluate_pass

MAX_BYTES = 2**30  # of the log-probabilities of all members in the pool


def tune_pool(request: Request, found: SigmaSearch, pool: int) -> tuple[Request, SigmaSearch]:
    """The members chosen from the first `pool` draws at the sigma that was found, and what choosing is worth.

    If the cross-fitted gain is not above rounding, the first m draws remain.
    """
    perturbation, sigma = request.perturbation, found.best.sigma
    if sigma == 0:
        return request, found
    found_by_draw = []
    for draw in range(pool):
        alone = replace(perturbation, size=1, noise=replace(perturbation.noise, draws=(draw,)))
        members = run_members(replace(request, perturbation=alone), sigma)
        size = 4 * pool * found.items * members.averaged.shape[1]
        if found.joint and size > MAX_BYTES:
            raise ValueError(
                f"`pool` needs the log-probabilities of all its members, {size / 2**30:.1f} GiB here and at most "
                f"{MAX_BYTES / 2**30:.0f}: use a smaller pool or fewer validation items."
            )
        averaged = members.averaged.float() if found.joint else members.member_log_likelihoods.T
        found_by_draw.append((members.member_log_likelihoods[0], averaged))
    log_likelihoods, rows = map(torch.stack, zip(*found_by_draw, strict=True))
    labels = members.labels if found.joint else torch.zeros_like(members.labels, dtype=torch.long)
    gain = cross_fitted_gain(rows, labels, perturbation.size, members.examples)
    if gain > ROUNDING:
        chosen = list(draws := choose_members(rows, labels, perturbation.size))
        averaged = ensemble_log_likelihoods(rows[chosen]).double()
        of_chosen = replace(
            members, member_log_likelihoods=log_likelihoods[chosen], averaged=averaged, different=len(chosen)
        )
        others = tuple(e for e in found.evaluations if e.sigma != sigma)
        found = replace(found, evaluations=(*others, evaluate_pass(of_chosen, found.joint)))
        noise = replace(perturbation.noise, draws=draws)
        request = replace(request, perturbation=replace(perturbation, noise=noise))
    else:
        warn_user(
            f"choosing {perturbation.size} of {pool} members does not help: the mean log-likelihood of items held out "
            f"from the choice changes by {gain:.2g}, so the first {perturbation.size} draws remain."
        )
    return request, replace(found, passes=(found.passes or 0.0) + pool, pool_gain=gain)


def choose_members(rows: Tensor, labels: Tensor, size: int) -> tuple[int, ...]:
    """The numbers of `size` members, in the order of choice, from log-probabilities [pool, N, K] and labels [N].

    Not worse on these items than the first members: T is that of their average while members are chosen, and of the
    two ensembles, each with its best T, the better one is returned.
    """
    temperature = _best_temperature(ensemble_log_likelihoods(rows[:size]), labels)
    chosen: list[int] = []
    total = torch.full_like(rows[0], -math.inf)
    for _ in range(size):
        values = [_log_likelihood(torch.logaddexp(total, row), labels, temperature) for row in rows]
        chosen.append(values.index(max(values)))
        total = torch.logaddexp(total, rows[chosen[-1]])
    everywhere = torch.ones_like(labels, dtype=torch.bool)
    return tuple(max(range(size), chosen, key=lambda members: _value(rows, labels, members, everywhere, everywhere)))


def cross_fitted_gain(rows: Tensor, labels: Tensor, size: int, examples: Tensor) -> float:
    """The mean gain in log-likelihood of chosen members over the first ones, on items without a part in the choice.

    `examples`, [N], are the examples of the items: those of one example stay in one half.
    """
    order = torch.randperm(int(examples.max()) + 1, generator=torch.Generator().manual_seed(0))
    half = (order % 2 == 0)[examples.cpu()].to(labels.device)
    gain = 0.0
    for here, there in ((half, ~half), (~half, half)):
        if bool(here.any()) and bool(there.any()):
            gain += _value(rows, labels, choose_members(rows[:, here], labels[here], size), here, there)
            gain -= _value(rows, labels, range(size), here, there)
    return gain / len(labels)


def _value(rows: Tensor, labels: Tensor, members: Iterable[int], here: Tensor, there: Tensor) -> float:
    """The log-likelihood of these members on the items `there`, with the T that is best on those `here`."""
    averaged = ensemble_log_likelihoods(rows[list(members)])
    return _log_likelihood(averaged[there], labels[there], _best_temperature(averaged[here], labels[here]))


def _best_temperature(averaged: Tensor, labels: Tensor) -> float:
    """1 if the rows are ln L_i alone, [N, 1], and no T is fitted."""
    return 1.0 if averaged.shape[1] == 1 else best_temperature(averaged, labels)[0]


def _log_likelihood(averaged: Tensor, labels: Tensor, temperature: float) -> float:
    return float(temper(averaged, temperature).gather(1, labels[:, None]).double().sum())
