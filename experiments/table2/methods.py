"""The columns of Table 2: the paper's six methods in its order, then ours. Each yields a predictor for each network."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import peppermill as pm
from experiments.resume import fingerprint
from experiments.settings import paper_layers
from experiments.table2.work import Work

#: The paper's search: the midpoint of the bracket at the start of the tenth iteration, after nine sections of 0 to 0.1.
PAPER_SEARCH = pm.Golden(iterations=9, lower=0.0, upper=0.1)  # the authors' scripts

#: The scores of both tables, as fractions.
SCORES: dict[str, Callable[..., float]] = {
    "nll": pm.metrics.nll,
    "brier": pm.metrics.brier_score,
    "ece": pm.metrics.expected_calibration_error,
    "error": pm.metrics.error_rate,
}


def baseline(work: Work) -> Iterable[Any]:
    """The network as it is."""
    return work.networks


def pep(work: Work) -> Iterator[Any]:
    """PEP as the paper did it: its layers, its search, 25 members at test."""
    for seed, network in zip(work.settings.seeds, work.networks, strict=True):
        yield paper_pep(work, network, pm.Noise("gaussian", antithetic=False, seed=seed))


def temperature(work: Work) -> Iterator[Any]:
    """Temperature scaling: one T for each network by maximum validation likelihood."""
    for network in work.networks:
        yield pm.fit_temperature(network, work.data.validation)


def mc_dropout(work: Work) -> Iterator[Any]:
    """MC dropout: probabilities averaged over 25 passes with dropout active."""
    for seed, network in zip(work.settings.seeds, work.dropout_networks(), strict=True):
        yield pm.McDropout(network, work.settings.dropout_passes, seed=seed)


def swa(work: Work) -> Iterable[Any]:
    """Stochastic weight averaging."""
    return work.averaged_networks()


def deep_ensembles(work: Work) -> Iterator[Any]:
    """Deep ensembles: the mean probability of 10 of the 25 networks, for 100 random choices of the 10."""
    size, generator = min(work.settings.ensemble_size, len(work.networks)), random.Random(0)
    for _ in range(work.settings.ensemble_draws):
        yield pm.DeepEnsemble(generator.sample(work.networks, size))


def pep_temperature(work: Work) -> Iterator[Any]:
    """Ours: sigma and T tuned together, on the paper's layers."""
    for seed, network in zip(work.settings.seeds, work.networks, strict=True):
        yield _with_all_members(work, _joint_fit(work, network, seed, paper_layers))


def pep_kernels_temperature(work: Work) -> Iterator[Any]:
    """Ours: every kernel perturbed, sigma and T tuned together."""
    for seed, network in zip(work.settings.seeds, work.networks, strict=True):
        yield _with_all_members(work, _joint_fit(work, network, seed, "kernels"))


def pep_antithetic(work: Work) -> Iterator[Any]:
    """Ours: members in pairs +epsilon, -epsilon, on the paper's layers; an even number of them."""
    for seed, network in zip(work.settings.seeds, work.networks, strict=True):
        noise = pm.Noise("gaussian", antithetic=True, seed=seed)
        found = work.fit(network, work.settings.our_tuning_size, noise, parameters=paper_layers)
        yield found.with_size(max(1, work.settings.size // 2 * 2))


def pep_kernels(work: Work) -> Iterator[Any]:
    """Ours: every kernel perturbed. The search for sigma and T also pays for every sigma of the search without T."""
    for seed, network in zip(work.settings.seeds, work.networks, strict=True):
        yield _joint_fit(work, network, seed, "kernels").without_temperature().with_size(work.settings.size)


def pep_default(work: Work) -> Iterator[Any]:
    """The library's own default with T: ten members in pairs, every kernel perturbed."""
    for seed, network in zip(work.settings.seeds, work.networks, strict=True):
        yield work.fit(network, work.settings.our_tuning_size, pm.Noise(seed=seed), temperature=True)


def race(work: Work) -> Iterator[Any]:
    """What `pm.calibrate` chooses for at most ten passes; each choice is kept in a file, for a run that continues."""
    views = "horizontal_flip" if work.row.data.startswith("cifar") else None  # only photographs can be mirrored
    data, passes = work.data.validation, work.settings.our_tuning_size
    for seed, network in zip(work.settings.seeds, work.networks, strict=True):
        weights = fingerprint(*network.state_dict().values())
        path = work.stages.folder / f"{work.name}-race-{passes}-{seed}-{weights}.json"
        if not path.is_file():
            pm.calibrate(network, data, passes, views=views, noise=pm.Noise(seed=seed), **work.options).save(path)
        yield pm.load(path, network, engine=work.options.get("engine", "auto"))


#: The columns: the paper's in its order, then ours. A new one is one function and one row here.
METHODS: dict[str, Callable[[Work], Iterable[Any]]] = {
    "baseline": baseline,
    "pep": pep,
    "temperature": temperature,
    "mc_dropout": mc_dropout,
    "swa": swa,
    "deep_ensembles": deep_ensembles,
    "pep_temperature": pep_temperature,
    "pep_kernels_temperature": pep_kernels_temperature,
    "pep_antithetic": pep_antithetic,
    "pep_kernels": pep_kernels,
    "pep_default": pep_default,
    "race": race,
}

TESTED_AGAINST = ("baseline", "temperature")  # columns, by every other one


def column(work: Work, method: str) -> dict[str, Any]:
    """The scores of every predictor of a method on the test images, and what was fitted for each."""
    scores: dict[str, list[float]] = {score: [] for score in SCORES}
    fitted: dict[str, list[float]] = {"sigma": [], "temperature": []}
    items: list[Tensor] = []  # of each predictor, the negative log-likelihood of every test image
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)  # a best sigma of 0 is a number of the table here
        for predictor in METHODS[method](work):
            found = pm.predict(predictor, work.data.test)
            items.append(-found.log_likelihoods)
            for score, value in scores_of(found.log_probs, found.labels, work.settings.bins).items():
                scores[score].append(value)
            for name, values in fitted.items():
                values += [float(getattr(predictor, name))] if hasattr(predictor, name) else []
    means = {score: sum(values) / len(values) for score, values in scores.items()}
    work.settings.say(
        f"{work.row.title}: {method}: NLL {means['nll']:.4f}, Brier {means['brier']:.4f}, "
        f"ECE {100 * means['ece']:.3f} %, error {100 * means['error']:.3f} %"
    )
    shown = {
        name: values for name, values in fitted.items() if any(value != (name == "temperature") for value in values)
    }
    over = f"{work.settings.ensemble_draws} draws" if method == "deep_ensembles" else "models"
    by_item = torch.stack(items).mean(dim=0).cpu()
    return {"scores": scores, "over": over, **shown, "nll_by_item": [round(value, 6) for value in by_item.tolist()]}


def item_tests(columns: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Paired tests over the test images of the NLL, mean over models: every method against two of the paper's."""
    found = {}
    for method, other in ((m, o) for o in TESTED_AGAINST for m in columns if m != o):
        difference = np.subtract(columns[method]["nll_by_item"], columns[other]["nll_by_item"])
        error = float(stats.sem(difference))
        p = float(2 * stats.norm.sf(abs(difference.mean()) / error)) if error else 1.0
        found[f"{method} - {other}"] = {"difference": float(difference.mean()), "standard_error": error, "p": p}
    return found


def scores_of(log_probs: Tensor, labels: Tensor, bins: int) -> dict[str, float]:
    """The four scores of Table 2."""
    options = {"ece": {"bins": bins}}
    return {name: float(score(log_probs, labels, **options.get(name, {}))) for name, score in SCORES.items()}


def paper_pep(work: Work, network: Any, noise: pm.Noise) -> pm.PepEnsemble:
    """PEP with the paper's layers, search and numbers of members."""
    found = work.fit(network, work.row.tuning_size, noise, parameters=paper_layers, search=PAPER_SEARCH)
    return found.with_sigma((found.search.lower + found.search.upper) / 2).with_size(work.settings.size)


def _joint_fit(work: Work, network: Any, seed: int, parameters: Any) -> pm.PepEnsemble:
    """sigma and T tuned together with the library's own search; fitted once for the columns that share it."""
    if (seed, parameters) not in work.fits:
        noise = pm.Noise("gaussian", antithetic=False, seed=seed)
        found = work.fit(network, work.settings.our_tuning_size, noise, parameters=parameters, temperature=True)
        work.fits[seed, parameters] = found
    return work.fits[seed, parameters]


def _with_all_members(work: Work, found: pm.PepEnsemble) -> pm.PepEnsemble:
    """The ensemble that tests has more members than the one that was tuned: T is fitted again."""
    refitted: pm.PepEnsemble = pm.fit_temperature(found.with_size(work.settings.size), work.data.validation)
    return refitted
