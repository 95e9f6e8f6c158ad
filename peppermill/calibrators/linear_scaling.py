"""Vector and matrix scaling: temperature scaling, then a correction for each class, shrunk towards none.

The new log-probabilities are u + w x + b, normalised: u are the tempered ones, and x is u without minus infinity. w is
a vector, one scale for each class, or a matrix, in which each class also looks at the others. A ridge holds w and b
near 0, which is temperature scaling; cross-fitting chooses its strength. The penalised log-likelihood is concave in w
and b. After Berta et al. (2026), "Structured matrix scaling for multi-class calibration".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from peppermill.calibrators.temperature import CHUNK_NUMBERS, best_temperature
from peppermill.likelihood import temper
from peppermill.plumbing.progress import progress

FLOOR = -87.0  # of x: about the logarithm of the smallest float32
STRENGTHS = (math.inf, 300.0, 30.0, 3.0, 0.3)  # of the ridge; the first one is temperature scaling
FOLDS, MAX_CHOICE_ITEMS = 5, 10_000  # to choose the strength
TOLERANCE, ROUGH_TOLERANCE = 1e-9, 1e-5  # of the penalised log-likelihood; rough while strengths are compared
GRADIENT_TOLERANCE = 1e-5  # with variables in standard errors


@dataclass(frozen=True, eq=False)
class LinearScaling:
    """A correction of temperature scaling: vector scaling if w is [K], matrix scaling if it is [K, K]."""

    temperature: float
    weight: Tensor
    bias: Tensor

    @property
    def name(self) -> str:
        return "vector" if self.weight.ndim == 1 else "matrix"

    def __call__(self, log_probs: Tensor) -> Tensor:
        columns = self.weight.reshape(len(self.bias), -1), self.bias[:, None]
        return corrected(temper(log_probs, self.temperature), torch.cat(columns, dim=1))

    def arrays(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "bias": self.bias}


def vector_scaling(log_probs: Tensor, labels: Tensor, examples: Tensor) -> LinearScaling:
    """Vector scaling of log-probabilities [N, K]; `examples`, [N], are the numbers of the items' examples."""
    temperature, u, labels, examples = tempered_items(log_probs, labels, examples)
    path = choose_path(u, labels, examples, [torch.full((log_probs.shape[1], 2), strength) for strength in STRENGTHS])
    return follow_path(temperature, u, labels, path)


def matrix_scaling(log_probs: Tensor, labels: Tensor, examples: Tensor) -> LinearScaling:
    """Matrix scaling of log-probabilities [N, K]: first the strength for diagonal and bias, then that for the rest.

    Each of the K - 1 other entries of a row is held K - 1 times as strongly as the diagonal would be.
    """
    temperature, u, labels, examples = tempered_items(log_probs, labels, examples)
    classes = log_probs.shape[1]
    own = torch.eye(classes, classes + 1).bool() | (torch.arange(classes + 1) == classes)
    path = choose_path(u, labels, examples, [torch.where(own, strength, math.inf) for strength in STRENGTHS])
    first = torch.where(own, path[-1].clamp(max=STRENGTHS[1]), math.inf)
    rest = [torch.where(own, first, (classes - 1) * strength) for strength in STRENGTHS[1:-1]]
    return follow_path(temperature, u, labels, [*path[:-1], *choose_path(u, labels, examples, [path[-1], *rest])])


def corrected(u: Tensor, correction: Tensor) -> Tensor:
    """The normalised u + w x + b; the correction holds w and b. A class with neither keeps its probability."""
    kept, moved = (correction == 0).all(dim=1), u + _product(u.clamp(min=FLOOR), correction.to(u))
    before, after = (one.masked_fill(kept, -math.inf).logsumexp(dim=-1, keepdim=True) for one in (u, moved))
    return torch.where(kept, u, moved + (before - after).nan_to_num()).log_softmax(dim=-1)


def tempered_items(log_probs: Tensor, labels: Tensor, examples: Tensor) -> tuple[float, Tensor, Tensor, Tensor]:
    """T, and u, labels and examples of the items to fit on; a label of probability 0 teaches nothing.

    u is normalised over the classes that occur, so that an absent label is not taken as evidence against its class.
    """
    temperature, _ = best_temperature(log_probs, labels)
    u, labels = temper(log_probs.double(), temperature).cpu(), labels.cpu()
    possible = u.gather(1, labels[:, None])[:, 0] > -math.inf
    u, labels = u[possible], labels[possible]
    absent = labels.bincount(minlength=u.shape[1]) == 0
    return temperature, u.masked_fill(absent, -math.inf).log_softmax(dim=1), labels, examples.cpu()[possible]


def choose_path(u: Tensor, labels: Tensor, examples: Tensor, penalties: Sequence[Tensor]) -> Sequence[Tensor]:
    """The penalties, strongest first, up to the first one within one standard error of the best in cross-fitting.

    All items of an example are in one fold, and the error is over examples.
    """
    order = np.random.RandomState(0).permutation(len(labels))[:MAX_CHOICE_ITEMS]
    _, first, example = np.unique(examples.numpy()[order], return_index=True, return_inverse=True)
    place = torch.from_numpy(first.argsort().argsort()[example])  # of the example, in the order drawn
    fold = place // max(1, math.ceil(len(first) / FOLDS))
    u, labels = u[order].float(), labels[order]  # twice as fast, and accurate enough to compare
    insides = [fold == k for k in range(min(FOLDS, len(first)))]
    found: list[Tensor | None] = [None] * FOLDS
    scores: list[Tensor] = []  # ln p of the labels by a correction that was fitted on the other folds
    with progress("choosing the shrinkage", len(penalties) * len(insides)) as tick:
        for penalty in penalties:
            score = torch.zeros(len(order), dtype=torch.float64)
            for k, inside in enumerate(insides):
                found[k] = fitted = fit_correction(u[~inside], labels[~inside], penalty, found[k])
                moved = u[inside] + _product(u[inside].clamp(min=FLOOR), fitted.to(u))  # absent classes stay at -inf
                score[inside] = moved.log_softmax(dim=1).gather(1, labels[inside, None])[:, 0].double()
                tick(1)
            scores.append(score)
            if score.sum() < max(score.sum() for score in scores):
                break  # weaker ones will not be better
    leads = [max(scores, key=lambda score: float(score.sum())) - score for score in scores]
    sums = [torch.zeros(len(first)).double().index_add_(0, place, lead - lead.mean()) for lead in leads]
    near = [not lead.sum() > of_examples.square().sum().sqrt() for lead, of_examples in zip(leads, sums, strict=True)]
    return penalties[: near.index(True) + 1]


def follow_path(temperature: float, u: Tensor, labels: Tensor, penalties: Sequence[Tensor]) -> LinearScaling:
    """The calibrator under the last penalty, in float32; each penalty starts where the one before it ended."""
    found = torch.zeros_like(penalties[0])
    for penalty in penalties:
        found = fit_correction(u, labels, penalty, found, TOLERANCE if penalty is penalties[-1] else ROUGH_TOLERANCE)
    return LinearScaling(temperature, found[:, :-1].squeeze(1).float(), found[:, -1].float())


def fit_correction(
    u: Tensor, labels: Tensor, penalty: Tensor, start: Tensor | None = None, tolerance: float = ROUGH_TOLERANCE
) -> Tensor:
    """The correction of largest penalised log-likelihood; 0 for an infinite penalty, and to and from absent classes.

    This is an exponential family: the gradient is the observed minus the expected sums. L-BFGS sees w and b in units of
    their standard errors and without their correlation, which halves its steps.
    """
    present = labels.bincount(minlength=len(penalty)) > 0
    free = penalty.isfinite() & present[:, None]
    if penalty.shape[1] > 2:  # a matrix: no class looks at one without items
        free[:, :-1] &= present
    ridge = penalty.double().masked_fill(~free, 0.0)
    found = torch.zeros_like(ridge) if start is None else start.masked_fill(~free, 0.0)
    if not bool(free.any()):
        return found
    observed, crossed, curvature = torch.zeros_like(ridge), torch.zeros_like(ridge), 2 * ridge
    for x, p, _, of in _chunks(u, labels, found):
        observed += _sums(torch.nn.functional.one_hot(of, len(ridge)).to(x), x, ridge)
        crossed += _sums(p * (1 - p), x, ridge)
        curvature += _sums(p * (1 - p), x.square(), ridge)
    center = (crossed[:, :-1] / curvature[:, -1:]).nan_to_num()  # b + w center is not correlated with w at the start
    curvature[:, :-1] -= center * crossed[:, :-1]
    scale = curvature[free].rsqrt()

    def correction_of(variables: Any) -> Tensor:
        correction = torch.zeros_like(ridge)
        correction[free] = torch.from_numpy(variables) * scale
        correction[:, -1] -= (correction[:, :-1] * center).sum(dim=1)
        return correction

    def loss(variables: Any) -> tuple[float, Any]:
        correction, expected = correction_of(variables), torch.zeros_like(ridge)
        total = float((ridge * correction.square() - observed * correction).sum())
        for x, p, normalizers, _ in _chunks(u, labels, correction):
            total += float(normalizers.sum())
            expected += _sums(p, x, ridge)
        gradient = expected - observed + 2 * ridge * correction
        gradient[:, :-1] -= gradient[:, -1:] * center
        return total, (gradient[free] * scale).numpy()

    found[:, -1] += (found[:, :-1] * center).sum(dim=1)
    options = {"ftol": tolerance, "gtol": GRADIENT_TOLERANCE, "maxiter": 1000}
    solved = minimize(loss, (found[free] / scale).numpy(), jac=True, method="L-BFGS-B", options=options)
    return correction_of(solved.x)


def _chunks(u: Tensor, labels: Tensor, correction: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """x, corrected probabilities, the logarithms of their normalizers, and labels, of a few items at a time."""
    length = max(1, CHUNK_NUMBERS // len(correction))
    for some, of in zip(torch.split(u, length), torch.split(labels, length), strict=True):
        x = some.clamp(min=FLOOR)
        logits = _product(x, correction.to(some)).add_(some)
        top = logits.amax(dim=1, keepdim=True)
        total = logits.sub_(top).exp_().sum(dim=1, keepdim=True)
        yield x, logits.div_(total), top + total.log(), of


def _product(x: Tensor, correction: Tensor) -> Tensor:
    """w x + b."""
    weight, bias = correction[:, :-1], correction[:, -1]
    return torch.addcmul(bias, x, weight[:, 0]) if weight.shape[1] == 1 else x @ weight.T + bias


def _sums(rows: Tensor, x: Tensor, like: Tensor) -> Tensor:
    """sum_i rows_i x_i and sum_i rows_i, in the shape of a correction."""
    of_x = (rows * x).sum(dim=0)[:, None] if like.shape[1] == 2 else rows.T @ x
    return torch.cat([of_x, rows.sum(dim=0)[:, None]], dim=1)
