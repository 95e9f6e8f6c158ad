"""The predictions of any predictor for every item: what temperatures, scores and comparisons are computed from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from peppermill.data import Batches
from peppermill.likelihood import check_batch, first_items, likelihood_named
from peppermill.plumbing.nested import as_arguments, call_on_copies, output_tensor
from peppermill.plumbing.networks import as_network, explain_shapes, refuse_training_mode
from peppermill.plumbing.progress import progress
from peppermill.types import Data, Likelihood, LikelihoodLike
from peppermill.uncertainty import Uncertainty, without_members


@dataclass(frozen=True)
class Predictions:
    """For N items: normalised log-probabilities [N, K], labels [N], ln L_i [N], and the number of its example, [N].

    An image is the example of all its pixels. Without `examples` every item is one. `uncertainty` is there if it was
    asked for.
    """

    log_probs: Tensor
    labels: Tensor
    log_likelihoods: Tensor
    likelihood: Likelihood
    examples: Tensor | None = None
    uncertainty: Uncertainty | None = None


def predict(
    predictor: Any,
    data: Data | Batches,
    *,
    likelihood: LikelihoodLike | None = None,
    argument: str = "data",
    uncertainty: bool = False,
) -> Predictions:
    """The predictions of a network, a PepEnsemble or any other Predictor; `Predictions` are returned as they are.

    A predictor may have its own method `predict_items`. In a process group each process predicts its share, and every
    process gets the predictions for all items. With `uncertainty`, a PepEnsemble also says how sure its members are of
    each item, and any other predictor gives `confidence` and `entropy`. Messages call the data `argument`.
    """
    if isinstance(predictor, Predictions):
        return predictor
    predictor = as_network(predictor)
    batches = data if isinstance(data, Batches) else Batches(data, predictor, argument=argument)
    if hasattr(predictor, "predict_items"):
        found: Predictions = predictor.predict_items(batches, **({"uncertainty": True} if uncertainty else {}))
    else:
        found = _predict(predictor, batches, likelihood_of(predictor, likelihood))
        if uncertainty:
            found = replace(found, uncertainty=without_members(found.log_probs, found.likelihood))
    broken, items = int(found.log_probs.isnan().any(dim=1).sum()), len(found.log_probs)
    if broken:
        raise ValueError(
            f"the predictions for {broken} of {items} items are NaN: check the network's weights and the data."
        )
    return found


def likelihood_of(predictor: Any, likelihood: str | Likelihood | None, *others: Any) -> Likelihood:
    """The likelihood that was asked for, else the predictor's own, else that of the others, else categorical."""
    known = (getattr(one, "likelihood", None) for one in (predictor, *others))
    return likelihood_named(likelihood or next(filter(None, known), "categorical"))


@torch.no_grad()
def _predict(predictor: Any, batches: Batches, likelihood: Likelihood) -> Predictions:
    refuse_training_mode(predictor)
    parts = []
    small: list[tuple[Tensor, Tensor]] = []
    with progress("predicting", batches.count_items()) as tick, explain_shapes(predictor):
        for inputs, labels in batches.share():
            outputs = output_tensor(call_on_copies(predictor, *as_arguments(inputs)))
            check_batch(likelihood, outputs, labels, small)
            predicted = likelihood.items(likelihood.predict(outputs).double(), labels)
            parts.append((*predicted, first_items(likelihood, labels)))
            tick(len(labels))
    log_probs, labels, firsts = batches.gather(parts, predictor, {"likelihood": likelihood})
    log_likelihoods = likelihood.log_likelihoods(log_probs, labels)
    return Predictions(log_probs, labels, log_likelihoods, likelihood, firsts.cumsum(0) - 1)
