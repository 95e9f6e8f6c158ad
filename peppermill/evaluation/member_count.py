"""NLL against the number of members, from one pass of the m members of an ensemble.

The NLL of k of the m members, averaged over subsets, is an unbiased estimate of the NLL of k new members.
Antithetic pairs +epsilon, -epsilon stay together, as they do in an ensemble of k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import comb

import numpy as np
import torch
from torch import Tensor

from peppermill.calibrators import UNCALIBRATED
from peppermill.data import Batches
from peppermill.ensemble import PepEnsemble
from peppermill.evaluation.scores import Estimate, estimate, sum_by_example
from peppermill.likelihood import ensemble_log_likelihoods, first_items
from peppermill.passes import MemberPass
from peppermill.plumbing.display import Table, shows_table
from peppermill.plumbing.nested import as_arguments
from peppermill.plumbing.progress import progress
from peppermill.types import Data

SUBSETS = 64  # of each size at most

#: Numbers of members.
Subset = tuple[int, ...]


@shows_table
@dataclass(frozen=True)
class SizeCurve:
    """For each size k: the NLL of k members, and its loss against all m as a paired difference."""

    sizes: tuple[int, ...]
    nll: tuple[Estimate, ...]
    loss: tuple[Estimate, ...]
    items: int
    level: float
    method: str = "PEP"

    def smallest(self, loss: float = 0.001) -> int:
        """The fewest members that lose at most `loss` of NLL against all m, even at the upper end of the interval."""
        if not loss >= 0:
            raise ValueError(f"`loss={loss}` must be a loss of NLL, zero or positive.")
        return next(size for size, lost in zip(self.sizes, self.loss, strict=True) if lost.upper <= loss)

    def enough(self, loss: float = 0.001) -> str:
        """The same in a sentence."""
        few, most = self.smallest(loss), self.sizes[-1]
        if few == most > 1:
            return f"all {most} members are needed: with fewer, the NLL may rise by more than {loss:g}"
        return f"{few} of {most} members are enough: the NLL rises by at most {loss:g}"

    def table(self) -> Table:
        """The NLL of each number of members, and what it loses against all of them."""
        rows = [
            (f"{size}", *(f"{e.value:.4f} [{e.lower:.4f}, {e.upper:.4f}]" for e in pair))
            for size, *pair in zip(self.sizes, self.nll, self.loss, strict=True)
        ]
        return Table(("members", "NLL", f"lost against {self.sizes[-1]}"), rows, f"{self.items:,} items", self.enough())


def size_curve(
    pep: PepEnsemble,
    data: Data | Batches | MemberPass,
    *,
    sizes: Sequence[int] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> SizeCurve:
    """NLL against the number of members, at the cost of one prediction of the ensemble.

    The default `sizes` are 1 to m, or a dozen of these; m itself is always included. Intervals are bootstrapped over
    examples, with `seed`. `pep.member_pass(data)` takes the place of data if the ensemble has no calibrator.
    """
    dozen = np.geomspace(1, pep.size, 12).round().astype(int).tolist() if pep.size > 12 else range(1, pep.size)
    wanted = sorted({*(dozen if sizes is None else sizes), pep.size})
    if wanted[0] < 1 or wanted[-1] > pep.size:
        raise ValueError(f"`sizes={list(sizes or ())}` must lie in 1..{pep.size}, the members that the ensemble has.")
    noise = pep.recipe.noise
    paired = noise.antithetic and not noise.draws and pep.size > 1
    subsets = {size: _subsets(size, pep.size, 2 if paired else 1) for size in wanted}
    if pep.calibrator == UNCALIBRATED:
        members = data if isinstance(data, MemberPass) else pep.member_pass(data)
        nll, examples = -_averages(members.member_log_likelihoods, subsets, lambda averaged: averaged), members.examples
    elif isinstance(data, MemberPass):
        raise ValueError("a calibrator needs every class, not the label's alone: give `size_curve` the data.")
    else:
        batches = data if isinstance(data, Batches) else Batches(data, pep.model)
        nll = -_calibrated(pep, batches, subsets)
        examples = torch.cat([first_items(pep.likelihood, labels) for _, labels in batches]).cumsum(0) - 1
    if broken := int((~nll.isfinite()).any(dim=0).sum()):
        raise ValueError(
            f"the NLL of {broken:,} of {nll.shape[1]:,} items is not finite: check the weights and the data."
        )
    rows = enumerate([*nll, *(nll - nll[-1])])
    found = tuple(estimate({f"{k}": sum_by_example(row, examples) for k, row in rows}, level, seed).values())
    return SizeCurve(tuple(subsets), found[: len(nll)], found[len(nll) :], nll.shape[1], level)


@torch.no_grad()
def _calibrated(pep: PepEnsemble, batches: Batches, subsets: Mapping[int, list[Subset]]) -> Tensor:
    """Log-likelihoods of the calibrated ensembles of each size, [sizes, N]."""
    parts = []
    with progress(f"{pep.size} members at sigma = {pep.sigma:.4g}") as tick:
        for inputs, labels in batches:
            args, kwargs = as_arguments(inputs)
            found = [pep.likelihood.items(p.double(), labels) for p in pep.member_predictions(*args, **kwargs)]

            def read(averaged: Tensor, counted: Tensor = found[0][1]) -> Tensor:
                return pep.likelihood.log_likelihoods(pep.calibrator(averaged), counted)

            parts.append(_averages(torch.stack([member for member, _ in found]), subsets, read))
            tick(len(labels) * len(found))
    return torch.cat(parts, dim=1)


def _averages(values: Tensor, subsets: Mapping[int, list[Subset]], read: Callable[[Tensor], Tensor]) -> Tensor:
    """The items' log-likelihoods, averaged over the subsets of each size, [sizes, n], from values [m, n, ...]."""
    rows = []
    for chosen in subsets.values():
        found = (read(ensemble_log_likelihoods(values[list(subset)])) for subset in chosen)
        rows.append(sum(found, start=torch.zeros(values.shape[1], device=values.device)) / len(chosen))
    return torch.stack(rows)


def _subsets(size: int, members: int, width: int) -> list[Subset]:
    """Subsets of whole blocks of `width` members, and of one more member if the size is not a multiple of `width`."""
    blocks = [tuple(range(first, first + width)) for first in range(0, members - width + 1, width)]
    count, single = divmod(size, width)

    def more(subset: Subset) -> list[Subset]:
        return [(member,) for member in range(members) if member not in subset] if single else [()]

    if comb(len(blocks), count) * (members - count * width if single else 1) <= SUBSETS:
        every = [tuple(chain(*chosen)) for chosen in combinations(blocks, count)]
        return [(*subset, *last) for subset in every for last in more(subset)]
    generator = np.random.default_rng([size, members])
    orders = [generator.permutation(len(blocks))[:count] for _ in range(SUBSETS)]
    subsets = [tuple(chain(*(blocks[k] for k in order))) for order in orders]
    return [(*subset, *generator.choice(more(subset)).tolist()) for subset in subsets]
