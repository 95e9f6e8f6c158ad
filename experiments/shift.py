"""CIFAR-10 networks under the corruptions of Hendrycks and Dietterich (2019), tuned on clean images only.

The corruptions are those of the package imagecorruptions, at five severities that were made for larger pictures. Each
corruption and severity is a stage of its own: a run that was killed continues with the first one that is missing.
docs/shift.md is written from the results, in the form of Ovadia et al. (2019).
"""

from __future__ import annotations

import os
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
from experiments.table1 import weights_of
from experiments.table1.imagenet_networks import Preparation, network_named

KIND = "peppermill shift"
CLEAN = "none"
SCORES = {
    "nll": pm.metrics.nll,
    "brier": pm.metrics.brier_score,
    "ece": pm.metrics.expected_calibration_error,
    "error": pm.metrics.error_rate,
    "aurc": pm.metrics.aurc,
}


@dataclass(frozen=True)
class Settings(Machine):
    """What to run."""

    out: Path = Path("results/shift")  # the folder of the results
    networks: tuple[str, ...] = ("ResNet20-CIFAR10", "ResNet56-CIFAR10")  # of Table 1
    weights: Path | None = None  # a file, or a folder of files with the networks' names
    corruptions: tuple[str, ...] = ()  # all 15 of the package without names
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    tuning: int = 5000  # the first of the test images, clean
    images: int = 2500  # of the others, for each corruption and severity
    size: int = 10  # members: the default of `pm.fit`
    parameters: str = "conv"  # as in Table 1


def main(settings: Settings) -> dict[str, Any]:
    """Every network, into shift-NAME.json; then the page."""
    corrupt, names = corruptions()
    chosen = settings.corruptions or names
    pixels, labels = read_image_set("cifar10", settings.data, test_only=True).test
    if not 0 < settings.tuning < len(labels):
        raise ValueError(f"`tuning={settings.tuning}` must leave images to test on, and there are {len(labels):,}.")
    test = slice(settings.tuning, settings.tuning + settings.images)
    stages = Stages(settings.checkpoints / "shift", fingerprint(pixels, labels))
    found = {}
    for name in settings.networks:
        began, network = time.monotonic(), network_named(name)
        model = network.build(weights_of(name, settings)).to(settings.device)  # type: ignore[arg-type]
        shown = Shown(network.prepare, settings.device)
        tune = partial(methods, model, shown(pixels[: settings.tuning], labels[: settings.tuning]), settings)
        predictors: dict[str, Any] = {}
        ignored = ("corruptions", "severities")
        made_of = {key: value for key, value in settings.identity().items() if key not in ignored}
        made_of |= {"network": name, "weights": fingerprint(*model.parameters())}
        cells: dict[str, Any] = {}
        for corruption, severity in [(CLEAN, 0), *((one, level) for one in chosen for level in settings.severities)]:
            change = partial(corrupt, name=corruption, severity=severity) if severity else None
            compute = partial(cell, predictors, tune, shown, pixels[test], labels[test], change)
            with arithmetic(settings.precision), warnings.catch_warnings():
                warnings.simplefilter("ignore", pm.PepWarning)  # a best sigma of 0 is a number of the table
                scores = stages.json(f"{name}-{corruption}-{severity}", made_of, compute)
            cells[f"{corruption} {severity}"] = scores
            nll = ", ".join(f"{method} {one['nll']:.3f}" for method, one in scores.items())
            settings.say(f"{network.title}, {corruption} {severity}: NLL {nll}")
        content = {"network": name, "title": network.title, "cells": cells, "seconds": time.monotonic() - began}
        content |= {"items": len(labels[test]), "note": network.note, "settings": settings.identity()}
        found[name] = write_result(settings.out / f"shift-{name}.json", KIND, content, 0)
    write_page(settings.out)
    return found


@dataclass(frozen=True)
class Shown:
    """Bytes and labels as the network gets them."""

    prepare: Preparation
    device: str

    def __call__(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.prepare(pixels.to(self.device)), labels.to(self.device)


def cell(
    predictors: dict[str, Any], tune: Callable[[], dict[str, Any]], shown: Shown, pixels: Tensor, labels: Tensor,
    change: Callable[[Tensor], Tensor] | None,
) -> dict[str, Any]:  # fmt: skip
    """The scores of every method on the images, changed or clean; the first cell that is computed tunes them."""
    if not predictors:
        predictors |= tune()
    data = shown(change(pixels) if change else pixels, labels)
    return {method: scores_of(predictor, data) for method, predictor in predictors.items()}


def methods(model: Any, tuning: tuple[Tensor, Tensor], settings: Settings) -> dict[str, Any]:
    """The predictors, each tuned on the same clean images."""
    options: dict[str, Any] = {"size": settings.size, "parameters": settings.parameters}
    independent = pm.Noise("gaussian", antithetic=False)
    return {
        "network": model,
        "temperature scaling": pm.fit_temperature(model, tuning),
        "vector scaling": pm.fit_calibrator(model, tuning, "vector"),
        "PEP as printed": pm.fit(model, tuning, noise=independent, search="golden", **options),
        "PEP with temperature": pm.fit(model, tuning, temperature=True, **options),
        "mirror image, T": pm.fit_temperature(pm.TestTimeAugmentation(model, "horizontal_flip"), tuning),
        "race": pm.calibrate(model, tuning, settings.size, views="horizontal_flip"),
    }


def scores_of(predictor: Any, data: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Every score of a predictor."""
    found = pm.predict(predictor, data)
    return {name: float(score(found.log_probs, found.labels)) for name, score in SCORES.items()}


def corruptions() -> tuple[Any, tuple[str, ...]]:
    """A function of images [N, 3, 32, 32], a name and a severity, and the names that the package knows."""
    os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # what numba compiles draws from a generator that no seed reaches
    if not hasattr(np, "float_"):
        np.float_ = np.float64  # type: ignore[attr-defined]  # the package was written for numpy 1
    try:
        from imagecorruptions import corruptions as package
        from imagecorruptions import get_corruption_names
        from skimage import util
        from skimage.filters import gaussian
    except ImportError as error:
        raise ImportError(
            f"`shift` needs imagecorruptions ({error}): `pip install imagecorruptions==1.1.2 'setuptools<81'`."
        ) from error
    noise = getattr(util.random_noise, "original", util.random_noise)

    def renamed(image: Any, *given: Any, multichannel: bool = False, **options: Any) -> Any:
        """Newer versions of scikit-image have renamed the keyword."""
        return gaussian(image, *given, channel_axis=-1 if multichannel else None, **options)

    def seeded(*given: Any, **options: Any) -> Any:
        """Newer versions of scikit-image draw from a generator of their own, which no seed of numpy reaches."""
        return noise(*given, **options, rng=int(np.random.randint(2**31)))

    seeded.original = noise  # type: ignore[attr-defined]
    package.gaussian, util.random_noise = renamed, seeded

    def corrupt(images: Tensor, name: str, severity: int) -> Tensor:
        from imagecorruptions import corrupt as change

        np.random.seed(zlib.crc32(f"{name} {severity}".encode()))  # what the package draws from
        rows = [change(image, corruption_name=name, severity=severity) for image in images.movedim(1, 3).numpy()]
        return torch.from_numpy(np.stack(rows)).movedim(3, 1).contiguous()

    return corrupt, tuple(get_corruption_names())
