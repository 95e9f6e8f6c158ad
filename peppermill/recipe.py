"""pep.json: what turns a network into an ensemble, and the fingerprint of the network to which it belongs.

A member is a number and not a copy of the weights, so the file is small; on other weights it means nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from peppermill import parameters
from peppermill.likelihood import likelihood_named
from peppermill.noise import Noise
from peppermill.plumbing.files import read_json, write_atomically
from peppermill.tuning.result import Evaluation, SigmaSearch
from peppermill.types import Likelihood

if TYPE_CHECKING:
    from peppermill.datasets.splitting import Split

KIND = "peppermill ensemble"
VERSION = 1
MAX_FILE_BYTES = 4000


@dataclass(frozen=True)
class Fingerprint:
    """Counts and digests of a network's state, coarse to fine, so that a difference can be named."""

    tensors: int
    numbers: int
    types: str
    architecture: str  # names and shapes
    parameters: str  # values
    buffers: str  # values


@dataclass(frozen=True)
class Recipe:
    """sigma*, m, the noise, the selection, the likelihood, T, and how they were found, for one network."""

    sigma: float
    size: int
    noise: Noise
    rule: str
    selected: tuple[str, ...]
    likelihood: Likelihood
    temperature: float
    search: SigmaSearch
    fingerprint: Fingerprint
    split: Split | None = None  # the items on which sigma was tuned; the others are for testing


def fingerprint(model: nn.Module) -> Fingerprint:
    """The fingerprint of the network as it is now, the same on every device."""
    state, learned = model.state_dict(), dict(model.named_parameters(remove_duplicate=False))
    return Fingerprint(
        tensors=len(state),
        numbers=sum(value.numel() for value in state.values()),
        types=",".join(sorted({str(value.dtype).removeprefix("torch.") for value in state.values()})),
        architecture=_digest(f"{name}{list(value.shape)}".encode() for name, value in state.items()),
        parameters=_digest(_bytes(value) for name, value in state.items() if name in learned),
        buffers=_digest(_bytes(value) for name, value in state.items() if name not in learned),
    )


def difference(saved: Fingerprint, found: Fingerprint) -> str:
    """The difference in words, empty if there is none."""
    if (saved.tensors, saved.numbers) != (found.tensors, found.numbers):
        return (
            f"it has {found.tensors} arrays with {found.numbers:,} numbers, the saved one has {saved.tensors} with "
            f"{saved.numbers:,}: another architecture"
        )
    if saved.architecture != found.architecture:
        return "its arrays have other names or shapes: another architecture"
    if saved.types != found.types:
        return f"its numbers are {found.types}, the saved one's are {saved.types}: convert it first"
    if saved.parameters != found.parameters:
        return "its parameters have other values: it was trained further, or from another seed"
    if saved.buffers != found.buffers:
        return "its parameters are the same, but its buffers (batch-norm statistics, say) have other values"
    return ""


def versions() -> dict[str, str]:
    """The versions on which a result depends."""
    try:
        own = version("peppermill")
    except PackageNotFoundError:
        own = "not installed"
    return {"peppermill": own, "torch": torch.__version__, "python": platform.python_version()}


def write_recipe(recipe: Recipe, path: str | Path, names: list[str]) -> None:
    """One JSON file under 4 kB; a very long search loses its worst points, but never sigma = 0."""
    evaluations = list(recipe.search.evaluations)
    while len(text := _text(recipe, names, evaluations)) > MAX_FILE_BYTES and len(evaluations) > 2:
        evaluations.remove(min(evaluations, key=lambda e: (e.sigma == 0, e.tempered_log_likelihood)))
    write_atomically(path, text)


def read_recipe(path: str | Path, model: nn.Module) -> Recipe:
    """The recipe in a file; its selection is read by the names of this network's parameters."""
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
    search, selected = recipe.search, set(recipe.selected)
    mask = sum(1 << k for k, name in enumerate(names) if name in selected)  # the first name is the lowest bit
    content = {
        "format": KIND,
        "version": VERSION,
        "sigma": recipe.sigma,
        "size": recipe.size,
        "noise": asdict(recipe.noise),
        "temperature": recipe.temperature,
        "likelihood": {"name": recipe.likelihood.name, **recipe.likelihood.settings()},
        "selection": {"rule": recipe.rule, "arrays": len(recipe.selected), "mask": hex(mask)},
        "search": {
            **{name: getattr(search, name) for name in ("items", "joint", "passes", "lower", "upper")},
            "columns": ["sigma", "log_likelihood", "temperature", "tempered_log_likelihood"],
            "evaluations": [_row(evaluation, search.joint) for evaluation in evaluations],
        },
        "fingerprint": asdict(recipe.fingerprint),
        **({"split": asdict(recipe.split)} if recipe.split else {}),
        "versions": versions(),
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _recipe(content: dict[str, Any], names: list[str]) -> Recipe:
    from peppermill.datasets.splitting import Split  # here, so that a recipe does not import the reading of data

    search, likelihood, noise = content["search"], dict(content["likelihood"]), content["noise"]
    mask = int(content["selection"]["mask"], 16)
    evaluations = []
    for row in search["evaluations"]:
        sigma, *values = row if len(row) == 4 else (*row, 1.0, row[1])
        evaluations.append(Evaluation(float(sigma), *(-math.inf if value is None else value for value in values)))
    return Recipe(
        sigma=float(content["sigma"]),
        size=content["size"],
        noise=Noise(noise["law"], noise["antithetic"], noise["seed"]),
        rule=content["selection"]["rule"],
        selected=tuple(name for k, name in enumerate(names) if mask >> k & 1),
        likelihood=likelihood_named(likelihood.pop("name"), likelihood),
        temperature=float(content["temperature"]),
        search=SigmaSearch(
            tuple(evaluations),
            search["lower"],
            search["upper"],
            search["items"],
            search["joint"],
            search.get("passes"),  # the first files of version one do not have it
        ),
        fingerprint=Fingerprint(**content["fingerprint"]),
        split=Split(**content["split"]) if "split" in content else None,
    )


def _check(recipe: Recipe, arrays: int) -> None:
    """Raise if a number cannot be what `fit` found."""
    if not 0 <= recipe.sigma < math.inf:
        raise ValueError(f"sigma is {recipe.sigma}")
    if not 0 < recipe.temperature < math.inf:
        raise ValueError(f"temperature is {recipe.temperature}")
    if not isinstance(recipe.size, int) or recipe.size < 1:
        raise ValueError(f"size is {recipe.size!r}")
    if not 0 < len(recipe.selected) == arrays:
        raise ValueError(f"{len(recipe.selected)} arrays are selected instead of {arrays}")
    if recipe.split and not 0 < recipe.split.validation < recipe.split.items:
        raise ValueError(f"{recipe.split.validation} of {recipe.split.items} items are split off")


def _row(evaluation: Evaluation, joint: bool) -> list[float | None]:
    """sigma to the last bit, the rest to ten digits; minus infinity is null in JSON."""
    values = (evaluation.log_likelihood, evaluation.temperature, evaluation.tempered_log_likelihood)
    rounded = [float(f"{value:.10g}") if math.isfinite(value) else None for value in values]
    return [evaluation.sigma, *(rounded if joint else rounded[:1])]


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _bytes(value: Tensor) -> bytes:
    return bytes(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
