"""A scikit-learn classifier around a trained network: `fit` tunes sigma and T, and the network stays as it is.

Labels of any type are mapped to the network's outputs and back here, and nowhere else.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from peppermill.calibrators.temperature import at_limit
from peppermill.data import output_tensor
from peppermill.ensemble import PepEnsemble
from peppermill.fitting import fit
from peppermill.integrations.mlp import kept_for_tuning, train_mlp
from peppermill.old_engines.loop import refuse_training_mode
from peppermill.parameters import Selection
from peppermill.plumbing.devices import device_of, dtype_of
from peppermill.predictions import predict_unlabelled
from peppermill.types import PepWarning

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        f'PepClassifier needs scikit-learn 1.6 or newer ({error}): `pip install "peppermill[sklearn]"`.'
    ) from error

WORTH_A_TEMPERATURE = 1.92  # half the 95 % point of chi-square with one degree of freedom: the likelihood-ratio test


class PepClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A trained network as a scikit-learn classifier with honest probabilities.

    - `model`: the network, in evaluation mode, that gives logits [batch, classes]; or one logit for the second of two
      classes. `fit(X, y)` tunes sigma and T on (X, y), which must not be what the network was trained on. Without a
      network, a small one is trained first: see `hidden`.
    - `classes`: the labels in the order of the network's outputs. Without it they are the labels in y, sorted, and
      there must be as many as the network has outputs.
    - `parameters`, `size`, `noise`, `antithetic`, `lower`, `upper`, `iterations`, `search`, `temperature`,
      `batch_size`: as in `pm.fit`. `temperature` is on here, and T is kept where a likelihood-ratio test at 5 % says
      that it helps: scikit-learn's data sets are small, and a T from thirty items does harm.
    - `hidden`, `epochs`, `validation`: without `model`, the widths of a network of ReLU layers that is trained on
      standardized features for so many epochs, and the share of each class that is kept from it to tune on.
    - `seed`: of the noise, and of the training.

    After `fit`: `pep_` is the `PepEnsemble` (`pep_.sigma`, `pep_.temperature`, `pep_.save`), `classes_` the labels,
    sorted, in the order of the columns of `predict_proba`.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        classes: Sequence[Any] | None = None,
        parameters: Selection = "kernels",
        size: int = 10,
        noise: str = "gaussian",
        antithetic: bool = True,
        lower: float | None = None,
        upper: float | None = None,
        iterations: int | None = None,
        search: str | None = None,
        temperature: bool = True,
        batch_size: int = 500,
        hidden: Sequence[int] = (64,),
        epochs: int = 100,
        validation: float = 0.2,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.classes = classes
        self.parameters = parameters
        self.size = size
        self.noise = noise
        self.antithetic = antithetic
        self.lower = lower
        self.upper = upper
        self.iterations = iterations
        self.search = search
        self.temperature = temperature
        self.batch_size = batch_size
        self.hidden = hidden
        self.epochs = epochs
        self.validation = validation
        self.seed = seed

    def fit(self, X: Any, y: Any) -> PepClassifier:
        """Tune sigma, and T, on (X, y); train a small network on part of them first where none was given."""
        X, y = validate_data(self, X, y, allow_nd=self.model is not None)
        check_classification_targets(y)
        names = np.unique(y) if self.classes is None else np.asarray(self.classes)
        labels = _output_numbers(y, names)
        if self.model is None:
            tuning = kept_for_tuning(labels, self.validation, self.seed)
            network = self._trained(X[~tuning], labels[~tuning], len(names))
            X, labels = X[tuning], labels[tuning]
        else:
            network = self.model
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the best temperature is", PepWarning)  # such a one is not kept
            self.pep_ = _without_idle_temperature(self._tuned(network, X, labels, len(names)))
        self.outputs_ = np.argsort(names)  # the network's output for each of `classes_`
        self.classes_ = names[self.outputs_]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Eq. 9: averaged probabilities, [N, K], a column for each of `classes_`."""
        probabilities: np.ndarray = np.exp(self.predict_log_proba(X))
        return probabilities

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of `predict_proba`, exact also where that underflows."""
        check_is_fitted(self)
        X = validate_data(self, X, allow_nd=self.model is not None, reset=False)
        inputs = _as_inputs(X, self.pep_)
        log_probs: np.ndarray = predict_unlabelled(self.pep_, inputs, batch_size=self.batch_size).numpy()
        return log_probs[:, self.outputs_]

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each item, [N]."""
        log_probs = self.predict_log_proba(X)
        found: np.ndarray = self.classes_[log_probs.argmax(axis=1)]
        return found

    def _trained(self, X: np.ndarray, labels: np.ndarray, classes: int) -> nn.Module:
        pair = _as_inputs(X), torch.from_numpy(labels)
        return train_mlp(*pair, classes, hidden=self.hidden, epochs=self.epochs, seed=self.seed)

    def _tuned(self, network: nn.Module, X: np.ndarray, labels: np.ndarray, classes: int) -> PepEnsemble:
        inputs = _as_inputs(X, network)
        outputs = _count_outputs(network, inputs)
        _check_count(outputs, classes, named=self.classes is not None)
        return fit(
            network,
            (inputs, torch.from_numpy(labels)),
            parameters=self.parameters,
            size=self.size,
            noise=self.noise,
            antithetic=self.antithetic,
            seed=self.seed,
            lower=self.lower,
            upper=self.upper,
            iterations=self.iterations,
            search=self.search,
            temperature=self.temperature,
            likelihood="bernoulli" if outputs == 1 else "categorical",
            batch_size=self.batch_size,
        )


def _without_idle_temperature(pep: PepEnsemble) -> PepEnsemble:
    """PEP alone where T ends at a limit, or gains no more log-likelihood than chance would give it.

    On few items, nearly all of them right, T falls towards 0, and every later mistake is made with certainty.
    """
    alone = pep.without_temperature()
    gain = pep.search.best.tempered_log_likelihood - alone.search.best.log_likelihood
    return pep if gain > WORTH_A_TEMPERATURE and not at_limit(pep.temperature) else alone


def _output_numbers(y: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The number of the output that stands for each label, [N]."""
    number = {name: k for k, name in enumerate(names.tolist())}
    if names.ndim != 1 or len(number) < len(names):
        raise ValueError(f"`classes={names.tolist()}` must be a list of labels, each of them once.")
    if len(number) < 2:
        raise ValueError(f"there is one class only, {names.tolist()}: a classifier needs at least two classes.")
    unknown = [label for label in np.unique(y).tolist() if label not in number]
    if unknown:
        raise ValueError(f"`y` has labels that are not in `classes`: {', '.join(map(repr, unknown[:5]))}. Add them.")
    return np.array([number[label] for label in y.tolist()], dtype=np.int64)


def _count_outputs(network: nn.Module, inputs: Tensor) -> int:
    """How many outputs the network has, from the first item."""
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"`model` is a {type(network).__name__}: give a torch.nn.Module, or none to have one trained on the data."
        )
    refuse_training_mode(network)
    dtype = dtype_of(network) if inputs.is_floating_point() else None
    with torch.no_grad():
        outputs = output_tensor(network(inputs[:1].to(device_of(network), dtype)))
    if outputs.ndim > 2:
        raise ValueError(
            f"the network's outputs have shape {list(outputs.shape)} for one item: a classifier gives [1, classes]. "
            "For pixels or tokens use `pm.fit`."
        )
    return outputs.shape[1] if outputs.ndim == 2 else 1


def _check_count(outputs: int, classes: int, named: bool) -> None:
    """One logit stands for two classes; otherwise each output has its class."""
    if max(outputs, 2) == classes:
        return
    what = f"`classes` names {classes} labels" if named else f"`y` has {classes} different labels"
    raise ValueError(
        f"{what}, and the network has {outputs} outputs: give `classes=[...]`, a label for each output in their order "
        f"(where labels are output numbers, `classes=range({outputs})`)."
    )


def _as_inputs(X: np.ndarray, network: nn.Module | None = None) -> Tensor:
    """A copy as a tensor; whole numbers as numbers to compute with, unless the network looks them up in a table."""
    inputs = torch.from_numpy(np.array(X, order="C"))
    parts = network.modules() if isinstance(network, nn.Module) else ()
    looked_up = any(isinstance(part, (nn.Embedding, nn.EmbeddingBag)) for part in parts)
    return inputs if inputs.is_floating_point() or looked_up else inputs.double()
