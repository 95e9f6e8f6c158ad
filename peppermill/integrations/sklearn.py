"""A scikit-learn classifier around a trained network: `fit` calibrates it, and the network is not changed.

Only this file maps labels of any type to the network's outputs and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from peppermill.data import Batches
from peppermill.noise import Noise
from peppermill.parameters import Selection
from peppermill.plumbing.nested import output_tensor, placed
from peppermill.plumbing.networks import device_of, dtype_of, refuse_training_mode
from peppermill.plumbing.optional import importing
from peppermill.predictions import predict
from peppermill.race import fit_or_calibrate
from peppermill.tuning import search_named
from peppermill.types import LawName, SearchName

with importing("PepClassifier needs scikit-learn 1.6 or newer", "sklearn", "sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data


@dataclass(eq=False, repr=False)  # as BaseEstimator has them
class PepClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A trained network as a scikit-learn classifier with honest probabilities.

    - `model`: the network, in evaluation mode, that gives logits [batch, classes]; or one logit for the second of two
      classes. `fit(X, y)` calibrates it on (X, y), which must not be the data that the network was trained on.
    - `classes`: the labels in the order of the network's outputs. Without it they are the labels in y, sorted, and
      their number must be that of the network's outputs.
    - `parameters`, `noise`, `antithetic`, `seed`, `batch_size`: as in `pm.calibrate`, which chooses calibrator and
      members; `size` is the most passes that a prediction may cost.
    - `search`, `lower`, `upper`, `iterations`, `temperature=False`: as in `pm.fit`, which takes the place of the race
      if one of them is given. With a temperature, one pass without noise still wins unless the members are better by
      more than a standard error.

    After `fit`: `pep_` is the `PepEnsemble` (`pep_.sigma`, `pep_.temperature`, `pep_.save`), `classes_` the labels,
    sorted, in the order of the columns of `predict_proba`.
    """

    model: nn.Module | None = None
    _: KW_ONLY
    classes: Sequence[Any] | None = None
    parameters: Selection = "kernels"
    size: int = 10
    noise: LawName = "gaussian"
    antithetic: bool = True
    lower: float | None = None
    upper: float | None = None
    iterations: int | None = None
    search: SearchName | None = None
    temperature: bool = True
    batch_size: int = 500
    seed: int = 0

    def fit(self, X: Any, y: Any) -> PepClassifier:
        """Calibrate the network on (X, y)."""
        if not isinstance(self.model, nn.Module):
            raise TypeError(
                f"`model` is {self.model if self.model is None else f'a {type(self.model).__name__}'}: give a trained "
                "torch.nn.Module, as in `PepClassifier(model)`."
            )
        X, y = validate_data(self, X, y, allow_nd=True)
        check_classification_targets(y)
        names = np.unique(y) if self.classes is None else np.asarray(self.classes)
        known = names.tolist()
        if names.ndim != 1 or len(set(known)) < len(known):
            raise ValueError(f"`classes={known}` must be a list of labels, each of them once.")
        if len(known) < 2:
            raise ValueError(f"there is one class only, {known}: a classifier needs at least two classes.")
        if unknown := [label for label in np.unique(y).tolist() if label not in known]:
            shown = ", ".join(map(repr, unknown[:5]))
            raise ValueError(f"`y` has labels that are not in `classes`: {shown}. Add them.")
        inputs = _as_inputs(X, self.model)
        refuse_training_mode(self.model)
        with torch.no_grad():
            first = output_tensor(self.model(placed(inputs[:1], device_of(self.model), dtype_of(self.model))))
        if first.ndim > 2:
            raise ValueError(
                f"the network's outputs have shape {list(first.shape)} for one item: a classifier gives [1, classes]. "
                "For pixels or tokens use `pm.fit`."
            )
        outputs = first.shape[1] if first.ndim == 2 else 1
        if max(outputs, 2) != len(names):  # one logit stands for two classes
            origin = "`y` has {} different labels" if self.classes is None else "`classes` names {} labels"
            raise ValueError(
                f"{origin.format(len(names))}, and the network has {outputs} outputs: give `classes=[...]`, a label "
                f"for each output in their order (if labels are output numbers, `classes=range({outputs})`)."
            )
        order = np.argsort(names)
        labels = torch.from_numpy(order[np.searchsorted(names[order], y)])
        options: dict[str, Any] = {}
        if any(value is not None for value in (self.search, self.lower, self.upper, self.iterations)):
            settings = {"lower": self.lower, "upper": self.upper, "iterations": self.iterations}
            options["search"] = search_named(self.search, **settings)
        self.pep_ = fit_or_calibrate(
            self.model,
            (inputs, labels),
            self.size,
            self.temperature,
            parameters=self.parameters,
            noise=Noise(self.noise, self.antithetic, self.seed),
            likelihood="bernoulli" if outputs == 1 else "categorical",
            batch_size=self.batch_size,
            **options,
        )
        self.outputs_ = order  # the network's output for each of `classes_`
        self.classes_ = names[order]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Eq. 9: averaged probabilities, [N, K], a column for each of `classes_`."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of `predict_proba`, exact even if that underflows."""
        check_is_fitted(self)
        X = validate_data(self, X, allow_nd=True, reset=False)
        data = _as_inputs(X, self.pep_), torch.zeros(len(X), dtype=torch.long)  # no prediction depends on a label
        found = predict(self.pep_, Batches(data, self.pep_, batch_size=self.batch_size))
        log_probs = found.log_probs.cpu().log_softmax(dim=1)  # to the last bit of float64
        return log_probs.numpy()[:, self.outputs_]

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each item, [N]."""
        best = self.predict_log_proba(X).argmax(axis=1)  # before `classes_`, which an unfitted one has not
        return np.asarray(self.classes_[best])


def _as_inputs(X: np.ndarray, network: nn.Module) -> Tensor:
    """A copy as a tensor; whole numbers become floating-point numbers, unless the network looks them up in a table."""
    inputs = torch.from_numpy(np.array(X, order="C"))
    looked_up = any(isinstance(part, (nn.Embedding, nn.EmbeddingBag)) for part in network.modules())
    return inputs if inputs.is_floating_point() or looked_up else inputs.double()
