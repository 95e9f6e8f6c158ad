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
from peppermill.evaluation.bootstrap import interval, resample, sum_by_example
from peppermill.evaluation.scores import Estimate
from peppermill.likelihood import ensemble_log_likelihoods, first_items
from peppermill.passes import MemberPass
from peppermill.plumbing.display import Table, shows_table
from peppermill.plumbing.nested import as_arguments
from peppermill.plumbing.progress import progress
from peppermill.types import Data, Inputs, Tick

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
        if few == most:
            return f"no fewer than {most} members will do: fewer may lose more than {loss:g} of the NLL"
        return f"{few} of {most} members would do: they lose at most {loss:g} of the NLL"

    def table(self) -> Table:
        """The NLL of each number of members, and what it loses against all of them."""
        rows = [
            (f"{size}", *(f"{e.value:.4f} [{e.lower:.4f}, {e.upper:.4f}]" for e in pair))
            for size, *pair in zip(self.sizes, self.nll, self.loss, strict=True)
        ]
        return Table(("members", "NLL", f"lost against {self.sizes[-1]}"), rows, f"{self.items:,} items", self.enough())


def size_curve(
    pep: PepEnsemble, data: Data | Batches, *, sizes: Sequence[int] | None = None, level: float = 0.95, seed: int = 0
) -> SizeCurve:
    """NLL against the number of members, at the cost of one prediction of the ensemble.

    The default `sizes` are 1 to m, or a dozen of these; m itself is always included. Intervals are bootstrapped over
    examples, with `seed`.
    """
    batches = data if isinstance(data, Batches) else Batches(data, pep.model)
    if pep.calibrator == UNCALIBRATED:
        return size_curve_of(pep, pep.member_pass(batches), sizes=sizes, level=level, seed=seed)
    subsets = _subsets_by_size(pep, sizes)
    with torch.no_grad(), progress(f"{pep.size} members at sigma = {pep.sigma:.4g}") as tick:
        parts = [_calibrated(pep, inputs, labels, subsets, tick) for inputs, labels in batches]
    examples = torch.cat([first_items(pep.likelihood, labels) for _, labels in batches]).cumsum(0) - 1
    return _curve(list(subsets), torch.cat(parts, dim=1), examples, level, seed)


def size_curve_of(
    pep: PepEnsemble, members: MemberPass, *, sizes: Sequence[int] | None = None, level: float = 0.95, seed: int = 0
) -> SizeCurve:
    """The curve of an ensemble without a calibrator, from a pass of its members."""
    if pep.calibrator != UNCALIBRATED:
        raise ValueError("a calibrator needs every class, not the label's alone: use `size_curve`.")
    subsets = _subsets_by_size(pep, sizes)
    averages = _averages(members.member_log_likelihoods, subsets, lambda averaged: averaged)
    return _curve(list(subsets), averages, members.examples, level, seed)


def _calibrated(
    pep: PepEnsemble, inputs: Inputs, labels: Tensor, subsets: Mapping[int, list[Subset]], tick: Tick
) -> Tensor:
    """Log-likelihoods of the calibrated ensembles of each size, [sizes, n], for one batch."""
    args, kwargs = as_arguments(inputs)
    found = pep.member_predictions(*args, **kwargs)
    items = [pep.likelihood.items(prediction.double(), labels) for prediction in found]
    tick(len(labels) * len(found))
    members, counted = torch.stack([item[0] for item in items]), items[0][1]

    def read(averaged: Tensor) -> Tensor:
        return pep.likelihood.log_likelihoods(pep.calibrator(averaged), counted)

    return _averages(members, subsets, read)


def _averages(values: Tensor, subsets: Mapping[int, list[Subset]], read: Callable[[Tensor], Tensor]) -> Tensor:
    """The items' log-likelihoods, averaged over the subsets of each size, [sizes, n], from values [m, n, ...]."""
    rows = []
    for chosen in subsets.values():
        found = (read(ensemble_log_likelihoods(values[list(subset)])) for subset in chosen)
        rows.append(sum(found, start=torch.zeros(values.shape[1], device=values.device)) / len(chosen))
    return torch.stack(rows)


def _curve(sizes: list[int], log_likelihoods: Tensor, examples: Tensor | None, level: float, seed: int) -> SizeCurve:
    nll = -log_likelihoods.double()
    broken = int((~nll.isfinite()).any(dim=0).sum())
    if broken:
        raise ValueError(
            f"the NLL of {broken:,} of {nll.shape[1]:,} items is not finite: check the weights and the data."
        )
    values = {f"{size}": row for size, row in zip(sizes, nll, strict=True)}
    values |= {f"{size} against all": row - nll[-1] for size, row in zip(sizes, nll, strict=True)}
    rows = {name: sum_by_example(row, examples) for name, row in values.items()}
    count = len(rows[f"{sizes[0]}"].counts)
    resampled = resample({name: row.mean for name, row in rows.items()}, count, seed)
    means = {name: float(row.mean()) for name, row in rows.items()}
    estimates = [Estimate(mean, *interval(mean, resampled[name], level, count)) for name, mean in means.items()]
    return SizeCurve(tuple(sizes), tuple(estimates[: len(sizes)]), tuple(estimates[len(sizes) :]), nll.shape[1], level)


def _subsets_by_size(pep: PepEnsemble, sizes: Sequence[int] | None) -> dict[int, list[Subset]]:
    """Subsets of the members by their size, ascending to all m."""
    dozen = np.geomspace(1, pep.size, 12).round().astype(int).tolist() if pep.size > 12 else range(1, pep.size)
    wanted = sorted({*(dozen if sizes is None else sizes), pep.size})
    if wanted[0] < 1 or wanted[-1] > pep.size:
        raise ValueError(f"`sizes={list(sizes or ())}` must lie in 1..{pep.size}, the members that the ensemble has.")
    noise = pep.recipe.noise
    paired = noise.antithetic and not noise.draws and pep.size > 1
    return {size: _subsets(size, pep.size, 2 if paired else 1) for size in wanted}


def _subsets(size: int, members: int, width: int) -> list[Subset]:
    """Subsets of whole blocks of `width` members, and of one more member if the size is not a multiple of `width`."""
    blocks = [tuple(range(first, first + width)) for first in range(0, members - width + 1, width)]
    count, single = divmod(size, width)
    if comb(len(blocks), count) * (members - count * width if single else 1) <= SUBSETS:
        every = [tuple(chain(*chosen)) for chosen in combinations(blocks, count)]
        return [(*subset, *more) for subset in every for more in _more(subset, members, single)]
    generator = np.random.default_rng([size, members])
    orders = [generator.permutation(len(blocks))[:count] for _ in range(SUBSETS)]
    subsets = [tuple(chain(*(blocks[k] for k in order))) for order in orders]
    return [(*subset, *generator.choice(_more(subset, members, single)).tolist()) for subset in subsets]


def _more(subset: Subset, members: int, single: int) -> list[Subset]:
    """What completes a subset: nothing, or any one of the other members."""
    return [(member,) for member in range(members) if member not in subset] if single else [()]
