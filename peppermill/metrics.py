"""Appendix B as pure functions of log-probabilities [N, K] and labels [N], and SCORES: one row per score.

Smaller is better unless the docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from peppermill.uncertainty import entropy_of

if TYPE_CHECKING:
    from peppermill.predictions import Predictions

BINS, MAX_BINS = 20, 1000  # Table 2's choice; a bootstrap keeps all bins of all its samples


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: for each bin (lower, upper], the number of items, their mean confidence and accuracy.

    Confidence and accuracy of an empty bin are NaN.
    """

    lower: Tensor
    upper: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    def gaps(self) -> Tensor:
        """|accuracy - confidence| of each bin; 0 where it is empty."""
        return (self.accuracy - self.confidence).abs().nan_to_num(0.0)

    def calibration_error(self, minimum_count: int = 1) -> float:
        """The mean gap, weighted by items; bins with fewer than `minimum_count` items count as 0."""
        kept = self.count >= minimum_count
        return float((self.gaps() * self.count * kept).sum() / self.count.sum())


def nll(log_probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood: Appendix B, and -L/N of eq. 2."""
    return float(item_nll(log_probs, labels).mean())


def brier_score(log_probs: Tensor, labels: Tensor) -> float:
    """Mean over items of sum_k (y_k - p_k)^2.

    Appendix B also divides by -K; the numbers in its tables do not.
    """
    return float(item_brier(log_probs, labels).mean())


def error_rate(log_probs: Tensor, labels: Tensor) -> float:
    """The fraction of items whose most probable class is not the label."""
    return float(item_errors(log_probs, labels).mean())


def top_k_error(log_probs: Tensor, labels: Tensor, k: int = 5) -> float:
    """The fraction of items whose label is not among the k most probable classes."""
    _check(log_probs, labels)
    if not 1 <= k <= log_probs.shape[1]:
        raise ValueError(f"`k={k}` must lie in 1..{log_probs.shape[1]}, the number of classes.")
    return float((log_probs.topk(k, dim=1).indices != labels[:, None]).all(dim=1).double().mean())


def expected_calibration_error(
    log_probs: Tensor, labels: Tensor, bins: int = BINS, *, equal_mass: bool = False, minimum_count: int = 1
) -> float:
    """ECE of Appendix B: mean |accuracy - confidence| over bins, weighted by their items.

    Bins with fewer than `minimum_count` items are left out; the paper's Table 1 has 10 bins of at least 21 items, its
    Table 2 has 20 bins.
    """
    return reliability(log_probs, labels, bins, equal_mass=equal_mass).calibration_error(minimum_count)


def maximum_calibration_error(log_probs: Tensor, labels: Tensor, bins: int = BINS, *, minimum_count: int = 1) -> float:
    """MCE: the largest |accuracy - confidence| of a bin."""
    table = reliability(log_probs, labels, bins)
    return float((table.gaps() * (table.count >= minimum_count)).max())


def classwise_calibration_error(log_probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """The mean over classes of the ECE of "is it this class?", with the class's own probability as confidence."""
    _check(log_probs, labels)
    probabilities = log_probs.double().exp()
    tables = (
        reliability_table(probabilities[:, k], labels == k, equal_width_edges(bins, labels.device))
        for k in range(log_probs.shape[1])
    )
    return float(np.mean([table.calibration_error() for table in tables]))


def reliability(log_probs: Tensor, labels: Tensor, bins: int = BINS, *, equal_mass: bool = False) -> Reliability:
    """The reliability table of the most probable class, in bins (lower, upper] of equal width or of equal mass."""
    confidence, correct = top_label(log_probs, labels)
    edges = equal_width_edges(bins, labels.device)
    if equal_mass:  # equal confidences share a bin
        inner = np.quantile(confidence.cpu().numpy(), np.arange(1, bins) / bins, method="inverted_cdf")
        edges = torch.as_tensor(np.concatenate([[0.0], np.unique(inner), [1.0]]), device=confidence.device)
    return reliability_table(confidence, correct, edges)


def reliability_table(confidence: Tensor, correct: Tensor, edges: Tensor) -> Reliability:
    """The reliability table of confidences [N] and outcomes [N] between ascending edges [bins + 1]."""
    index = bin_index(confidence, edges)
    count, sums, hits = (
        torch.zeros(len(edges) - 1, dtype=torch.float64, device=edges.device).index_add_(0, index, values.double())
        for values in (torch.ones_like(confidence), confidence, correct)
    )
    return Reliability(edges[:-1], edges[1:], count.long(), sums / count, hits / count)


def bin_index(confidence: Tensor, edges: Tensor) -> Tensor:
    """The number of the bin (lower, upper] of each confidence; a confidence of 0 falls into the first."""
    return torch.bucketize(confidence.contiguous(), edges[1:-1].contiguous())


def equal_width_edges(bins: int, device: torch.device) -> Tensor:
    """0, 1/bins, ..., 1: divided, not added up, so that 7/10 is the very number 0.7."""
    if not 1 <= bins <= MAX_BINS:
        raise ValueError(f"`bins={bins}` must lie in 1..{MAX_BINS:,}.")
    return torch.arange(bins + 1, dtype=torch.float64, device=device) / bins


def top_label(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of the most probable class, and whether that class is the label."""
    _check(log_probs, labels)
    confidence, predicted = log_probs.double().max(dim=1)
    return confidence.exp().clamp(max=1.0), predicted == labels


def entropy(log_probs: Tensor) -> Tensor:
    """The entropy of each prediction in nats, [N]."""
    return entropy_of(log_probs.double(), log_probs.double().exp())


def symmetrized_kl(first: Tensor, second: Tensor, bins: int = 50) -> float:
    """KL(p||q) + KL(q||p) of two samples' histograms over their common range; larger means easier to tell apart.

    Each bin counts half an item more than it has, so that an empty bin costs a finite amount.
    """
    both = torch.cat([first, second]).double()
    low, high = float(both.min()), float(both.max())
    counts = [torch.histc(sample.double(), bins, low, high) + 0.5 for sample in (first, second)]
    p, q = (count / count.sum() for count in counts)
    return float(((p - q) * (p / q).log()).sum())


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The probability that an outside item scores higher than an inside item, ties counted half; larger is better."""
    scores = torch.cat([inside, outside]).double().cpu().numpy()
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    above = ranks[len(inside) :].sum() - len(outside) * (len(outside) + 1) / 2
    return float(above / (len(inside) * len(outside)))


def false_positive_rate(inside: Tensor, outside: Tensor, recall: float = 0.95) -> float:
    """FPR95: the fraction of inside items above the threshold that catches at least 95 % of the outside items."""
    ordered = outside.double().sort(descending=True).values
    caught = int(np.ceil(recall * len(ordered) - 1e-9))
    return float((inside.double() >= ordered[caught - 1]).double().mean())


fpr_at_95 = false_positive_rate  # its usual name, at its usual recall


def risk_coverage_curve(log_probs: Tensor, labels: Tensor, confidence: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Coverages k/N and risks, [N] each: the error rate of the k items of largest confidence, for k = 1..N.

    The confidence is the largest probability, or what is given: `-uncertainty.mutual_information`, say. Items of equal
    confidence come in random order, so each counts with the error rate of all of them.
    """
    errors, order = _errors_by_confidence(log_probs, labels, confidence)
    counts = torch.arange(1, len(labels) + 1, dtype=torch.float64, device=labels.device)
    return counts / len(labels), errors[order].cumsum(0) / counts


def aurc(log_probs: Tensor, labels: Tensor, confidence: Tensor | None = None) -> float:
    """The area under the risk-coverage curve (Geifman and El-Yaniv, 2017): the mean risk over all coverages."""
    return float(risk_coverage_curve(log_probs, labels, confidence)[1].mean())


def excess_aurc(log_probs: Tensor, labels: Tensor, confidence: Tensor | None = None) -> float:
    """AURC minus that of a confidence that ranks every error last; 0 is perfect (Geifman et al., 2019)."""
    wrong = item_errors(log_probs, labels)
    return aurc(log_probs, labels, confidence) - aurc(log_probs, labels, -wrong)


def item_aurc(log_probs: Tensor, labels: Tensor) -> Tensor:
    """AURC as a mean over items: sum_{k >= r} 1/k for an error at rank r, [N]; the ranks are those of all items."""
    errors, order = _errors_by_confidence(log_probs, labels, None)
    shares = 1 / torch.arange(1, len(labels) + 1, dtype=torch.float64, device=labels.device)
    weights = torch.zeros_like(shares).index_put_((order,), shares.flip(0).cumsum(0).flip(0))
    return errors * weights


def _errors_by_confidence(log_probs: Tensor, labels: Tensor, confidence: Tensor | None) -> tuple[Tensor, Tensor]:
    """The expected error of each item, equal for equal confidences, and the order of falling confidence."""
    errors = item_errors(log_probs, labels)
    confidence = log_probs.double().amax(dim=1) if confidence is None else confidence
    if confidence.shape != labels.shape:
        raise ValueError(f"`confidence` of shape {list(confidence.shape)} must be [{len(labels)}], one for each item.")
    _, group, counts = torch.unique(confidence, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), dtype=torch.float64, device=labels.device).index_add_(0, group, errors)
    return (sums / counts)[group], confidence.argsort(descending=True, stable=True)


def item_nll(log_probs: Tensor, labels: Tensor) -> Tensor:
    """-ln L_i of each item, [N]."""
    _check(log_probs, labels)
    return -log_probs.double().gather(1, labels.long()[:, None]).squeeze(1)


def item_brier(log_probs: Tensor, labels: Tensor) -> Tensor:
    """sum_k (y_k - p_k)^2 of each item, [N]."""
    _check(log_probs, labels)
    probabilities = log_probs.double().exp()
    of_label = probabilities.gather(1, labels.long()[:, None]).squeeze(1)
    return probabilities.square().sum(dim=1) + 1 - 2 * of_label


def item_errors(log_probs: Tensor, labels: Tensor) -> Tensor:
    """1 where the most probable class is not the label, [N]."""
    _check(log_probs, labels)
    return (log_probs.argmax(dim=1) != labels).double()


def item_gaps(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Confidence minus correctness of each item, [N]: ECE = sum_b |mean_i gap_i [i is in bin b]|."""
    confidence, correct = top_label(log_probs, labels)
    return confidence - correct.double()


def item_bins(log_probs: Tensor, labels: Tensor, bins: int) -> Tensor:
    """The number of the bin of each item's confidence, [N]."""
    return bin_index(top_label(log_probs, labels)[0], equal_width_edges(bins, labels.device))


def _check(log_probs: Tensor, labels: Tensor) -> None:
    if log_probs.ndim != 2 or labels.shape != log_probs.shape[:1] or not len(labels):
        raise ValueError(
            f"`log_probs` of shape {list(log_probs.shape)} and `labels` of shape {list(labels.shape)} do not fit: "
            "expected [N, K] and [N], with N at least 1."
        )


@dataclass(frozen=True)
class Score:
    """One row of SCORES: what evaluation, tables and report need to know about a score.

    `terms` gives [N] or [N, d] from predictions and the number of bins; the score is their mean over items, or
    `combine` of that mean. With `cells`, the bin of each item, the mean is one of [N, bins]: the term of an item in the
    column of its bin, and 0 in the others. A `percent` is shown with two decimals fewer. `binary` terms are 0 or 1. A
    `headline` score is part of the verdict's sentence.
    """

    name: str
    title: str
    words: str
    terms: Callable[[Predictions, int], Tensor]
    combine: Callable[[np.ndarray], np.ndarray] | None = None
    tasks: tuple[str, ...] = ("classification",)
    percent: bool = False
    decimals: int = 4
    lower_is_better: bool = True
    binary: bool = False
    headline: bool = True
    cells: Callable[[Predictions, int], Tensor] | None = None


def of_classes(per_item: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Predictions, int], Tensor]:
    """The terms of a score of log-probabilities and labels that needs no bins."""
    return lambda predictions, _: per_item(predictions.log_probs, predictions.labels)


#: Every score by name. A new one is a row here, and appears in every table, sweep and report.
SCORES = {
    "nll": Score("nll", "NLL", "log-loss", lambda p, _: -p.log_likelihoods, tasks=("classification", "regression")),
    "brier": Score("brier", "Brier", "Brier score", of_classes(item_brier), headline=False),
    "ece": Score(
        "ece",
        "ECE",
        "calibration error",
        of_classes(item_gaps),
        combine=lambda gaps: np.abs(gaps).sum(axis=-1),
        cells=lambda p, bins: item_bins(p.log_probs, p.labels, bins),
        percent=True,
    ),
    "error": Score("error", "error", "mistakes", of_classes(item_errors), percent=True, binary=True),
    "aurc": Score("aurc", "AURC", "mistakes when abstaining", of_classes(item_aurc), percent=True, headline=False),
    "rmse": Score(
        "rmse", "RMSE", "typical error", lambda p, _: (p.labels - p.log_probs[:, 0]).square(), np.sqrt, ("regression",)
    ),
}
