"""Abstain: keep the predictions that are sure enough for an error rate that was promised, and no others."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from peppermill.calibrators import numbers_of
from peppermill.data import Batches
from peppermill.metrics import top_label
from peppermill.plumbing.files import read_json, write_atomically
from peppermill.plumbing.nested import digest_of, output_tensor
from peppermill.plumbing.networks import as_network
from peppermill.plumbing.warnings import warn_user
from peppermill.predictions import likelihood_of, predict
from peppermill.recipe import Fingerprint, difference, fingerprint
from peppermill.types import Data, Likelihood, LikelihoodLike

KIND = "peppermill abstention"
VERSION = 1
COVERAGES = 20  # thresholds that are tried: those that keep 5 %, 10 %, ..., 100 % of the validation items
NUMBERS = ("threshold", "risk", "confidence", "coverage", "smallest_risk")  # that a file holds


@dataclass(frozen=True)
class Abstention:
    """A predictor that abstains if it is not confident enough: `labels, kept = rule(x)`.

    Items with a confidence above `threshold` have an error rate of at most `risk`, with this `confidence`. `coverage`
    is the fraction of validation items that is kept; 0 if no threshold reaches the risk, and then nothing is ever kept.
    `smallest_risk` is the smallest that can be promised at all.
    """

    predictor: Any
    likelihood: Likelihood
    threshold: float
    risk: float
    confidence: float
    coverage: float
    smallest_risk: float

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The predicted class of each item, and whether it is kept."""
        predictions = self.likelihood.predict(output_tensor(self.predictor(*args, **kwargs)))
        log_confidence, labels = predictions.double().max(dim=-1)
        return labels, log_confidence.exp() > self.threshold

    def save(self, path: str | Path) -> None:
        """Write the threshold and what it promises as JSON, with the fingerprint of the network."""
        content = {"format": KIND, "version": VERSION, **{name: getattr(self, name) for name in NUMBERS}}
        content |= {"predictor": settings_of(self.predictor), "fingerprint": vars(fingerprint(self.predictor))}
        write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def abstain(
    predictor: Any,
    validation: Data | Batches,
    *,
    risk: float = 0.01,
    confidence: float = 0.95,
    likelihood: LikelihoodLike | None = None,
) -> Abstention:
    """The rule that keeps most items while the error rate of those kept is at most `risk`, with this `confidence`.

    The validation items must be like those to come, and nothing, not even sigma, may have been tuned on them. An exact
    binomial test of "more errors than `risk`" at each of 20 thresholds, the highest first, has a twentieth of the
    allowed chance of a mistake, and hands it on to the next if it passes: Learn then Test (Angelopoulos et al., 2021)
    with the fallback procedure (Wiens and Dmitrienko, 2005). This holds if the error rate does not rise with the
    confidence. If no test passes, a warning says what could be promised.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"`{name}={value}` must lie between 0 and 1, as in `risk=0.01, confidence=0.95`.")
    from scipy import stats  # slow to import, so not at the top

    predictor = as_network(predictor)
    chosen = likelihood_of(predictor, likelihood)
    if chosen.name == "gaussian":
        raise ValueError("`abstain` promises an error rate, and a regression has no classes that are right or wrong.")
    found = predict(predictor, validation, likelihood=chosen, argument="validation")
    items = len(found.labels)
    if found.examples is not None and int(found.examples.max()) + 1 < items:
        raise ValueError(
            "several items (pixels, tokens, questions) belong to one example and err together, so that no bound on "
            "their error rate holds: `abstain` needs one label for each example."
        )
    sure, correct = (values.cpu().numpy() for values in top_label(found.log_probs, found.labels))
    falling, share, level = np.sort(sure)[::-1], (1 - confidence) / COVERAGES, 0.0
    best, smallest = (0, 1.0), 1.0
    for k in (math.ceil(items * step / COVERAGES) for step in range(1, COVERAGES + 1)):
        # Given the (k+1)-th largest confidence, the items above it are independent draws of all items above it.
        threshold = float(falling[k]) if k < items else 0.0
        kept = int((sure > threshold).sum())
        errors = kept - int(correct[sure > threshold].sum())
        if errors < kept:
            smallest = min(smallest, float(stats.beta.ppf(1 - share, errors + 1, kept - errors)))
        level = level + share if stats.binom.cdf(errors, kept, risk) <= level + share else 0.0
        best = (kept, threshold) if level else best
    kept, threshold = best
    if not kept:
        warn_user(
            f"no threshold keeps the error rate below {risk:g} with {100 * confidence:g} % confidence on {items:,} "
            f"items, so the rule keeps nothing: the smallest risk that can be promised is "
            f"{math.ceil(1000 * smallest) / 1000:g}. Use more items, or a larger risk."
        )
    return Abstention(predictor, chosen, threshold, risk, confidence, kept / items, smallest)


def load_abstention(path: str | Path, predictor: Any, *, likelihood: LikelihoodLike | None = None) -> Abstention:
    """The rule that `save` wrote, for the predictor for which it was found; any other is refused."""
    content, predictor = read_json(path, KIND, VERSION), as_network(predictor)
    numbers: list[Any] = [content.get(name) for name in NUMBERS]
    if not all(isinstance(number, (int, float)) and 0 <= number <= 1 for number in numbers):
        raise ValueError(f"{path} is damaged: find the rule again with `pm.abstain`, and save it.")
    changed = difference(Fingerprint(**content["fingerprint"]), fingerprint(predictor))
    if not changed and content["predictor"] != (own := settings_of(predictor)):
        changed = f"it is {own}, the saved one {content['predictor']}"
    if changed:
        kind = type(predictor).__name__
        raise ValueError(f"{path} holds a rule for another predictor: this {kind} differs, {changed}.")
    return Abstention(predictor, likelihood_of(predictor, likelihood), *numbers)


def settings_of(predictor: Any) -> str:
    """What a predictor does beside its weights, in one line."""
    if not isinstance(predictor, nn.Module):
        name = type(predictor).__name__
        raise TypeError(f"a rule for a {name} has no file: only a torch.nn.Module is recognised, by its weights.")
    calibrator = getattr(predictor, "calibrator", None)
    fitted = f" {numbers_of(calibrator)} {digest_of(list(calibrator.arrays().values()))}" if calibrator else ""
    return f"{type(predictor).__name__}({predictor.extra_repr()}){fitted}"
