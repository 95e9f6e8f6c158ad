"""Eq. 9: the ensemble at sigma*, as a module in place of the network; found by `fit`, kept by `save` and `load`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peppermill import parameters as selection
from peppermill.data import Batches
from peppermill.engines.loop import MemberPass, member_predictions, run_members
from peppermill.fingerprint import difference, fingerprint
from peppermill.likelihood import ensemble_log_likelihoods, likelihood_named, temper
from peppermill.noise import Noise
from peppermill.parameters import Selection
from peppermill.part import Part, part_of
from peppermill.perturbation import Perturbation
from peppermill.predictions import Predictions, predict
from peppermill.progress import progress
from peppermill.quick import search_named, tune_quickly
from peppermill.recipe import Recipe, read_fingerprint, read_recipe, write_recipe
from peppermill.tuning import SigmaSearch, tune_sigma
from peppermill.types import Data, Likelihood, PepWarning


class PepEnsemble(nn.Module):
    """m members around the network's weights, in place of the network: call it as you call the network.

    It gives the logarithm of the averaged probability (eq. 9), [batch, classes]: valid logits, on which softmax and
    cross-entropy stay right. The network is held, not copied, and never changed.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.training = model.training

    @property
    def sigma(self) -> float:
        """sigma*, eq. 8."""
        return self.recipe.sigma

    @property
    def size(self) -> int:
        """The paper's m."""
        return self.recipe.size

    @property
    def seed(self) -> int:
        return self.recipe.noise.seed

    @property
    def temperature(self) -> float:
        """T, applied after averaging; 1 where none was fitted."""
        return self.recipe.temperature

    @property
    def search(self) -> SigmaSearch:
        """Every (sigma, L(sigma)) that was paid for."""
        return self.recipe.search

    @property
    def likelihood(self) -> Likelihood:
        return self.recipe.likelihood

    @property
    def perturbation(self) -> Perturbation:
        """The members, around the network's weights as they are now."""
        weights = dict(self.model.named_parameters())
        center = {name: weights[name].detach() for name in self.recipe.selected}
        return Perturbation(center, self.recipe.noise, self.size)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """ln of the averaged probability, in the network's own layout.

        For other likelihoods, what the network itself would give.
        """
        predictions = self._member_predictions(args, kwargs)
        total = None
        for prediction in predictions:
            total = self.likelihood.accumulate(total, prediction)
        assert total is not None
        return self.likelihood.outputs(temper(self.likelihood.average(total, len(predictions)), self.temperature))

    def predict_proba(self, *args: Any, **kwargs: Any) -> Tensor:
        """p(y; x, theta*, sigma*) of eq. 9; of a yes-or-no question, the probability of yes."""
        if self.likelihood.name == "gaussian":
            raise TypeError(
                "a regression has no class probabilities: call the ensemble itself for its mean and log-variance."
            )
        outputs: Tensor = self(*args, **kwargs)
        return outputs.sigmoid() if self.likelihood.name == "bernoulli" else outputs.exp()

    def member_log_probs(self, *args: Any, **kwargs: Any) -> Tensor:
        """Every member's own log-probabilities, [m, batch, classes], before averaging and temperature."""
        predictions = self._member_predictions(args, kwargs)
        return torch.stack(
            [
                self.likelihood.outputs(prediction)
                for prediction in predictions.expand(self.size, *predictions.shape[1:])
            ]
        )

    def member_pass(self, data: Data | Batches) -> MemberPass:
        """ln L_i(theta_j), [m, N], and the averaged predictions [N, K] for all items of the data."""
        batches = data if isinstance(data, Batches) else Batches(data, self.model)
        with progress(f"{self.size} members at sigma = {self.sigma:.4g}") as tick:
            return run_members(self.model, self.perturbation, self.sigma, batches, self.likelihood, tick)

    def predict_items(self, data: Data | Batches) -> Predictions:
        """The ensemble's prediction for all items of the data, one member after another.

        Cheaper than batch after batch.
        """
        return self.predictions_of(self.member_pass(data))

    def predictions_of(self, members: MemberPass) -> Predictions:
        """The ensemble's prediction from a pass of its members that was already paid for."""
        log_probs = temper(members.averaged, self.temperature)
        if self.temperature == 1:
            log_likelihoods = ensemble_log_likelihoods(members.member_log_likelihoods[: 1 if self.sigma == 0 else None])
        else:
            log_likelihoods = self.likelihood.log_likelihoods(log_probs, members.labels)
        return Predictions(log_probs, members.labels, log_likelihoods, self.likelihood)

    def item_effects(self, data: Data | Batches) -> Tensor:
        """ln of the ensemble's likelihood minus the network's for every item, [N]: who is helped and who is hurt.

        Their sum is the PEP effect on the data; the paper expects hard and mislabelled items to carry it.
        """
        batches = data if isinstance(data, Batches) else Batches(data, self.model)
        network = predict(self.model, batches, likelihood=self.likelihood)
        return self.predict_items(batches).log_likelihoods - network.log_likelihoods

    def with_temperature(self, temperature: float) -> PepEnsemble:
        """The same ensemble with a temperature on top of the one it has."""
        return PepEnsemble(self.model, replace(self.recipe, temperature=self.temperature * temperature))

    def without_temperature(self) -> PepEnsemble:
        """PEP alone, from the values of sigma that were already paid for: the best of them at T = 1."""
        search = replace(self.search, joint=False)
        return PepEnsemble(self.model, replace(self.recipe, sigma=search.best.sigma, temperature=1.0, search=search))

    def save(self, path: str | Path) -> None:
        """Write the recipe, under 4 kB of JSON: the weights stay where they are."""
        changed = difference(self.recipe.fingerprint, fingerprint(self.model))
        if changed:
            raise ValueError(f"the network is not the one that was fitted ({changed}): fit again before saving.")
        write_recipe(self.recipe, path, selection.names(self.model))

    def extra_repr(self) -> str:
        return f"sigma={self.sigma:.4g}, size={self.size}, temperature={self.temperature:.4g}, seed={self.seed}"

    def _member_predictions(self, args: Any, kwargs: Any) -> Tensor:
        return member_predictions(self.model, self.perturbation, self.sigma, self.likelihood, args, kwargs)


def fit(
    model: nn.Module,
    validation: Data,
    *,
    parameters: Selection = "kernels",
    size: int = 10,
    noise: str = "gaussian",
    antithetic: bool = True,
    seed: int = 0,
    lower: float | None = None,
    upper: float | None = None,
    iterations: int | None = None,
    search: str | None = None,
    temperature: bool = False,
    likelihood: str | Likelihood = "categorical",
    batch_size: int = 500,
) -> PepEnsemble:
    """Find sigma* on validation data (eq. 8) and return the ensemble; sigma = 0 where noise does not help.

    - `parameters`: what is perturbed. "kernels" (every weight that multiplies; no bias, no norm layer) suits most
      networks; the paper used "conv" on ImageNet. Also "last_layer", "all", a regular expression, or a function of
      name and value.
    - `size`: members, the paper's m; 10 as in its tests.
    - `noise`, `seed`: the law of the noise, "gaussian" or "uniform", and where its stream starts.
    - `antithetic`: members in pairs +epsilon, -epsilon. It cancels the first-order error of a finite ensemble, so that
      L(sigma) is smooth near 0 and depends less on the seed (docs/benchmarks.md).
    - `lower`, `upper`: where to search; found when absent.
    - `search`: "quick" looks on part of the items where sigma* is and pays for at most five passes of all members over
      all items; "golden" is the paper's golden section, which pays for about thirteen, and is meant where `iterations`
      is given, 7 as in the paper.
    - `temperature`: tune T together with sigma; right for most users of classifiers. T costs no forward pass, and a
      few more values of sigma are tried.
    - `likelihood`: "categorical", "bernoulli", "gaussian", or one with settings, `pm.Categorical(ignored_label=255)`.
    - `batch_size`: for data that do not come in batches.
    """
    chosen = likelihood_named(likelihood)
    if temperature and chosen.name == "gaussian":
        raise ValueError(
            "`temperature=True` is for classifiers: a Gaussian likelihood has no temperature. Leave it out."
        )
    perturbation = Perturbation(selection.select(model, parameters), Noise(noise, antithetic, seed), size)
    _mention_half_precision(perturbation)
    data = Batches(validation, model, argument="validation", batch_size=batch_size)
    with progress("fitting sigma") as tick:

        def run(sigma: float, part: Part | None = None) -> MemberPass:
            return run_members(model, perturbation, sigma, part.data if part else data, chosen, tick)

        options: dict[str, Any] = {"scale": perturbation.scale(), "lower": lower, "upper": upper, "joint": temperature}
        if search_named(search, iterations) == "golden":
            found = tune_sigma(run, iterations=7 if iterations is None else iterations, **options)
        else:
            found = tune_quickly(run, lambda network: part_of(data, network, chosen, model), **options)
    return PepEnsemble(
        model,
        Recipe(
            sigma=found.best.sigma,
            size=size,
            noise=perturbation.noise,
            rule=selection.rule_name(parameters),
            selected=tuple(perturbation.center),
            likelihood=chosen,
            temperature=found.best.temperature if temperature else 1.0,
            search=found,
            fingerprint=fingerprint(model),
        ),
    )


def load(path: str | Path, model: nn.Module) -> PepEnsemble:
    """The ensemble that `save` wrote, on the network for which it was fitted, and on no other."""
    changed = difference(read_fingerprint(path), fingerprint(model))
    if changed:
        raise ValueError(f"{path} was fitted on another network: this {type(model).__name__} differs, {changed}.")
    return PepEnsemble(model, read_recipe(path, model))


def _mention_half_precision(perturbation: Perturbation) -> None:
    half = sorted({str(v.dtype) for v in perturbation.center.values() if v.dtype in (torch.float16, torch.bfloat16)})
    if half:
        warnings.warn(
            f"the weights are {', '.join(half)}, in which neighbouring numbers lie far apart: noise is drawn and "
            "added in float32 and then rounded, so a small sigma acts unevenly. For exact noise fit in float32 "
            "(`model.float()`).",
            PepWarning,
            stacklevel=3,
        )
