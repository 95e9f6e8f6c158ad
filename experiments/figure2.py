"""Figure 2: reliability diagrams before and after, and mistakes that PEP corrects, with their members' histograms.

The paper drew it for DenseNet169 on ImageNet; here it is the CIFAR-10 network of Table 2, or with `--pretrained` a
network of Table 1 (`--pretrained ResNet50 --imagenet FOLDER --weights FILE --parameters conv --bins 10`). The corrected
images are those with the largest PEP effect on the probability of the correct class, as in the caption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import peppermill as pm
from experiments.figure1 import Settings as Figure1Settings
from experiments.resume import plain, write_result
from experiments.settings import arithmetic
from experiments.table1 import network_and_images
from experiments.table2.work import Work

KIND = "peppermill figure 2"


@dataclass(frozen=True)
class Settings(Figure1Settings):
    """The network and the pictures."""

    size: int = 10  # caption of Figure 2: M = 10
    shown: int = 6  # caption of Figure 2: three rows of two
    parameters: str = "kernels"  # all kernels; docs/paper.md compares them with the paper's one layer
    bins: int = 20  # as in Table 2


def main(settings: Settings) -> dict[str, Any]:
    """Reliability tables and corrected mistakes, into figure2.json."""
    validation: Any
    test: Any
    if settings.pretrained:
        network, validation, test = network_and_images(settings.pretrained, settings.table1())
    else:
        work = Work(settings.rows[0], settings)
        network, validation, test = work.networks[0], work.data.validation, work.data.test
    options: dict[str, Any] = {"parameters": settings.parameters, "size": settings.size, "search": "golden"}
    independent = pm.Noise("gaussian", antithetic=False)
    with arithmetic(settings.precision):
        predictors = {
            "network": network,
            "temperature scaling": pm.fit_temperature(network, validation),
            "PEP": pm.fit(network, validation, noise=independent, **options),  # without pairs, as the paper had it
            "PEP with temperature": pm.fit(network, validation, temperature=True, **options),
        }
        predictions = {name: pm.predict(predictor, test) for name, predictor in predictors.items()}
        corrected = mistakes_corrected(
            predictors["PEP"], predictions["network"], predictions["PEP"], test, settings.shown
        )
    first, second = (found.log_probs.argmax(1) == found.labels for found in map(predictions.get, ("network", "PEP")))
    mistakes = {"corrected": int((~first & second).sum()), "made": int((first & ~second).sum())}
    tables = {
        name: plain(pm.metrics.reliability(found.log_probs, found.labels, settings.bins))
        for name, found in predictions.items()
    }
    content = {
        "pictures": {
            "row": settings.pretrained or settings.rows[0],
            "size": settings.size,
            "parameters": settings.parameters,
        },
        "sigma": predictors["PEP"].sigma,
        "reliability": tables,
        "corrected": corrected,
        "mistakes": mistakes,
        "settings": settings.identity(),
    }
    settings.say(f"Figure 2: sigma = {content['sigma']:.4g}, mistakes {mistakes}")
    name = f"figure2-{settings.pretrained}" if settings.pretrained else "figure2"
    return write_result(settings.out / f"{name}.json", KIND, content, settings.seeds[0])


def mistakes_corrected(
    pep: pm.PepEnsemble, before: pm.Predictions, after: pm.Predictions, test: Any, shown: int
) -> list[dict[str, Any]]:
    """The items that only the ensemble gets right, by the gain in the probability of their class."""
    first, second = before.log_probs.argmax(1), after.log_probs.argmax(1)
    gain = after.log_likelihoods.exp() - before.log_likelihoods.exp()
    only = (first != before.labels) & (second == before.labels)
    order = torch.where(only, gain, -torch.inf).argsort(descending=True)[: min(shown, int(only.sum()))]
    if not len(order):
        return []
    members = pep.member_pass((test[0][order], test[1][order])).member_log_likelihoods.exp()
    return [
        {
            "item": int(item),
            "label": int(before.labels[item]),
            "predicted": int(first[item]),
            "network": float(before.log_likelihoods[item].exp()),
            "ensemble": float(after.log_likelihoods[item].exp()),
            "members": members[:, k].tolist(),
        }
        for k, item in enumerate(order)
    ]
