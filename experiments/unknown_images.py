"""Images of other data sets: how well do confidence, entropy and mutual information tell them from known ones?

Networks for Fashion-MNIST see MNIST and notMNIST, networks for CIFAR-10 see CIFAR-100. Every network is a stage of its
own: a run that was killed continues with the first one that is missing. docs/shift.md is written from the results.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import peppermill as pm
from experiments.image_sets import read_image_set
from experiments.page.shift_page import write_page
from experiments.resume import Stages, fingerprint, write_result
from experiments.settings import Machine, arithmetic
from experiments.settings import Settings as Table2Settings
from experiments.table1 import weights_of
from experiments.table1.imagenet_networks import NETWORKS
from experiments.table2.work import Work

KIND = "peppermill unknown images"
OUTSIDE = {"fashion-mnist": ("mnist", "notmnist"), "cifar10": ("cifar100",)}


@dataclass(frozen=True)
class Settings(Machine):
    """What to run."""

    out: Path = Path("results/shift")  # the folder of the results
    networks: tuple[str, ...] = ("demo",)  # demo, a network of Table 1 for CIFAR-10, or a row of Table 2
    models: int = 3  # networks of a row of Table 2
    weights: Path | None = None  # a file, or a folder of files with the networks' names
    images: int | None = None  # at most this many images of each part
    size: int = 10  # members: the default of `pm.fit`
    resamples: int = 200  # of the images, for intervals


@dataclass(frozen=True)
class Case:
    """One network, images that tune it, images like them with labels, and images of other data sets."""

    model: Any
    tuning: tuple[Tensor, Tensor]
    inside: tuple[Tensor, Tensor]
    outside: dict[str, Tensor]


def main(settings: Settings) -> dict[str, Any]:
    """Every network, into unknown-NAME.json; then the page."""
    found = {}
    for name in settings.networks:
        began, each, digest = time.monotonic(), list[dict[str, Any]](), ""
        for number, case in enumerate(cases(name, settings)):
            digest = digest or fingerprint(*case.tuning, *case.inside, *case.outside.values())
            stages = Stages(settings.checkpoints / "unknown", digest)
            made_of = {"size": settings.size, "resamples": settings.resamples, "model": number}
            with arithmetic(settings.precision), warnings.catch_warnings():
                warnings.simplefilter("ignore", pm.PepWarning)  # a best sigma of 0 is a number of the table
                each.append(stages.json(f"{name}-{number}", made_of, lambda case=case: examine(case, settings)))
            settings.say(f"{name}, network {number + 1}: done")
        content = {"network": name, "models": each, "seconds": time.monotonic() - began, "data": digest}
        content |= {"settings": settings.identity()}
        found[name] = write_result(settings.out / f"unknown-{name}.json", KIND, content, 0)
    write_page(settings.out)
    return found


def cases(name: str, settings: Settings) -> Iterator[Case]:
    """One case for each trained network."""
    first = slice(0, settings.images)

    def outside(data: str, prepare: Any) -> dict[str, Tensor]:
        names = OUTSIDE[data]
        sets = {other: read_image_set(other, settings.data, test_only=True).test[0][first] for other in names}
        return {other: prepare(pixels.to(settings.device)) for other, pixels in sets.items()}

    if name == "demo":
        model, parts = pm.demo.network().to(settings.device), pm.demo.data()
        tuning, inside = (tuple(part[first].to(settings.device) for part in pair) for pair in parts)
        yield Case(model, tuning, inside, outside("fashion-mnist", lambda pixels: pixels.float() / 255))
    elif name in NETWORKS and NETWORKS[name].data == "cifar10":
        network = NETWORKS[name]
        pixels, labels = read_image_set("cifar10", settings.data, test_only=True).test
        half = len(labels) // 2
        halves = [(pixels[:half][first], labels[:half][first]), (pixels[half:][first], labels[half:][first])]
        tuning, inside = ((network.prepare(x.to(settings.device)), y.to(settings.device)) for x, y in halves)
        model = network.build(weights_of(name, settings)).to(settings.device)  # type: ignore[arg-type]
        yield Case(model, tuning, inside, outside("cifar10", network.prepare))
    else:
        shared = {key: getattr(settings, key) for key in ("data", "checkpoints", "device", "precision")}
        work = Work(name, Table2Settings(rows=(name,), models=settings.models, **shared))
        if work.row.data not in OUTSIDE:
            raise ValueError(f"`networks={name!r}` has no images of other data sets: choose from {', '.join(OUTSIDE)}.")
        parts = [tuple(part[first] for part in pair) for pair in (work.data.validation, work.data.test)]
        others = outside(work.row.data, lambda pixels: pixels.float() / 255)
        for model in work.networks:
            yield Case(model, *parts, others)


def examine(case: Case, settings: Settings) -> dict[str, Any]:
    """AUROC and FPR95 of every method and score on every other data set, with 95 % intervals over the images."""
    options: dict[str, Any] = {"size": settings.size}
    predictors = {
        "network": case.model,
        "temperature scaling": pm.fit_temperature(case.model, case.tuning),
        "PEP": pm.fit(case.model, case.tuning, **options),
        "PEP with temperature": pm.fit(case.model, case.tuning, temperature=True, **options),
    }
    known = {method: scores_of(predictor, *case.inside) for method, predictor in predictors.items()}
    found: dict[str, Any] = {}
    for other, images in case.outside.items():
        unlabelled = torch.zeros(len(images), dtype=torch.long, device=images.device)
        strange = {method: scores_of(predictor, images, unlabelled) for method, predictor in predictors.items()}
        found[other] = intervals(known, strange, settings.resamples)
    fitted = {
        method: {key: float(getattr(one, key)) for key in ("sigma", "temperature") if hasattr(one, key)}
        for method, one in predictors.items()
    }
    return {"outside": found, "fitted": fitted, "items": {"inside": len(case.inside[1])}}


def scores_of(predictor: Any, images: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    """What grows with uncertainty, for each image: one less the confidence, entropy, mutual information."""
    if not isinstance(predictor, pm.PepEnsemble) or not predictor.sigma:  # one pass has no members that disagree
        log_probs = pm.predict(predictor, (images, labels)).log_probs
        found = {"confidence": 1 - log_probs.exp().amax(1), "entropy": pm.metrics.entropy(log_probs)}
    else:
        predictions = predictor.predict_items((images, labels), uncertainty=True)
        found = {
            "confidence": 1 - predictions.log_probs.exp().amax(1),
            "entropy": pm.metrics.entropy(predictions.log_probs),
            "mutual information": predictions.uncertainty.mutual_information,  # type: ignore[union-attr]
        }
    return {score: values.double().cpu().numpy() for score, values in found.items()}


def intervals(
    known: dict[str, dict[str, np.ndarray]], strange: dict[str, dict[str, np.ndarray]], resamples: int
) -> dict[str, Any]:
    """The value, the bootstrap interval and the interval of the difference from the network's confidence.

    Every method and score is resampled with the same images, so that the differences are paired.
    """
    generator = np.random.default_rng(0)
    inside, outside = (len(next(iter(part["network"].values()))) for part in (known, strange))
    draws = [np.arange(inside)], [np.arange(outside)]
    for _ in range(resamples):
        draws[0].append(generator.integers(0, inside, inside))
        draws[1].append(generator.integers(0, outside, outside))
    table: dict[tuple[str, str, str], np.ndarray] = {}
    for method, scores in known.items():
        for score in scores:
            rows = []
            for first, second in zip(*draws, strict=True):
                pair = (
                    torch.from_numpy(part[method][score][chosen])
                    for part, chosen in ((known, first), (strange, second))
                )
                one, other = pair
                rows.append((pm.metrics.auroc(one, other), pm.metrics.fpr_at_95(one, other)))
            for measure, values in zip(("auroc", "fpr95"), np.array(rows).T, strict=True):
                table[method, score, measure] = values
    found: dict[str, Any] = {}
    for (method, score, measure), values in table.items():
        difference = values - table["network", "confidence", measure]
        found.setdefault(method, {}).setdefault(score, {})[measure] = {
            "value": float(values[0]),
            "interval": np.quantile(values[1:], (0.025, 0.975)).tolist() if resamples else None,
            "difference": float(difference[0]),
            "difference interval": np.quantile(difference[1:], (0.025, 0.975)).tolist() if resamples else None,
        }
    return found
