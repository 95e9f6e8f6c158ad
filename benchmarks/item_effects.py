"""Who carries the PEP effect: `python -m benchmarks.item_effects`.

The embedded network, sigma* fitted on its validation half, the effect of every item of its test half: by likelihood
under the network, and for the items that it gets wrong. Then once more with one label in a hundred replaced by a wrong
one, to see what mislabelled items do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import peppermill as pm
import peppermill.demo
from benchmarks.timing import write_result
from peppermill.curvature.effects import Carried, carried_by

SEED, MISLABELLED = 0, 0.01


def main() -> None:
    model, (validation, (images, labels)) = peppermill.demo.network(), peppermill.demo.data()
    pep = pm.fit(model, validation, seed=SEED)
    flipped, wrong = mislabelled(labels)
    as_they_are = shares(pep, images, labels)
    with_mistakes = shares(pep, images, flipped)
    effects = pep.item_effects((images, flipped))
    share = float(effects[wrong].sum() / effects.sum())
    with_mistakes["carried"].append(vars(Carried("that were mislabelled", float(wrong.double().mean()), share)))
    write_result(
        "item_effects", {"sigma": pep.sigma, "as_they_are": as_they_are, "with_mislabelled": with_mistakes}, SEED
    )


def shares(pep: pm.PepEnsemble, images: Tensor, labels: Tensor) -> dict[str, Any]:
    effects = pep.item_effects((images, labels))
    carried = carried_by(effects, pm.predict(pep.model, (images, labels)))
    return {
        "items": len(labels),
        "mean_effect": float(effects.mean()),
        "helped": float((effects > 0).double().mean()),
        "hurt": float((effects < 0).double().mean()),
        "mean_effect_of_helped": float(effects[effects > 0].mean()),
        "mean_effect_of_hurt": float(effects[effects < 0].mean()),
        "carried": [vars(part) for part in carried],
    }


def mislabelled(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Labels of which one in a hundred is another class, and which those are."""
    generator = torch.Generator().manual_seed(SEED)
    wrong = torch.rand(len(labels), generator=generator) < MISLABELLED
    shift = torch.randint(1, 10, (len(labels),), generator=generator)
    return torch.where(wrong, (labels + shift) % 10, labels), wrong


if __name__ == "__main__":
    main()
