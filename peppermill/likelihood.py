"""Eq. 1, 2 and 6: the likelihood L_i(theta) of one item, and L(sigma) of an ensemble; in log space throughout.

An item is anything that has a label: an image, a pixel, a token, one of several yes-or-no questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from peppermill.plumbing.warnings import warn_user
from peppermill.types import Likelihood

MIN_SUSPICIOUS_OUTPUTS = 10  # this many logits hardly lie in 0..1 by chance
MIN_SUSPICIOUS_ROWS = 5  # this many rows of logits hardly sum to 1 by chance


def ensemble_log_likelihoods(member_log_likelihoods: Tensor) -> Tensor:
    """ln (1/m) sum_j L_i(theta_j) of every item, [N], from the matrix [m, N]."""
    return member_log_likelihoods.logsumexp(dim=0) - math.log(len(member_log_likelihoods))


def ensemble_log_likelihood(member_log_likelihoods: Tensor) -> Tensor:
    """L(sigma) = sum_i ln (1/m) sum_j L_i(theta_j) of eq. 6, from the matrix [m, N]."""
    return ensemble_log_likelihoods(member_log_likelihoods).sum()


def item_places(likelihood: Likelihood, labels: Tensor) -> Tensor:
    """Where the items that count stand in the flattened labels of a batch, [N]."""
    places = torch.arange(labels.numel(), device=labels.device).view(*labels.shape, 1)
    return likelihood.items(places, labels)[0].flatten()


def example_rows(likelihood: Likelihood, labels: Tensor) -> Tensor:
    """The row of its batch from which each item that counts comes, [N]: all pixels of an image have the image's row."""
    return item_places(likelihood, labels) // max(1, labels[:1].numel())


def first_items(likelihood: Likelihood, labels: Tensor) -> Tensor:
    """1 for the first item of each example and 0 for its others, [N]; summed up, they number the examples."""
    rows = example_rows(likelihood, labels)
    return (rows.diff(prepend=rows.new_tensor([-1])) > 0).long()


def check_batch(likelihood: Likelihood, outputs: Tensor, labels: Tensor, small: list[tuple[Tensor, Tensor]]) -> None:
    """Check a batch, and a small one also together with those before it: few rows may sum to 1 by chance."""
    likelihood.check(outputs, labels)
    if outputs.ndim < 3 and len(outputs) < MIN_SUSPICIOUS_OUTPUTS > sum(len(known) for _, known in small):
        small.append((outputs, labels))
        likelihood.check(*(torch.cat(column) for column in zip(*small, strict=True)))


def predict_members(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """The predictions of some members from their outputs [m, batch, ...]."""
    predictions = likelihood.predict(outputs.flatten(0, 1))
    return predictions.view(*outputs.shape[:2], *predictions.shape[1:])


def average_more(likelihood: Likelihood, known: Tensor | None, count: int, predictions: Tensor) -> Tensor:
    """Eq. 9 of some more members, [m, ...], together with `count` members whose average is known."""
    if known is None:
        return likelihood.average(predictions)
    return likelihood.average(torch.cat([known[None], predictions]), [count, *[1] * len(predictions)])


def wide(predictions: Tensor) -> Tensor:
    """Predictions in the type in which members are added up: float64 wherever a device has it."""
    return predictions.to(torch.float32 if predictions.device.type == "mps" else torch.float64)


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision as float32: a logarithm of a probability, or a scale, needs more than 8 or 11 bits."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def temper(log_probs: Tensor, temperature: float) -> Tensor:
    """The distribution proportional to p^(1/T), classes in the last dimension; unchanged, bit for bit, if T is 1."""
    return log_probs if temperature == 1 else (log_probs / temperature).log_softmax(dim=-1)


def _log_prob_of_label(predictions: Tensor, labels: Tensor) -> Tensor:
    return predictions.gather(dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)


def _counted_items(self: Categorical | Bernoulli, predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The items whose label is not the ignored one."""
    predictions, labels = predictions.flatten(end_dim=-2), labels.flatten().long()
    counted = labels != self.ignored_label
    return (predictions, labels) if bool(counted.all()) else (predictions[counted], labels[counted])


def _mixture(predictions: Tensor, counts: Sequence[int] | None = None) -> Tensor:
    """ln of the mean over rows [m, ...] of logarithms."""
    if counts is None:
        return ensemble_log_likelihoods(predictions)
    return (predictions + _shares(predictions, counts).log()).logsumexp(dim=0)


def _shares(rows: Tensor, counts: Sequence[int] | None) -> Tensor:
    """The share of each row in the members, [m, 1, ...]."""
    numbers = rows.new_tensor(counts or [1] * len(rows))
    return (numbers / numbers.sum()).view(-1, *(1,) * (rows.ndim - 1))


@dataclass(frozen=True)
class Categorical:
    """One of K classes, from logits (or log-probabilities) [B, K], [B, K, H, W] or any [B, K, ...]; labels [B, ...].

    `class_dimension=-1` reads outputs [B, tokens, K]. Items whose label is `ignored_label` do not count.
    """

    class_dimension: int = 1
    ignored_label: int = -100
    name: ClassVar[str] = "categorical"
    settings = asdict
    items = _counted_items
    log_likelihoods = staticmethod(_log_prob_of_label)
    average = staticmethod(_mixture)

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        expected = list(outputs.shape)
        if outputs.ndim < 2 or expected.pop(self.class_dimension) < 2:
            raise ValueError(
                f"the network's outputs have shape {list(outputs.shape)}, which leaves fewer than two classes in "
                f'dimension {self.class_dimension}. For one yes-or-no output use `likelihood="bernoulli"`.'
            )
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise TypeError(
                f"labels have type {labels.dtype}, but class numbers are integers: pass `labels.long()`, or for "
                "one-hot or soft labels `labels.argmax(dim=1)`."
            )
        if list(labels.shape) != expected:
            cure = (
                f"expected {expected}, one class number for each item. Where the classes are in the last dimension, "
                "use `likelihood=pm.Categorical(class_dimension=-1)`; one-hot labels need `labels.argmax(dim=1)`."
            )
            counts = f"a batch of {len(outputs):,} inputs needs {len(outputs):,} labels, and has {len(labels):,}."
            what = f"labels of shape {list(labels.shape)} do not fit outputs of shape {list(outputs.shape)}"
            raise ValueError(f"{what}: {cure if len(labels) == len(outputs) else counts}")
        labels, classes = labels.long(), outputs.shape[self.class_dimension]  # torch cannot compare unsigned numbers
        known = (labels >= 0) & (labels < classes) | (labels == self.ignored_label)
        probabilities = outputs.detach().movedim(self.class_dimension, -1)
        sums_to_one = (probabilities.float().sum(dim=-1) - 1).abs() < max(1e-3, torch.finfo(outputs.dtype).eps)
        suspicious = (probabilities >= 0).all() & sums_to_one.all()
        right, suspicious = torch.stack([known.all(), suspicious]).tolist()  # one question to the device
        if not right:
            counted = labels[labels != self.ignored_label]
            raise ValueError(
                f"labels run from {int(counted.min())} to {int(counted.max())}, but the network has {classes} "
                f"classes: labels must lie in 0..{classes - 1} (or be {self.ignored_label}, which is ignored)."
            )
        if suspicious and sums_to_one.numel() >= MIN_SUSPICIOUS_ROWS:
            raise ValueError(
                "the network's outputs look like probabilities (every row sums to 1), not logits. Remove the last "
                "softmax (Keras: `model.layers[-1].activation = keras.activations.linear`), or return "
                "`probabilities.log()`."
            )

    def predict(self, outputs: Tensor) -> Tensor:
        return at_least_float32(outputs).log_softmax(dim=self.class_dimension).movedim(self.class_dimension, -1)

    def outputs(self, predictions: Tensor) -> Tensor:
        return predictions if predictions.ndim == 2 else predictions.movedim(-1, self.class_dimension)


@dataclass(frozen=True)
class Bernoulli:
    """Yes or no, from one logit for each label: outputs and labels [B], [B, 1] or, with several labels, [B, L].

    Every label is an item of its own, and its two log-probabilities (no, yes) are the prediction. Entries whose label
    is `ignored_label` do not count.
    """

    ignored_label: int = -100
    name: ClassVar[str] = "bernoulli"
    settings = asdict
    items = _counted_items
    log_likelihoods = staticmethod(_log_prob_of_label)
    average = staticmethod(_mixture)

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        if _long_dimensions(outputs) != _long_dimensions(labels):
            raise ValueError(
                f"labels of shape {list(labels.shape)} do not fit outputs of shape {list(outputs.shape)}: a yes-or-no "
                "likelihood needs one label, 0 or 1, for each logit, in the same arrangement."
            )
        known = (labels == 0) | (labels == 1) | (labels == self.ignored_label)
        if not bool(known.all()):
            raise ValueError(
                f"labels contain {labels[~known].flatten()[0].item()}, but a yes-or-no label is 0 or 1 (or "
                f'{self.ignored_label}, which is ignored). For one of several classes use `likelihood="categorical"`.'
            )
        if outputs.numel() >= MIN_SUSPICIOUS_OUTPUTS and bool(((outputs >= 0) & (outputs <= 1)).all()):
            warn_user(
                "every output of the network lies in 0..1: if these are probabilities, remove the last sigmoid; the "
                "Bernoulli likelihood expects logits."
            )

    def predict(self, outputs: Tensor) -> Tensor:
        logits = at_least_float32(outputs)
        return torch.nn.functional.logsigmoid(torch.stack([-logits, logits], dim=-1))

    def outputs(self, predictions: Tensor) -> Tensor:
        """The logit of the averaged probability."""
        return predictions[..., 1] - predictions[..., 0]


@dataclass(frozen=True)
class Gaussian:
    """A real number, from its predicted mean and log-variance: outputs [B, 2], labels [B] or [B, 1].

    The ensemble is a mixture of Gaussians. L_i is the mixture's own density; the prediction is the mixture's mean and
    log-variance.
    """

    name: ClassVar[str] = "gaussian"
    settings = asdict

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        if outputs.ndim < 2 or outputs.shape[-1] != 2 or _long_dimensions(labels) != _long_dimensions(outputs[..., 0]):
            raise ValueError(
                f"outputs of shape {list(outputs.shape)} do not fit labels of shape {list(labels.shape)}: a Gaussian "
                "likelihood needs a mean and a log-variance, outputs [B, 2], for labels [B]."
            )

    def predict(self, outputs: Tensor) -> Tensor:
        return at_least_float32(outputs)

    def items(self, predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return predictions.flatten(end_dim=-2), labels.flatten().to(predictions.dtype)

    def log_likelihoods(self, predictions: Tensor, labels: Tensor) -> Tensor:
        mean, log_variance = predictions.unbind(dim=-1)
        return -0.5 * (math.log(2 * math.pi) + log_variance + (labels - mean).square() * (-log_variance).exp())

    def average(self, predictions: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """By the law of total variance, in log space."""
        means, log_variances = predictions.unbind(dim=-1)
        mean = (_shares(means, counts) * means).sum(dim=0)
        squares = (means - mean).square().clamp(min=torch.finfo(means.dtype).tiny)
        return torch.stack([mean, _mixture(torch.logaddexp(log_variances, squares.log()), counts)], dim=-1)

    def outputs(self, predictions: Tensor) -> Tensor:
        return predictions


#: The likelihoods that have a name. A new one is one class and one row here.
LIKELIHOODS: dict[str, type[Categorical] | type[Bernoulli] | type[Gaussian]] = {
    kind.name: kind for kind in (Categorical, Bernoulli, Gaussian)
}


def likelihood_named(likelihood: str | Likelihood) -> Likelihood:
    """The likelihood of this name, which may carry settings, as in "categorical?ignored_label=255"."""
    if not isinstance(likelihood, str):
        return likelihood
    name, _, query = likelihood.partition("?")
    if name not in LIKELIHOODS:
        raise ValueError(f"`likelihood={likelihood!r}` is unknown: choose one of {', '.join(LIKELIHOODS)}.")
    try:
        settings = {key: int(value) for key, value in (part.split("=") for part in query.split("&") if part)}
        return LIKELIHOODS[name](**settings)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"`likelihood={likelihood!r}` has settings that {name} does not know: write them as in "
            "`categorical?ignored_label=255`."
        ) from error


def _long_dimensions(tensor: Tensor) -> list[int]:
    """The shape without its ones: [B, 1] is arranged like [B]."""
    return [length for length in tensor.shape if length != 1]
