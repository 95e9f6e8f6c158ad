"""Figure 2: reliability diagrams before and after, and mistakes that PEP corrects, with their members' histograms.

The paper drew it for DenseNet169 on ImageNet; here it is the CIFAR-10 network of Table 2. The corrected images are
those with the largest PEP effect on the probability of the correct class, as in the caption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import peppermill as pm
from peppermill.paper.result import write_result
from peppermill.paper.rows import row_data
from peppermill.paper.stacked import unstack
from peppermill.paper.work import Settings, Work, row_of
from peppermill.report.provenance import provenance
from peppermill.report.run import plain

KIND = "peppermill figure 2"
VERSION = 1


@dataclass(frozen=True)
class Pictures:
    """What is drawn."""

    row: str = "cifar10"
    size: int = 10  # caption of Figure 2: M = 10
    shown: int = 6  # caption of Figure 2: three rows of two
    parameters: str = "kernels"  # all kernels; docs/paper.md compares them with the paper's one layer
    bins: int = 20  # as in Table 2


def main(settings: Settings, pictures: Pictures | None = None) -> dict[str, Any]:
    """Reliability tables and corrected mistakes, into figure2.json."""
    pictures = pictures or Pictures()
    row = row_of(pictures.row, settings)
    data = row_data(row, settings.data, settings.machine.device, settings.validation)
    model = unstack(
        row.build().to(settings.machine.device), Work(pictures.row, row, settings, data).baseline().state, 0
    )
    predictors = _predictors(model, (data.validation.images, data.validation.labels), pictures)
    pep, test = predictors["PEP"], (data.test.images, data.test.labels)
    predictions = {name: pm.predict(predictor, test) for name, predictor in predictors.items()}
    content = {
        "format": KIND,
        "version": VERSION,
        "pictures": plain(pictures),
        "sigma": pep.sigma,
        "reliability": {
            name: plain(pm.metrics.reliability(found.log_probs, found.labels, pictures.bins))
            for name, found in predictions.items()
        },
        "corrected": _corrected(pep, predictions["network"], predictions["PEP"], test, pictures.shown),
        "mistakes": _mistakes(predictions["network"], predictions["PEP"]),
        "settings": settings.identity(),
        "provenance": provenance(settings.seeds[0]),
    }
    write_result(settings.out / "figure2.json", content)
    settings.say(f"Figure 2: sigma = {pep.sigma:.4g}, mistakes {content['mistakes']}")
    return content


def _predictors(model: nn.Module, validation: Any, pictures: Pictures) -> dict[str, Any]:
    """The network and what is made of it; PEP as the paper had it, without pairs."""
    options: dict[str, Any] = {"parameters": pictures.parameters, "size": pictures.size, "search": "golden"}
    return {
        "network": model,
        "temperature scaling": pm.fit_temperature(model, validation),
        "PEP": pm.fit(model, validation, antithetic=False, **options),
        "PEP with temperature": pm.fit(model, validation, temperature=True, **options),
    }


def _corrected(pep: pm.PepEnsemble, before: pm.Predictions, after: pm.Predictions, test: Any, shown: int) -> list[Any]:
    """The items that only the ensemble gets right, by the gain in the probability of their class."""
    first, second = before.log_probs.argmax(1), after.log_probs.argmax(1)
    gain = after.log_likelihoods.exp() - before.log_likelihoods.exp()
    only = (first != before.labels) & (second == before.labels)
    order = torch.where(only, gain, -torch.inf).argsort(descending=True)[: min(shown, int(only.sum()))]
    members = pep.member_pass((test[0][order], test[1][order])).member_log_likelihoods.exp() if len(order) else None
    return [
        {
            "item": int(item),
            "label": int(before.labels[item]),
            "predicted": int(first[item]),
            "network": float(before.log_likelihoods[item].exp()),
            "ensemble": float(after.log_likelihoods[item].exp()),
            "members": members[:, k].tolist() if members is not None else [],
        }
        for k, item in enumerate(order)
    ]


def _mistakes(before: pm.Predictions, after: pm.Predictions) -> dict[str, int]:
    """How many mistakes PEP corrects and how many it makes."""
    first = before.log_probs.argmax(1) == before.labels
    second = after.log_probs.argmax(1) == after.labels
    return {"corrected": int((~first & second).sum()), "made": int((first & ~second).sum())}
