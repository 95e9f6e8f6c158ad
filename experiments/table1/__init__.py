"""Table 1: pre-trained networks with the paper's settings, and our columns beside its own. Nothing is trained.

Each seed of the noise is a stage of its own: a run that was killed continues with the first seed that is missing.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import peppermill as pm
from experiments.image_sets import read_image_set
from experiments.resume import Stages, fingerprint, read_result, write_result
from experiments.settings import Machine, arithmetic
from experiments.table1.imagenet import Pictures, listing, pictures
from experiments.table1.imagenet_networks import NETWORKS, Network, network_named
from experiments.table1.packages import PACKAGES, packaged_weights
from experiments.table1.split_methods import METHODS, PAIRS, SCORES, examine, mixed, passes_of, splits_of

KIND = "peppermill table 1"
GRID_STEPS, GRID_REACH = 7, 1.5  # of a grid without printed values, beyond the larger sigma that `pm.fit` finds
SMALLEST_REACH = 0.03  # of that grid, in units of the root mean square of the perturbed weights


@dataclass(frozen=True)
class Settings(Machine):
    """What to run."""

    precision: str = "float32"  # of products on a GPU: float32 or tf32; or float16, for the members alone
    networks: tuple[str, ...] = tuple(NETWORKS)[:6]  # Section 3.1
    imagenet: Path | None = None  # the folder of the validation images
    labels: Path | None = None  # their classes, if the folder is flat
    weights: Path | None = None  # a file, or a folder of files with the networks' names
    tuning: int = 5000  # Section 3.1: the first 5,000 images tune, the other 45,000 test
    splits: int = 1  # Section 3.1
    noise_seeds: int = 1  # Section 3.1
    images: int | None = None  # only the first images
    tuning_size: int = 5  # members while tuning: Section 3.1
    size: int = 10  # members at test: Section 3.1
    parameters: str = "conv"  # Section 3.1: the weights of all convolutional layers
    bins: int = 10  # the authors' scripts
    minimum_count: int = 21  # the authors' scripts: bins of 20 images or fewer are dropped

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_seeds < 1:
            raise ValueError(f"`noise_seeds={self.noise_seeds}` must be at least 1.")

    @property
    def engine(self) -> Any:
        """How the members run."""
        return "auto:float16" if self.precision == "float16" else "auto"


def main(settings: Settings) -> dict[str, Any]:
    """Every network of the table: computed, continued, or read if it is done."""
    rows = {name: network_named(name) for name in settings.networks}
    return {name: network_row(name, network, settings) for name, network in rows.items()}


def network_row(name: str, network: Network, settings: Settings) -> dict[str, Any]:
    """One network: every method on every split with every seed of the noise."""
    path, data = settings.out / f"table1-{name}.json", row_pictures(network, settings)
    splits = splits_of(len(data.labels), settings.tuning, settings.splits)
    model = network.build(weights_of(name, settings)).to(settings.device)
    made_of = {
        "images": data.digest,
        "weights": fingerprint(*model.state_dict().values()),
        "settings": settings.identity(),
        "splits": [
            {"seed": seed or None, "tuning": len(tuning), "test": len(test), "digest": fingerprint(tuning)}
            for seed, (tuning, test) in enumerate(splits)
        ],
    }
    known = read_result(path, KIND) or {}
    if all(known.get(key) == value for key, value in made_of.items()):
        settings.say(f"{network.title}: done, in {path}")
        return known
    began, stages = time.monotonic(), Stages(settings.checkpoints / "table1", data.digest)
    identity = {**made_of, "settings": {k: v for k, v in settings.identity().items() if k != "noise_seeds"}}

    with arithmetic(settings.precision), warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)  # a best sigma of 0, or at an end, is a number of the table

        @cache
        def every() -> tuple[Tensor, Tensor]:
            """All images: not needed where every seed is done."""
            return prepared_images(network, data, model, settings)

        @cache
        def bare() -> Tensor:
            return pm.predict(model, every()).log_probs.float()

        def found_grid() -> list[float]:
            first = every()[0][splits[0][0]], every()[1][splits[0][0]]
            found = pm.fit(model, first, parameters=settings.parameters, temperature=True)
            largest = GRID_REACH * max(found.sigma, found.without_temperature().sigma)
            largest = max(largest, SMALLEST_REACH * found.perturbation.scale())
            return [largest * step / GRID_STEPS for step in range(1, GRID_STEPS + 1)]

        grid = network.sigmas or tuple(stages.json(f"{name}-grid", identity, found_grid))
        each = []
        for seed in range(settings.noise_seeds):

            def one(seed: int = seed) -> dict[str, Any]:
                passes = passes_of(model, every(), bare(), settings, seed, grid, zero=not network.sigmas)
                return examine(passes, splits, settings.bins, settings.minimum_count)

            each.append(stages.json(f"{name}-seed-{seed}", {**identity, "grid": list(grid)}, one))
            numbers = {method: np.mean(column["scores"]["nll"]) for method, column in each[-1]["columns"].items()}
            shown = ", ".join(f"{method} {nll:.4f}" for method, nll in numbers.items())
            settings.say(f"{network.title}, seed {seed + 1} of {settings.noise_seeds}: NLL {shown}")

    def of_images(method: str, score: str) -> np.ndarray:
        """[images, seeds]"""
        return np.array([one["images"][method][score] for one in each], dtype=float).T

    content = {
        "network": name,
        "title": network.title,
        "note": network.note,
        "package": asdict(PACKAGES[name]) if name in PACKAGES else None,
        "preparation": asdict(network.prepare) | {"short": network.short, "crop": network.crop},
        "perturbed": {"rule": settings.parameters},
        "grid": grid,
        "items": {"all": len(data.labels), "tuning": len(splits[0][0]), "test": len(splits[0][1])},
        "columns": {
            method: {
                "scores": {score: _of_seeds(each, method, score) for score in (*SCORES, "ece")},
                "sigma": [one["columns"][method]["sigma"] for one in each],
                "temperature": [one["columns"][method]["temperature"] for one in each],
            }
            for method in METHODS
        },
        "comparisons": {
            f"{second} - {first}": {
                score: mixed(of_images(second, score) - of_images(first, score)) for score in SCORES
            }
            for first, second in PAIRS
        },
        "reliability": {method: column["reliability"] for method, column in each[0]["columns"].items()},
        "seconds": time.monotonic() - began,
        "machine": {"device": settings.device, "precision": settings.precision},
        **made_of,
    }
    settings.say(f"{network.title}: writing {path}")
    return write_result(path, KIND, content, 0)


def network_and_images(name: str, settings: Settings) -> tuple[Any, Any, Any]:
    """A network of the table, the images that tune on its first split, and those that test, each with their classes."""
    network = network_named(name)
    data, model = row_pictures(network, settings), network.build(weights_of(name, settings)).to(settings.device)
    inputs, labels = prepared_images(network, data, model, settings)
    tuning, test = splits_of(len(data.labels), settings.tuning, 1)[0]
    return model, (inputs[tuning], labels[tuning]), (inputs[test], labels[test])


def prepared_images(network: Network, data: Pictures, model: Any, settings: Any) -> tuple[Tensor, Tensor]:
    """All images as the network takes them, and their classes, on the device: every pass reads them there."""
    last = type(model).__module__.startswith("keras")  # Keras' order of dimensions
    parts = []
    for pixels in data.pixels.split(500):
        inputs = network.prepare(pixels.to(settings.device))
        parts.append(inputs.movedim(1, 3).contiguous() if last else inputs)
    return torch.cat(parts), data.labels.to(settings.device)


def _of_seeds(each: list[dict[str, Any]], method: str, score: str) -> list[list[float]]:
    """[seeds][splits]"""
    return [one["columns"][method]["scores"][score] for one in each]


def row_pictures(network: Network, settings: Settings) -> Pictures:
    """The images of a row, in the official order."""
    if network.data != "imagenet":
        read = read_image_set(network.data, settings.data)
        held_out = min(network.held_out, len(read.train[1]))
        unseen = [part[len(part) - held_out :] for part in read.train]
        pixels, labels = (torch.cat(pair) for pair in zip(unseen, read.test, strict=True))
        found = Pictures(pixels, labels, fingerprint(pixels, labels))
    elif settings.imagenet is None:
        raise ValueError(f"{network.title} needs the validation images: name their folder with `--imagenet`.")
    else:
        source = listing(settings.imagenet, network.classes, settings.labels)
        found = pictures(source, network.short, network.crop, settings.checkpoints, settings.say)
    first = slice(0, settings.images)
    digest = found.digest if settings.images is None else f"{found.digest}-{settings.images}"
    return Pictures(found.pixels[first], found.labels[first], digest)


def weights_of(name: str, settings: Settings) -> Path | None:
    """The file of a network's weights: the one of `--weights`, or the one in that folder with the network's name."""
    given = settings.weights
    if given is None and name in PACKAGES:
        return packaged_weights(name, settings.checkpoints / "packages")
    if given is None or not given.is_dir():
        if given is not None and (len(settings.networks) > 1 or not given.is_file()):
            raise ValueError(
                f"`--weights {given}` must be the file of one network, or a folder with a file for each of them, such "
                f"as {name}.safetensors."
            )
        return given
    found = sorted(path for path in given.iterdir() if path.name.startswith(f"{name}."))
    if not found and name in PACKAGES:
        return packaged_weights(name, settings.checkpoints / "packages")
    if not found:
        raise ValueError(
            f"the folder {given} has no file {name}.safetensors, {name}.h5 or {name}.th: put one there, or leave "
            "that network out of `--networks`."
        )
    return found[0]
