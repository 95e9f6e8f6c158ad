"""What makes an ensemble out of a network: a few hundred bytes of JSON, because a member is a number and not a copy."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peppermill import parameters
from peppermill.datasets.splitting import Split
from peppermill.fingerprint import Fingerprint
from peppermill.likelihood import likelihood_named
from peppermill.noise import Noise
from peppermill.plumbing.files import read_json, write_atomically
from peppermill.tuning.golden import Evaluation, SigmaSearch
from peppermill.types import Likelihood

KIND = "peppermill ensemble"
VERSION = 1
MOST_BYTES = 4000


@dataclass(frozen=True)
class Recipe:
    """sigma*, m, the noise, the selection, the likelihood, T, and how they were found.

    For the network of one fingerprint.
    """

    sigma: float
    size: int
    noise: Noise
    rule: str
    selected: tuple[str, ...]
    likelihood: Likelihood
    temperature: float
    search: SigmaSearch
    fingerprint: Fingerprint
    split: Split | None = None  # the data whose other items are for testing


def versions() -> dict[str, str]:
    """The versions on which a result depends."""
    return {"peppermill": _own_version(), "torch": torch.__version__, "python": platform.python_version()}


def write_recipe(recipe: Recipe, path: str | Path, names: list[str]) -> None:
    """One JSON file under 4 kB; of a very long search, the worst points are left out, but never sigma = 0."""
    evaluations = list(recipe.search.evaluations)
    while len(text := _text(recipe, names, evaluations)) > MOST_BYTES and len(evaluations) > 2:
        evaluations.remove(min(evaluations, key=lambda e: (e.sigma == 0, e.tempered_log_likelihood)))
    write_atomically(path, text)


def read_recipe(path: str | Path, model: nn.Module) -> Recipe:
    """The recipe in a file, its selection by the names of this network."""
    content = read_json(path, KIND, VERSION)
    try:
        recipe = _recipe(content, parameters.names(model))
        _check(recipe, content["selection"]["arrays"])
        return recipe
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}): fit and save the ensemble again."
        ) from error


def read_fingerprint(path: str | Path) -> Fingerprint:
    """The fingerprint of the network for which a file was written."""
    try:
        return Fingerprint(**read_json(path, KIND, VERSION)["fingerprint"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged (no fingerprint of a network): fit and save the ensemble again."
        ) from error


def _text(recipe: Recipe, names: list[str], evaluations: list[Evaluation]) -> str:
    content = {
        "format": KIND,
        "version": VERSION,
        "sigma": recipe.sigma,
        "size": recipe.size,
        "noise": asdict(recipe.noise),
        "temperature": recipe.temperature,
        "likelihood": {"name": recipe.likelihood.name, **recipe.likelihood.settings()},
        "selection": {"rule": recipe.rule, "arrays": len(recipe.selected), "mask": _mask(names, recipe.selected)},
        "search": {
            "items": recipe.search.items,
            "joint": recipe.search.joint,
            "passes": recipe.search.passes,
            "lower": recipe.search.lower,
            "upper": recipe.search.upper,
            "columns": ["sigma", "log_likelihood", "temperature", "tempered_log_likelihood"],
            "evaluations": [_row(evaluation, recipe.search.joint) for evaluation in evaluations],
        },
        "fingerprint": asdict(recipe.fingerprint),
        **({"split": asdict(recipe.split)} if recipe.split else {}),
        "versions": versions(),
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _recipe(content: dict[str, Any], names: list[str]) -> Recipe:
    search, likelihood = content["search"], dict(content["likelihood"])
    return Recipe(
        sigma=float(content["sigma"]),
        size=content["size"],
        noise=Noise(**content["noise"]),
        rule=content["selection"]["rule"],
        selected=_unmask(names, content["selection"]["mask"]),
        likelihood=likelihood_named(likelihood.pop("name"), likelihood),
        temperature=float(content["temperature"]),
        search=SigmaSearch(
            tuple(_evaluation(row) for row in search["evaluations"]),
            search["lower"],
            search["upper"],
            search["items"],
            search["joint"],
            search.get("passes"),  # files of older versions do not have it
        ),
        fingerprint=Fingerprint(**content["fingerprint"]),
        split=Split(**content["split"]) if "split" in content else None,
    )


def _check(recipe: Recipe, arrays: int) -> None:
    """Raise where a number cannot be what `fit` found."""
    if not 0 <= recipe.sigma < math.inf:
        raise ValueError(f"sigma is {recipe.sigma}")
    if not 0 < recipe.temperature < math.inf:
        raise ValueError(f"temperature is {recipe.temperature}")
    if not isinstance(recipe.size, int) or recipe.size < 1:
        raise ValueError(f"size is {recipe.size!r}")
    if not 0 < len(recipe.selected) == arrays:
        raise ValueError(f"{len(recipe.selected)} arrays are selected where {arrays} should be")
    if recipe.split and not 0 < recipe.split.validation < recipe.split.items:
        raise ValueError(f"{recipe.split.validation} of {recipe.split.items} items are split off")


def _row(evaluation: Evaluation, joint: bool) -> list[float | None]:
    """sigma to the last bit, the rest to ten digits; a log-likelihood of minus infinity is null in JSON."""
    values = (evaluation.log_likelihood, evaluation.temperature, evaluation.tempered_log_likelihood)
    rounded = [float(f"{value:.10g}") if math.isfinite(value) else None for value in values]
    return [evaluation.sigma, *(rounded if joint else rounded[:1])]


def _evaluation(row: list[float | None]) -> Evaluation:
    sigma, log_likelihood, temperature, tempered = row if len(row) == 4 else (*row, 1.0, row[1])
    lowest = -math.inf
    return Evaluation(
        float(sigma or 0.0),
        lowest if log_likelihood is None else log_likelihood,
        float(temperature or 1.0),
        lowest if tempered is None else tempered,
    )


def _mask(names: list[str], selected: Iterable[str]) -> str:
    """Which of the network's parameters are selected, as the bits of a hexadecimal number, the first name lowest."""
    chosen = set(selected)
    return hex(sum(1 << k for k, name in enumerate(names) if name in chosen))


def _unmask(names: list[str], mask: str) -> tuple[str, ...]:
    bits = int(mask, 16)
    return tuple(name for k, name in enumerate(names) if bits >> k & 1)


def _own_version() -> str:
    try:
        return version("peppermill")
    except PackageNotFoundError:
        return "not installed"
