"""Eq. 9: the ensemble at sigma*, as a module in place of the network; found by `fit`, kept by `save` and `load`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from peppermill.calibrators import UNCALIBRATED, Calibrator, Temperature
from peppermill.data import Batches
from peppermill.engines import Engine, Members, engine_named
from peppermill.likelihood import predict_members
from peppermill.passes import MemberPass, Request, portions, run_members
from peppermill.plumbing.networks import as_network, in_training_mode
from peppermill.plumbing.progress import progress
from peppermill.predictions import Predictions, predict
from peppermill.recipe import Recipe, recipe_at
from peppermill.types import Data, EngineName, Inputs, LawName, Likelihood, LikelihoodLike, Precision, Tick
from peppermill.uncertainty import Uncertainty, member_uncertainty

if TYPE_CHECKING:
    from peppermill.noise import Noise
    from peppermill.parameters import Selection
    from peppermill.perturbation import Perturbation
    from peppermill.race import Race
    from peppermill.tuning.result import SigmaSearch
    from peppermill.views import ViewsLike


class PepEnsemble(nn.Module):
    """An ensemble of m perturbed copies of a network (eq. 9). Call it as you call the network.

    It gives the logarithm of the averaged probability (eq. 9), [batch, classes]: valid logits, on which softmax and
    cross-entropy stay right. The network is held, not copied, and never changed. `recipe` is what `save` writes;
    `engine` says how the members run, and is not part of it. `fit`, `load` and `at_sigma` make ensembles.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, engine: EngineName | Engine = "auto") -> None:
        super().__init__()
        self.model, self.recipe = model, recipe
        self.engine = engine_named(engine)
        self.training = in_training_mode(model)

    @classmethod
    def at_sigma(
        cls,
        model: nn.Module,
        sigma: float,
        *,
        parameters: Selection = "kernels",
        size: int = 10,
        noise: LawName | Noise = "gaussian",
        likelihood: LikelihoodLike = "categorical",
        views: ViewsLike = None,
        engine: EngineName | Engine = "auto",
    ) -> PepEnsemble:
        """An ensemble at a sigma of your choice, without a search; the arguments are those of `fit`."""
        model = as_network(model)
        return cls(model, recipe_at(model, sigma, parameters, size, noise, likelihood, views), engine)

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
    def calibrator(self) -> Calibrator:
        """What was fitted on the averaged log-probabilities and is applied after averaging."""
        return self.recipe.calibrator

    @property
    def temperature(self) -> float:
        """The T of the calibrator; 1 if none was fitted."""
        return self.calibrator.temperature

    @property
    def passes(self) -> int:
        """The forward passes that a prediction costs: m, or one for each view if sigma is 0."""
        return self._members().count

    @property
    def method(self) -> str:
        """What tables call it; PEP only if there is noise."""
        return self.recipe.method

    @property
    def one_pass(self) -> PepEnsemble | None:
        """The rival: the network alone with its best calibrator on the same items, if that is known."""
        calibrator, given = self.recipe.one_pass, replace(self.search, evaluations=(), lower=0.0, upper=0.0)
        if calibrator is None:
            return None
        return self.with_recipe(sigma=0.0, size=1, views=(), calibrator=calibrator, one_pass=None, search=given)

    @property
    def search(self) -> SigmaSearch:
        """The search for sigma*: every sigma that was tried, with L(sigma)."""
        return self.recipe.search

    @property
    def race(self) -> Race | None:
        """How `calibrate` chose it, if it did."""
        return self.recipe.race

    @property
    def likelihood(self) -> Likelihood:
        return self.recipe.likelihood

    @property
    def perturbation(self) -> Perturbation:
        """The members, around the network's weights as they are now."""
        return self._members().perturbation()

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """ln of the averaged probability, or mean and log-variance of a regression; in the network's own layout."""
        different = self.member_predictions(*args, **kwargs)[: self.passes]
        return self.likelihood.outputs(self.calibrator(self.likelihood.average(different)))

    @torch.no_grad()
    def predict_proba(self, *args: Any, **kwargs: Any) -> Tensor:
        """p(y; x, theta*, sigma*) of eq. 9, without a graph; for a yes-or-no question, the probability of yes.

        For one batch, as the network takes it; or for all items of an array, a dict of arrays, a Dataset, a DataLoader
        or any other data with or without labels, which are read batch by batch.
        """
        if self.likelihood.name == "gaussian":
            raise TypeError(
                "a regression has no class probabilities: call the ensemble itself for its mean and log-variance."
            )
        if len(args) == 1 and not kwargs and not isinstance(args[0], Tensor):
            from peppermill.streaming.numbered_batches import calls_of

            return torch.cat([self.predict_proba(*args, **kwargs) for args, kwargs in calls_of(self.model, args[0])])
        outputs: Tensor = self(*args, **kwargs)
        return outputs.sigmoid() if self.likelihood.name == "bernoulli" else outputs.exp()

    def member_log_probs(self, *args: Any, **kwargs: Any) -> Tensor:
        """Every member's own log-probabilities, [m, batch, classes], before averaging and temperature."""
        predictions = self.member_predictions(*args, **kwargs)
        return torch.stack([self.likelihood.outputs(prediction) for prediction in predictions])

    @torch.no_grad()
    def uncertainty(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """How sure the members are of each item, or of each pixel, [batch, ...]: see `Uncertainty`."""
        return member_uncertainty(self.likelihood, self.calibrator, portions(self._outputs(args, kwargs)))

    def member_pass(self, data: Data | Batches, *, uncertainty: bool = False) -> MemberPass:
        """ln L_i(theta_j), [m, N], and the averaged predictions [N, K] for all items of the data."""
        batches = data if isinstance(data, Batches) else Batches(data, self.model)
        total = (batches.count_items() or 0) * self.passes or None
        with progress(f"{self.size} members at sigma = {self.sigma:.4g}", total) as tick:
            calibrator = self.calibrator if uncertainty else None
            return run_members(replace(self.request(batches, tick), keep=True, uncertainty=calibrator), self.sigma)

    def request(self, batches: Batches, tick: Tick) -> Request:
        """These members over these data, for a search or a pass."""
        views = self.recipe.views
        return Request(self.model, self.perturbation, self.likelihood, self.engine, batches, tick, views=views)

    def predict_items(self, data: Data | Batches, *, uncertainty: bool = False) -> Predictions:
        """The ensemble's prediction for all items of the data."""
        return self.predictions_of(self.member_pass(data, uncertainty=uncertainty))

    def predictions_of(self, members: MemberPass) -> Predictions:
        """The ensemble's prediction from a pass that its members have already made."""
        log_probs, log_likelihoods = self.calibrator(members.averaged), members.log_likelihoods
        if self.calibrator != UNCALIBRATED:
            log_likelihoods = self.likelihood.log_likelihoods(log_probs, members.labels)
        rest = self.likelihood, members.examples, members.uncertainty
        return Predictions(log_probs, members.labels, log_likelihoods, *rest)

    def item_effects(self, data: Data | Batches) -> Tensor:
        """ln of the ensemble's likelihood minus the network's for every item, [N]: who is helped and who is hurt.

        Their sum is the PEP effect on the data; the paper expects hard and mislabelled items to carry it.
        """
        batches = data if isinstance(data, Batches) else Batches(data, self.model)
        network = predict(self.model, batches, likelihood=self.likelihood)
        return self.predict_items(batches).log_likelihoods - network.log_likelihoods

    def with_recipe(self, **changes: Any) -> PepEnsemble:
        """The same network with other fields of its recipe, and without the race if this is not what it chose."""
        race = None if changes.keys() & {"sigma", "size", "views", "calibrator"} else self.race
        return PepEnsemble(self.model, replace(self.recipe, **{"race": race, **changes}), self.engine)

    def with_temperature(self, temperature: float) -> PepEnsemble:
        """The same ensemble with its T multiplied by this temperature."""
        if not isinstance(self.calibrator, Temperature):
            raise ValueError(f"{self.calibrator.name} scaling has a T of its own: `pm.fit_temperature` replaces it.")
        return self.with_calibrator(Temperature(self.temperature * temperature))

    def with_calibrator(self, calibrator: Calibrator) -> PepEnsemble:
        """The same members with another calibrator after the averaging."""
        return self.with_recipe(calibrator=calibrator)

    def without_temperature(self) -> PepEnsemble:
        """PEP alone, at the best sigma for T = 1 among those that the search tried, if there was a search."""
        search = replace(self.search, joint=False)
        sigma = search.best.sigma if search.evaluations else self.sigma
        return self.with_recipe(sigma=sigma, calibrator=UNCALIBRATED, search=search)

    def with_size(self, size: int) -> PepEnsemble:
        """The same ensemble with another number of members; the first ones stay the same draws."""
        return self.with_recipe(size=size)

    def with_sigma(self, sigma: float) -> PepEnsemble:
        """The same ensemble at a sigma of your choice."""
        return self.with_recipe(sigma=sigma)

    def with_engine(self, engine: EngineName | Engine = "auto", precision: Precision | None = None) -> PepEnsemble:
        """The same ensemble, run in another way: `engine` and `precision` are those of `fit`."""
        return PepEnsemble(self.model, self.recipe, engine_named(engine, precision))

    def save(self, path: str | Path) -> None:
        """Write the recipe, under 4 kB of JSON: the weights stay where they are, and must be those that were fitted."""
        from peppermill.pep_json import write_recipe

        write_recipe(self.recipe, path, self.model)

    def export(self, path: str | Path, example: Inputs, outputs: Sequence[str] | None = None) -> None:
        """Eq. 9 as one file, .pt2 or .onnx, that gives the averaged probabilities of batches like `example`.

        `outputs=("probabilities", "mutual_information")` selects other outputs, those of `Uncertainty` included.
        """
        from peppermill.export.verify import export_ensemble

        export_ensemble(self, path, example, outputs)

    def extra_repr(self) -> str:
        return f"sigma={self.sigma:.4g}, size={self.size}, temperature={self.temperature:.4g}, seed={self.seed}"

    def __repr__(self) -> str:
        cost = f"{self.passes} forward pass{'es' * (self.passes > 1)}"
        return f"PepEnsemble({self.extra_repr()}): {self.method} of {type(self.model).__name__}, {cost}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{(self.race or self.search).table().html()}"

    def _members(self) -> Members:
        recipe = self.recipe
        return Members(self.model, recipe.selected, recipe.noise, self.size, self.sigma, True, recipe.views)

    def member_predictions(self, *args: Any, **kwargs: Any) -> Tensor:
        """Every member's prediction for one batch, [m, ...], in the likelihood's own form."""
        members = self._members()
        if torch.compiler.is_compiling():
            from peppermill.engines.compiled import compiled_outputs

            outputs = compiled_outputs(members, self.engine.precision, args, kwargs)
        else:
            outputs = torch.cat(list(self._outputs(args, kwargs)))
        return members.in_order(predict_members(self.likelihood, outputs))

    def _outputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
        """What the network gives for one batch with the weights of each member, a few members at a time."""
        for group in self.engine.groups(self._members(), args, kwargs):
            yield group(args, kwargs)
            del group  # or its weights would be alive while the next group's are made


def load(
    path: str | Path, model: nn.Module, *, engine: EngineName | Engine = "auto", precision: Precision | None = None
) -> PepEnsemble:
    """The ensemble that `save` wrote, for the network on which it was fitted; any other network is refused."""
    from peppermill.pep_json import read_recipe

    model = as_network(model)
    return PepEnsemble(model, read_recipe(path, model), engine_named(engine, precision))
