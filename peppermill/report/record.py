"""Several predictors on the same test data -> a Run: scores, paired differences, the items most helped and hurt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from peppermill import metrics
from peppermill.calibrators import UNCALIBRATED
from peppermill.data import Batches
from peppermill.ensemble import PepEnsemble
from peppermill.evaluation.comparison import compare, compare_all
from peppermill.evaluation.item_effects import effects_of, inputs_of, with_images
from peppermill.evaluation.member_count import size_curve
from peppermill.evaluation.sweep import Sweep, sweep_ensemble
from peppermill.predictions import Predictions, likelihood_of, predict
from peppermill.report.run import Run, method_of, plain, provenance
from peppermill.report.uncertain_items import uncertain_items, with_pictures
from peppermill.report.verdict import judged, rival_of
from peppermill.types import Data, LikelihoodLike

if TYPE_CHECKING:
    from peppermill.evaluation.abstention import Abstention

GRID = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5)  # of the sweep, in units of sigma*


def record_run(
    predictors: Mapping[str, Any],
    data: Data | Batches,
    *,
    title: str,
    sweep: Sweep | None = None,
    class_names: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    likelihood: LikelihoodLike | None = None,
    bins: int = metrics.BINS,
    seed: int = 0,
    images: bool = True,
    rule: Abstention | None = None,
) -> Run:
    """The run of `predictors` by name on the same test data, the network itself first.

    Each is compared with the first. The items most helped and most hurt, and the NLL against the number of members, are
    those of the first ensemble, preferably one without temperature; `images=False` keeps pictures out of the file. The
    run is about the last one that `calibrate` chose, if any, and keeps its race. It also holds the `title`, a `sweep`
    for the report's slider, `class_names`, your own `settings`, and what a `rule` of `abstain` keeps of these items.
    """
    if not predictors:
        raise ValueError("`predictors` is empty: give at least the network, as in `{'network': model, 'PEP': pep}`.")
    first = next(iter(predictors.values()))
    batches = data if isinstance(data, Batches) else Batches(data, first)
    ensembles = {name: pep for name, pep in predictors.items() if isinstance(pep, PepEnsemble)}
    # Without a temperature the ensemble's probability is the mean of its members', so prefer such an ensemble.
    noisy = [name for name, pep in ensembles.items() if pep.sigma and pep.likelihood.name != "gaussian"]
    shown = min(noisy, key=lambda name: ensembles[name].calibrator != UNCALIBRATED, default=None)
    doubtful = shown or next(reversed(ensembles), next(iter(predictors)))  # whose uncertainty is shown
    predictions: dict[str, Predictions] = {}
    effects, sizes = None, None
    for name, predictor in predictors.items():
        if name == shown and predictions:
            members = predictor.member_pass(batches, uncertainty=True)
            predictions[name] = predictor.predictions_of(members)
            network = next(iter(predictions.values()))
            effects = replace(effects_of(network, members, predictor.calibrator), method=name)
            if predictor.calibrator == UNCALIBRATED:  # otherwise the curve needs a pass of its own
                sizes = replace(size_curve(predictor, members, seed=seed), method=name)
        else:
            chosen = likelihood_of(predictor, likelihood, *predictors.values())
            predictions[name] = predict(predictor, batches, likelihood=chosen, uncertainty=name == doubtful)
    baseline, *others = predictions
    classes = predictions[baseline].log_probs.shape[1]
    if class_names and len(class_names) != classes:
        raise ValueError(f"`class_names` has {len(class_names)} names, but the network has {classes} classes.")
    doubt, items = uncertain_items(doubtful, predictions[doubtful]), len(predictions[doubtful].labels)
    if images:
        count = doubt["examples"] if doubt else items
        named = effects if effects and count == items else None  # pixels have no pictures
        numbers = {one["item"] for one in doubt["shown"]} if doubt else set()
        inputs = inputs_of(batches, numbers | (named.shown if named else set()), count)
        effects = with_images(named, inputs) if named else effects
        doubt = doubt and with_pictures(doubt, predictors[doubtful], inputs, predictions[doubtful])
    compared = compare_all(predictions[baseline], {name: predictions[name] for name in others}, bins=bins, seed=seed)
    methods = tuple(
        method_of(
            name,
            found,
            bins,
            seed,
            comparison=compared.get(name),
            fitted=fitted(predictors[name]),
            forward_passes=forward_passes(predictors[name]),
        )
        for name, found in predictions.items()
    )
    races = [{"method": name, **vars(pep.race)} for name, pep in ensembles.items() if pep.race]
    run = Run(
        title=title,
        settings={**(settings or {}), **{name: _recipe(pep) for name, pep in ensembles.items()}},
        methods=methods,
        sweep=sweep,
        provenance=provenance(seed, first if isinstance(first, nn.Module) else None),
        class_names=tuple(class_names),
        effects=effects,
        sizes=sizes,
        uncertainty=doubt,
        abstention=_kept(rule, predictors, predictions) if rule else None,
        race=races[-1] if races else None,
    )
    content = plain(run)
    method, rival = judged(content), rival_of(content)
    if method and rival:
        pair = compare(predictions[rival["name"]], predictions[method["name"]], bins=bins, seed=seed)
        run = replace(run, rival={"method": method["name"], "rival": rival["name"], "nll": pair.nll})
    return run


def sweep_around(pep: PepEnsemble, data: Data, *, bins: int = metrics.BINS, batch_size: int = 500) -> Sweep:
    """L(sigma) of this ensemble's own members, on a grid from 0 to well beyond sigma* that includes sigma*.

    The report's slider shows it. With the validation data, it shows what the search for sigma saw.
    """
    sigmas = [pep.sigma * step for step in GRID] if pep.sigma else None
    return sweep_ensemble(pep, data, sigmas, bins=bins, batch_size=batch_size)


def fitted(predictor: Any) -> dict[str, float]:
    """sigma and T of a predictor that has them, without T = 1, and without sigma = 0 if a calibrator does the work."""
    found = {name: getattr(predictor, name, None) for name in ("sigma", "temperature")}
    if found["sigma"] == 0 and getattr(predictor, "calibrator", UNCALIBRATED) != UNCALIBRATED:
        del found["sigma"]
    return {name: value for name, value in found.items() if value is not None and (name, value) != ("temperature", 1)}


def forward_passes(predictor: Any) -> int:
    """The cost of one prediction; a wrapper costs no more."""
    if hasattr(predictor, "predictor"):
        return forward_passes(predictor.predictor)
    return int(getattr(predictor, "passes", getattr(predictor, "size", 1)))


def _kept(rule: Abstention, predictors: Mapping[str, Any], predictions: Mapping[str, Predictions]) -> dict[str, Any]:
    """What a rule promises, and what it keeps of the test items with how many errors."""
    name = next((name for name, predictor in predictors.items() if predictor is rule.predictor), None)
    if name is None:
        raise ValueError("`rule` belongs to none of `predictors`: pass the predictor that `pm.abstain` was given.")
    confidence, correct = metrics.top_label(predictions[name].log_probs, predictions[name].labels)
    kept = confidence > rule.threshold
    error = 1 - float(correct[kept].double().mean()) if bool(kept.any()) else None
    return {"method": name, "risk": rule.risk, "coverage": float(kept.double().mean()), "error": error}


def _recipe(pep: PepEnsemble) -> dict[str, Any]:
    """The settings of an ensemble, and how its sigma was found."""
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
