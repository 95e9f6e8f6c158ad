"""Several predictors on the same test data -> a Run: scores, paired differences, and who is helped and who is hurt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from peppermill import metrics
from peppermill.data import Batches
from peppermill.ensemble import PepEnsemble
from peppermill.evaluation.comparison import compare_all
from peppermill.evaluation.item_effects import Effects, effects_of, with_images
from peppermill.evaluation.member_count import SizeCurve, size_curve_of
from peppermill.evaluation.scores import evaluate
from peppermill.evaluation.sweep import Sweep, sweep_sigma
from peppermill.old_engines.loop import MemberPass
from peppermill.predictions import Predictions, predict
from peppermill.processes.together import together
from peppermill.report.provenance import provenance
from peppermill.report.run import Method, Run, method_of
from peppermill.types import Data, Likelihood

GRID = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5)  # of the sweep, in units of sigma*


@together
def record_run(
    predictors: Mapping[str, Any],
    data: Data | Batches,
    *,
    title: str,
    sweep: Sweep | None = None,
    class_names: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    likelihood: str | Likelihood | None = None,
    bins: int = metrics.BINS,
    seed: int = 0,
    images: bool = True,
) -> Run:
    """Predictors by name on the same test data, the network itself first: what `write_run` and `write_report` take.

    Each is compared with the first. The items most helped and most hurt are those of the first ensemble without
    temperature, or of the first with one; `images=False` keeps their pictures out of the file. That ensemble without
    temperature also shows how its NLL depends on the number of members.
    """
    if not predictors:
        raise ValueError("`predictors` is empty: give at least the network, as in `{'network': model, 'PEP': pep}`.")
    first = next(iter(predictors.values()))
    batches = data if isinstance(data, Batches) else Batches(data, first)
    shown = _shown_ensemble(predictors)
    predictions: dict[str, Predictions] = {}
    effects, sizes = None, None
    for name, predictor in predictors.items():
        if name == shown and predictions:
            members = predictor.member_pass(batches)
            predictions[name] = predictor.predictions_of(members)
            effects = _effects(next(iter(predictions.values())), members, predictor, name, batches, images)
            sizes = _sizes(members, predictor, name, seed)
        else:
            predictions[name] = predict(predictor, batches, likelihood=likelihood)
    _check_names(class_names, next(iter(predictions.values())))
    methods = compared_methods(
        predictions,
        bins,
        seed,
        {name: fitted(predictor) for name, predictor in predictors.items()},
        {name: forward_passes(predictor) for name, predictor in predictors.items()},
    )
    return Run(
        title=title,
        settings={**(settings or {}), **_recipes(predictors)},
        methods=methods,
        sweep=sweep,
        provenance=provenance(seed, first if isinstance(first, nn.Module) else None),
        class_names=tuple(class_names),
        effects=effects,
        sizes=sizes,
    )


def sweep_around(pep: PepEnsemble, data: Data, *, bins: int = metrics.BINS, batch_size: int = 500) -> Sweep:
    """L(sigma) of this ensemble's own members, from the network to well beyond sigma*, both of which are on the grid.

    The data of the report's slider; the validation data show what the search of sigma saw.
    """
    recipe = pep.recipe
    return sweep_sigma(
        pep.model,
        data,
        [pep.sigma * step for step in GRID] if pep.sigma else None,
        parameters=lambda name, _: name in recipe.selected,
        size=pep.size,
        noise=recipe.noise.law,
        antithetic=recipe.noise.antithetic,
        seed=pep.seed,
        likelihood=pep.likelihood,
        bins=bins,
        batch_size=batch_size,
        engine=pep.engine,
    )


def compared_methods(
    predictions: Mapping[str, Predictions],
    bins: int,
    seed: int,
    fitted: Mapping[str, Mapping[str, float]],
    passes: Mapping[str, int],
) -> tuple[Method, ...]:
    """Scores of every method and paired differences from the first."""
    first, *others = predictions
    compared = compare_all(predictions[first], {name: predictions[name] for name in others}, bins=bins, seed=seed)
    return tuple(
        method_of(
            name,
            found,
            evaluate(found, bins=bins, seed=seed),
            compared.get(name),
            fitted=fitted.get(name, {}),
            forward_passes=passes.get(name, 1),
        )
        for name, found in predictions.items()
    )


def fitted(predictor: Any) -> dict[str, float]:
    """sigma and T, where the predictor has them; T = 1 is none."""
    found = {name: getattr(predictor, name, None) for name in ("sigma", "temperature")}
    return {name: value for name, value in found.items() if value is not None and (name, value) != ("temperature", 1)}


def forward_passes(predictor: Any) -> int:
    """What one prediction costs: m, or 1 where all members are the network itself; a wrapper costs what it wraps."""
    if hasattr(predictor, "predictor"):
        return forward_passes(predictor.predictor)
    return int(getattr(predictor, "size", 1)) if getattr(predictor, "sigma", 1) else 1


def _check_names(class_names: Sequence[str], predictions: Predictions) -> None:
    classes = predictions.log_probs.shape[1]
    if class_names and len(class_names) != classes:
        raise ValueError(f"`class_names` has {len(class_names)} names, and the network tells {classes} classes apart.")


def _shown_ensemble(predictors: Mapping[str, Any]) -> str | None:
    """The ensemble whose members are shown: where T is 1 its probability is the mean of theirs."""
    ensembles = {
        name: predictor
        for name, predictor in predictors.items()
        if isinstance(predictor, PepEnsemble) and predictor.sigma and predictor.likelihood.name != "gaussian"
    }
    return min(ensembles, key=lambda name: ensembles[name].temperature != 1, default=None)


def _effects(
    network: Predictions, members: MemberPass, pep: PepEnsemble, name: str, batches: Batches, images: bool
) -> Effects:
    found = replace(effects_of(network, members, pep.temperature), method=name)
    return with_images(found, batches) if images else found


def _sizes(members: MemberPass, pep: PepEnsemble, name: str, seed: int) -> SizeCurve | None:
    """NLL against the number of members, where the pass at hand is enough for it: without a temperature."""
    return replace(size_curve_of(pep, members, seed=seed), method=name) if pep.temperature == 1 else None


def _recipes(predictors: Mapping[str, Any]) -> dict[str, Any]:
    """How each ensemble was made and how its sigma was found."""
    return {name: _recipe(predictor) for name, predictor in predictors.items() if isinstance(predictor, PepEnsemble)}


def _recipe(pep: PepEnsemble) -> dict[str, Any]:
    recipe, search = pep.recipe, pep.search
    return {
        "sigma": pep.sigma,
        "temperature": pep.temperature,
        "size": pep.size,
        "noise": recipe.noise.law,
        "antithetic": recipe.noise.antithetic,
        "seed": pep.seed,
        "parameters": recipe.rule,
        "likelihood": recipe.likelihood.name,
        "validation items": search.items,
        "sigmas tried": len(search.evaluations),
        "forward passes while tuning": search.passes,
    }
