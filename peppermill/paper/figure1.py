"""Figure 1: the ensemble's mean log-likelihood along sigma, each member's, and their average.

The paper drew it for InceptionV3 on ImageNet. Here it is drawn for a network at hand: a trained network of Table 2, or
the network that is embedded in this library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

import peppermill as pm
import peppermill.demo
from peppermill.paper.result import write_result
from peppermill.paper.rows import row_data
from peppermill.paper.stacked import unstack
from peppermill.paper.work import Settings, Work, row_of
from peppermill.report.provenance import provenance
from peppermill.report.run import plain

KIND = "peppermill figure 1"
VERSION = 1


@dataclass(frozen=True)
class Curve:
    """What is drawn."""

    network: str = "cifar10"  # a row of Table 2, or "demo"
    size: int = 5  # members (caption of Figure 1)
    sigmas: tuple[float, ...] | None = None  # twenty steps across the peak: the paper's twenty, at our scale
    parameters: str = "kernels"  # every kernel: on the paper's InceptionV3 those were the convolutions


def main(settings: Settings, curve: Curve | None = None) -> dict[str, Any]:
    """The curve on validation data, into figure1.json."""
    curve = curve or Curve()
    model, validation = _network(settings, curve.network)
    sweep = pm.sweep_sigma(
        model, validation, curve.sigmas, parameters=curve.parameters, size=curve.size, antithetic=False
    )
    content = {
        "format": KIND,
        "version": VERSION,
        "curve": plain(curve),
        "sweep": plain(sweep),
        "settings": settings.identity(),
        "provenance": provenance(settings.seeds[0]),
    }
    write_result(settings.out / "figure1.json", content)
    settings.say(f"Figure 1: L(sigma) is largest at sigma = {sweep.best.sigma:.4g}")
    return content


def _network(settings: Settings, name: str) -> tuple[nn.Module, Any]:
    if name == "demo":
        return peppermill.demo.network(), peppermill.demo.data()[0]
    row = row_of(name, settings)
    data = row_data(row, settings.data, settings.machine.device, settings.validation)
    stack = Work(name, row, settings, data).baseline()
    model = unstack(row.build().to(settings.machine.device), stack.state, 0)
    return model, (data.validation.images, data.validation.labels)
