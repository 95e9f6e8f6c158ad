"""Figure 1: the ensemble's mean log-likelihood along sigma, each member's, and their average.

The paper drew it for InceptionV3 on ImageNet. Here it is drawn for the first network of a row of Table 2, or with
`--pretrained` for a network of Table 1: `--pretrained ResNet50 --imagenet FOLDER --weights FILE --parameters conv`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peppermill as pm
from experiments import table1
from experiments.resume import plain, write_result
from experiments.settings import Settings as Table2Settings
from experiments.settings import arithmetic
from experiments.table2.work import Work

KIND = "peppermill figure 1"


@dataclass(frozen=True)
class Settings(Table2Settings):
    """The network and the curve."""

    rows: tuple[str, ...] = ("cifar10",)  # one row of Table 2
    models: int = 1
    size: int = 5  # members (caption of Figure 1)
    sigmas: tuple[float, ...] = ()  # without values, twenty steps across the peak: the paper's twenty, at our scale
    parameters: str = "kernels"  # every kernel: on the paper's InceptionV3 those were the convolutions
    pretrained: str | None = None  # a network of Table 1 in place of the row
    imagenet: Path | None = None  # the folder of the validation images
    weights: Path | None = None  # the file of the weights
    tuning: int = 1000  # images of a network of Table 1 that tune

    def table1(self) -> table1.Settings:
        """What Table 1 needs of these settings."""
        shared = ("data", "checkpoints", "device", "precision", "imagenet", "weights", "tuning")
        return table1.Settings(networks=(str(self.pretrained),), **{key: getattr(self, key) for key in shared})


def main(settings: Settings) -> dict[str, Any]:
    """The curve on validation data, into figure1.json."""
    data: Any
    if settings.pretrained:
        network, data, _ = table1.network_and_images(settings.pretrained, settings.table1())
    else:
        work = Work(settings.rows[0], settings)
        network, data = work.networks[0], work.data.validation
    with arithmetic(settings.precision):
        sweep = pm.sweep_sigma(
            network,
            data,
            settings.sigmas or None,
            parameters=settings.parameters,
            size=settings.size,
            antithetic=False,
        )
    curve = {
        "network": settings.pretrained or settings.rows[0],
        "size": settings.size,
        "parameters": settings.parameters,
    }
    content = {"curve": curve, "sweep": plain(sweep), "settings": settings.identity()}
    settings.say(f"Figure 1: L(sigma) is largest at sigma = {sweep.best.sigma:.4g}")
    name = f"figure1-{settings.pretrained}" if settings.pretrained else "figure1"
    return write_result(settings.out / f"{name}.json", KIND, content, settings.seeds[0])
