"""Figure 1: the ensemble's mean log-likelihood along sigma, each member's, and their average.

The paper drew it for InceptionV3 on ImageNet. Here it is drawn for the first network of a row of Table 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import peppermill as pm
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


def main(settings: Settings) -> dict[str, Any]:
    """The curve on validation data, into figure1.json."""
    work = Work(settings.rows[0], settings)
    with arithmetic(settings.precision):
        sweep = pm.sweep_sigma(
            work.networks[0],
            work.data.validation,
            settings.sigmas or None,
            parameters=settings.parameters,
            size=settings.size,
            antithetic=False,
        )
    curve = {"network": settings.rows[0], "size": settings.size, "parameters": settings.parameters}
    content = {"curve": curve, "sweep": plain(sweep), "settings": settings.identity()}
    settings.say(f"Figure 1: L(sigma) is largest at sigma = {sweep.best.sigma:.4g}")
    return write_result(settings.out / "figure1.json", KIND, content, settings.seeds[0])
