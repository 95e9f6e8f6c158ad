"""The pivot: all members pass over the data once, and everything else is computed from what that leaves behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.data import Batches
from peppermill.engines import Engine, Members
from peppermill.likelihood import (
    average_more,
    check_batch,
    ensemble_log_likelihoods,
    first_items,
    item_places,
    predict_members,
    wide,
)
from peppermill.perturbation import Perturbation
from peppermill.plumbing.nested import as_arguments
from peppermill.plumbing.networks import explain_shapes
from peppermill.types import Batch, Likelihood, Tick
from peppermill.uncertainty import Calibrate, Tally, Uncertainty, named
from peppermill.views import View

#: ln L_i(theta_j) [n, m], the ensemble's prediction [n, K], the labels [n] and `first_items` [n] of one batch, and the
#: uncertainties [n, names] if they are asked for.
BatchResult = tuple[Tensor, ...]

NUMBERS_AT_ONCE = 2**18  # of outputs: members of a small network are read together, which saves calls of torch


@dataclass(frozen=True)
class MemberPass:
    """What one pass of all members over the data leaves behind; in float64, so that the order of sums hardly shows."""

    sigma: float
    member_log_likelihoods: Tensor  # ln L_i(theta_j), [m, N]
    averaged: Tensor  # the ensemble's prediction of eq. 9, [N, K]
    labels: Tensor  # [N]
    examples: Tensor  # the number of each item's example, [N]
    different: int | None = None  # this many rows; at sigma = 0 the others repeat them
    uncertainty: Uncertainty | None = None  # if it was asked for

    @property
    def log_likelihoods(self) -> Tensor:
        """ln (1/m) sum_j L_i(theta_j), [N]."""
        return ensemble_log_likelihoods(self.member_log_likelihoods[: self.different])


@dataclass(frozen=True)
class Request:
    """Which network's members run, over which data, and how."""

    model: nn.Module
    perturbation: Perturbation
    likelihood: Likelihood
    engine: Engine
    data: Batches
    tick: Tick = field(default=lambda items: None)
    keep: bool = False  # whether the same members will run again, so that their weights are worth keeping
    views: tuple[View, ...] = ()
    uncertainty: Calibrate | None = None  # if it is asked for, the calibrator that will be applied after averaging

    def members(self, sigma: float) -> Members:
        noise, size, selected = self.perturbation.noise, self.perturbation.size, tuple(self.perturbation.center)
        return Members(self.model, selected, noise, size, sigma, self.keep, self.views)


@torch.no_grad()
def run_members(request: Request, sigma: float) -> MemberPass:
    """Run all members at this sigma over all the data.

    In a process group each process runs its share of the batches, and every process gets the whole result.
    """
    members = request.members(sigma)
    parts: list[BatchResult] = []
    with explain_shapes(request.model):
        for chunk in request.data.share().chunks():
            parts += _run_chunk(request, members, chunk) if chunk else []
    facts = {"`sigma`": sigma, "`size`": members.size, "`noise`": members.noise}
    facts |= {"`parameters`": list(members.selected), "`views`": [view.name for view in members.views]}
    matrix, averaged, labels, firsts, *rest = request.data.gather(parts, request.model, facts)
    if sigma == 0 and not bool(averaged.isfinite().all()):
        raise ValueError(
            "the network itself, without any noise, gives outputs that are NaN or infinite on these data: check its "
            "weights and the inputs before calibrating it."
        )
    uncertainty, examples = named(rest[0], request.likelihood) if rest else None, firsts.cumsum(0) - 1
    return MemberPass(sigma, members.in_order(matrix.T), averaged, labels, examples, members.count, uncertainty)


def portions(groups: Iterable[Tensor]) -> Iterator[Tensor]:
    """Outputs of members [m, ...] in portions that suit a cache: small groups together, large ones in parts."""
    held: list[Tensor] = []
    for group in groups:
        for some in torch.split(group, max(1, NUMBERS_AT_ONCE // max(1, group[0].numel()))):
            held.append(some)
            if sum(part.numel() for part in held) >= NUMBERS_AT_ONCE:
                yield torch.cat(held) if len(held) > 1 else held[0]  # `cat` of one tensor copies it
                held.clear()
    if held:
        yield torch.cat(held) if len(held) > 1 else held[0]


def _run_chunk(request: Request, members: Members, chunk: list[Batch]) -> list[BatchResult]:
    """Members outside, data inside: the weights of a member are made once for many batches."""
    likelihood = request.likelihood
    rows: list[list[Tensor]] = [[] for _ in chunk]
    averages: list[Any] = [None] * len(chunk)
    counted, places = [torch.zeros(0)] * len(chunk), [torch.zeros(0)] * len(chunk)  # of the items that count
    tallies = [Tally(likelihood) for _ in chunk] if request.uncertainty else []
    small: list[tuple[Tensor, Tensor]] = []
    for group in request.engine.groups(members, *as_arguments(chunk[0][0])):
        for k, (inputs, labels) in enumerate(chunk):
            outputs = group(*as_arguments(inputs))
            if not rows[k] and (members.sigma == 0 or members.keep):  # a search checks its data at sigma = 0
                check_batch(likelihood, outputs[0], labels, small)
            for some in portions([outputs]):
                predictions = predict_members(likelihood, some)
                if not rows[k]:
                    counted[k] = likelihood.items(predictions[0], labels)[1]
                    places[k] = item_places(likelihood, labels)
                items = predictions.flatten(1, -2)
                items = wide(items if len(places[k]) == items.shape[1] else items[:, places[k]])
                averages[k] = average_more(likelihood, averages[k], sum(map(len, rows[k])), items)
                repeated = counted[k].expand(len(items), -1).flatten()
                rows[k].append(likelihood.log_likelihoods(items.flatten(0, 1), repeated).view(len(items), -1))
                if tallies:
                    tallies[k].add(items)
                request.tick(len(items) * len(labels))
        del group  # or the next group's weights would be made while these are alive
    firsts = [first_items(likelihood, labels) for _, labels in chunk]
    columns: list[Iterable[Tensor]] = [[torch.cat(some).T for some in rows], averages, counted, firsts]
    if request.uncertainty:
        columns.append([t.values(averaged, request.uncertainty) for t, averaged in zip(tallies, averages, strict=True)])
    return list(zip(*columns, strict=True))
