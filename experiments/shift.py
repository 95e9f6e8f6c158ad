"""CIFAR-10 networks under the corruptions of Hendrycks and Dietterich (2019), tuned on clean images only.

The corruptions are those of the package imagecorruptions, at five severities that were made for larger pictures. The
corrupted images are kept in the folder `corrupted` of the checkpoints: a machine that has them does not need the
package. Each corruption and severity is a stage of its own: a run that was killed continues with the first one that is
missing. docs/shift.md is written from the results, in the form of Ovadia et al. (2019).
"""

from __future__ import annotations

import io
import json
import os
import time
import warnings
import zipfile
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
from experiments.resume import Stages, fingerprint, write_atomically, write_result
from experiments.settings import Machine, arithmetic
from experiments.table1 import weights_of
from experiments.table1.imagenet_networks import Preparation, network_named

KIND = "peppermill shift"
CLEAN = "none"

#: Hendrycks and Dietterich (2019), in the order of the package.
CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
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
    corruptions: tuple[str, ...] = CORRUPTIONS  # of the package
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    tuning: int = 5000  # the first of the test images, clean
    images: int = 2500  # of the others, for each corruption and severity
    size: int = 10  # members: the default of `pm.fit`
    parameters: str = "conv"  # as in Table 1


def main(settings: Settings) -> dict[str, Any]:
    """Every network, into shift-NAME.json; then the page."""
    pixels, labels = read_image_set("cifar10", settings.data, test_only=True).test
    if not 0 < settings.tuning < len(labels):
        raise ValueError(f"`tuning={settings.tuning}` must leave images to test on, and there are {len(labels):,}.")
    test = slice(settings.tuning, settings.tuning + settings.images)
    stages = Stages(settings.checkpoints / "shift", fingerprint(pixels, labels))
    shifts = [(name, severity) for name in settings.corruptions for severity in settings.severities]
    read = partial(corrupted, pixels[test], settings.checkpoints / "corrupted", settings.say)
    for name, severity in shifts:  # fail before tuning if a file is refused or the package is absent
        read(name, severity)
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
        for corruption, severity in [(CLEAN, 0), *shifts]:
            images = partial(read, corruption, severity) if severity else lambda: pixels[test]
            compute = partial(cell, predictors, tune, shown, images, labels[test])
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
    predictors: dict[str, Any], tune: Callable[[], dict[str, Any]], shown: Shown,
    images: Callable[[], Tensor], labels: Tensor,
) -> dict[str, Any]:  # fmt: skip
    """The scores of every method on the images, changed or clean; the first cell that is computed tunes them."""
    if not predictors:
        predictors |= tune()
    data = shown(images(), labels)
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


def corrupted(pixels: Tensor, folder: Path, say: Callable[[str], None], name: str, severity: int) -> Tensor:
    """The images under a corruption: read from `folder`, or made and kept there."""
    path = folder / f"{name}-{severity}.npz"
    made_of = {"clean": fingerprint(pixels), "corruption": name, "severity": severity, "images": len(pixels)}
    if not path.is_file():
        began, images = time.monotonic(), corrupt(pixels, name, severity)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, images=images.numpy(), made_of=np.array(json.dumps(made_of)))
        write_atomically(path, buffer.getvalue())
        say(f"{name} {severity}: {len(pixels):,} images in {time.monotonic() - began:.0f} s, into {path}")
        return images
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as kept:
            known, images = json.loads(str(kept["made_of"])), torch.from_numpy(kept["images"])
    except (OSError, EOFError, KeyError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to make it again.") from error
    if known != made_of or images.shape != pixels.shape or images.dtype != torch.uint8:
        raise ValueError(
            f"{path} was made from other images, or from another number of them: delete it, or name another folder "
            "with `--checkpoints`."
        )
    return images


def corrupt(images: Tensor, name: str, severity: int) -> Tensor:
    """Images [N, 3, 32, 32] of bytes under a corruption of the package, the same whenever they are made."""
    os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # what numba compiles draws from a generator that no seed reaches
    if not hasattr(np, "float_"):
        np.float_ = np.float64  # type: ignore[attr-defined]  # the package was written for numpy 1
    try:
        from imagecorruptions import corrupt as change
        from imagecorruptions import corruptions as package
        from skimage import util
        from skimage.filters import gaussian
    except ImportError as error:
        raise ImportError(
            f"`shift` needs imagecorruptions to make {name} ({error}): "
            "`pip install imagecorruptions==1.1.2 'setuptools<81'`."
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
    np.random.seed(zlib.crc32(f"{name} {severity}".encode()))  # what the package draws from
    rows = [change(image, corruption_name=name, severity=severity) for image in images.movedim(1, 3).numpy()]
    return torch.from_numpy(np.stack(rows)).movedim(3, 1).contiguous()
