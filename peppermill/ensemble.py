"""Eq. 9: the ensemble at sigma*, as a module in place of the network; found by `fit`, kept by `save` and `load`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peppermill import parameters as selection
from peppermill.data import Batches
from peppermill.deployment.export import export_ensemble
from peppermill.engines.borrowed import exclusive
from peppermill.engines.choose import engine_of
from peppermill.engines.engine import Engine
from peppermill.engines.loop import MemberPass, averaged, member_predictions
from peppermill.engines.members import Members
from peppermill.engines.parts import agree_on, run_all, run_part
from peppermill.fingerprint import difference, fingerprint
from peppermill.foreign import in_training_mode
from peppermill.likelihood import ensemble_log_likelihoods, likelihood_named, temper
from peppermill.noise import Noise
from peppermill.parameters import Selection
from peppermill.perturbation import Perturbation, mention_half_precision
from peppermill.predictions import Predictions, predict
from peppermill.processes.together import together
from peppermill.progress import progress
from peppermill.recipe import Recipe, read_fingerprint, read_recipe, write_recipe
from peppermill.tuning import SigmaSearch, tune_sigma
from peppermill.types import Data, Inputs, Likelihood


class PepEnsemble(nn.Module):
    """m members around the network's weights, in place of the network: call it as you call the network.

    It gives the logarithm of the averaged probability (eq. 9), [batch, classes]: valid logits, on which softmax and
    cross-entropy stay right. The network is held, not copied, and never changed. `engine` says how the members run: a
    choice of the moment, no part of the recipe.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, engine: str | Engine = "auto") -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.engine = engine_of(engine)
        self.training = in_training_mode(model)

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
        with exclusive(self.model):
            weights = dict(self.model.named_parameters())
        center = {name: weights[name].detach() for name in self.recipe.selected}
        return Perturbation(center, self.recipe.noise, self.size)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """ln of the averaged probability, in the network's own layout.

        For other likelihoods, what the network itself would give.
        """
        predictions = averaged(self.likelihood, self._member_predictions(args, kwargs))
        return self.likelihood.outputs(temper(predictions, self.temperature))

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

    @together
    def member_pass(self, data: Data | Batches) -> MemberPass:
        """ln L_i(theta_j), [m, N], and the averaged predictions [N, K] for all items of the data."""
        batches = data if isinstance(data, Batches) else Batches(data, self.model)
        agree_on(self.model, self.perturbation, sigma=self.sigma)
        with progress(f"{self.size} members at sigma = {self.sigma:.4g}") as tick:
            given = self.model, self.perturbation, self.sigma, batches, self.likelihood, tick
            return run_all(*given, engine=self.engine)

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
        return PepEnsemble(self.model, replace(self.recipe, temperature=self.temperature * temperature), self.engine)

    def without_temperature(self) -> PepEnsemble:
        """PEP alone, from the values of sigma that were already paid for: the best of them at T = 1."""
        search = replace(self.search, joint=False)
        recipe = replace(self.recipe, sigma=search.best.sigma, temperature=1.0, search=search)
        return PepEnsemble(self.model, recipe, self.engine)

    def with_engine(self, engine: str = "auto", precision: str | None = None) -> PepEnsemble:
        """The same ensemble, run in another way: `engine` and `precision` are those of `fit`."""
        return PepEnsemble(self.model, self.recipe, engine_of(engine, precision))

    def save(self, path: str | Path) -> None:
        """Write the recipe, under 4 kB of JSON: the weights stay where they are."""
        changed = difference(self.recipe.fingerprint, fingerprint(self.model))
        if changed:
            raise ValueError(f"the network is not the one that was fitted ({changed}): fit again before saving.")
        write_recipe(self.recipe, path, selection.names(self.model))

    def export(self, path: str | Path, example: Inputs) -> None:
        """Eq. 9 as one file, .pt2 or .onnx, that gives the averaged probabilities of batches like `example`."""
        export_ensemble(self, path, example)

    def extra_repr(self) -> str:
        return f"sigma={self.sigma:.4g}, size={self.size}, temperature={self.temperature:.4g}, seed={self.seed}"

    def _member_predictions(self, args: Any, kwargs: Any) -> Tensor:
        key = (self.recipe.noise, self.size, self.recipe.selected)
        members = Members(self.model, self.size, self.sigma, key, lambda: self.perturbation)
        return member_predictions(members, self.likelihood, args, kwargs, self.engine)


@together
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
    iterations: int = 7,
    temperature: bool = False,
    likelihood: str | Likelihood = "categorical",
    batch_size: int = 500,
    engine: str = "auto",
    precision: str | None = None,
) -> PepEnsemble:
    """Find sigma* on validation data (eq. 8) and return the ensemble; sigma = 0 where noise does not help.

    - `parameters`: what is perturbed. "kernels" (every weight that multiplies; no bias, no norm layer) suits most
      networks; the paper used "conv" on ImageNet. Also "last_layer", "all", a regular expression, or a function of
      name and value.
    - `size`: members, the paper's m; 10 as in its tests.
    - `noise`, `seed`: the law of the noise, "gaussian" or "uniform", and where its stream starts.
    - `antithetic`: members in pairs +epsilon, -epsilon. It cancels the first-order error of a finite ensemble, so that
      L(sigma) is smooth near 0 and depends less on the seed (docs/benchmarks.md).
    - `lower`, `upper`: where to search; found when absent. `iterations`: of the golden section, 7 as in the paper.
    - `temperature`: tune T together with sigma; right for most users of classifiers. T costs no forward pass, and a
      few more values of sigma are tried.
    - `likelihood`: "categorical", "bernoulli", "gaussian", or one with settings, `pm.Categorical(ignored_label=255)`.
    - `batch_size`: for data that do not come in batches.
    - `engine`: how the members run, "loop", "vmap", "graphs" or "auto"; `precision`: "bfloat16" or "float16" lets the
      network compute in low precision. Neither is saved (docs/engines.md).
    """
    chosen, runner = likelihood_named(likelihood), engine_of(engine, precision)
    if temperature and chosen.name == "gaussian":
        raise ValueError(
            "`temperature=True` is for classifiers: a Gaussian likelihood has no temperature. Leave it out."
        )
    perturbation = Perturbation(selection.select(model, parameters), Noise(noise, antithetic, seed), size)
    mention_half_precision(perturbation)
    agree_on(model, perturbation, search=(lower, upper, iterations, temperature), likelihood=chosen)
    data = Batches(validation, model, argument="validation", batch_size=batch_size)
    with progress("fitting sigma") as tick:
        search = tune_sigma(
            lambda sigma: run_part(model, perturbation, sigma, data, chosen, tick, runner),
            scale=perturbation.scale(),
            lower=lower,
            upper=upper,
            iterations=iterations,
            joint=temperature,
        )
    return PepEnsemble(
        model,
        Recipe(
            sigma=search.best.sigma,
            size=size,
            noise=perturbation.noise,
            rule=selection.rule_name(parameters),
            selected=tuple(perturbation.center),
            likelihood=chosen,
            temperature=search.best.temperature if temperature else 1.0,
            search=search,
            fingerprint=fingerprint(model),
        ),
        runner,
    )


def load(path: str | Path, model: nn.Module, *, engine: str = "auto", precision: str | None = None) -> PepEnsemble:
    """The ensemble that `save` wrote, on the network for which it was fitted, and on no other."""
    changed = difference(read_fingerprint(path), fingerprint(model))
    if changed:
        raise ValueError(f"{path} was fitted on another network: this {type(model).__name__} differs, {changed}.")
    return PepEnsemble(model, read_recipe(path, model), engine_of(engine, precision))
