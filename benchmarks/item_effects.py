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
from benchmarks.timing import table_section, where, write_result

SEED, MISLABELLED = 0, 0.01


def main() -> None:
    model, (validation, (images, labels)) = pm.demo.network(), pm.demo.data()
    pep = pm.fit(model, validation, noise=pm.Noise(seed=SEED))
    flipped, wrong = mislabelled(labels)
    as_they_are = shares(pep, images, labels)
    with_mistakes = shares(pep, images, flipped)
    effects = pep.item_effects((images, flipped))
    share = float(effects[wrong].sum() / effects.sum())
    with_mistakes["carried"].append(
        {"who": "that were mislabelled", "fraction": float(wrong.double().mean()), "share": share}
    )
    write_result(
        "item_effects", {"sigma": pep.sigma, "as_they_are": as_they_are, "with_mislabelled": with_mistakes}, SEED
    )


def shares(pep: pm.PepEnsemble, images: Tensor, labels: Tensor) -> dict[str, Any]:
    effects = pep.item_effects((images, labels))
    carried = pm.carried_by(effects, pm.predict(pep.model, (images, labels)))
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


def section(found: dict[str, Any]) -> str:
    kinds = {"as_they_are": "as they are", "with_mislabelled": "one label in a hundred wrong"}
    plain = found["as_they_are"]
    return table_section(
        "Who carries the effect",
        f"The demo network at sigma = {found['sigma']:.4f} on {plain['items']:,} test images: the effect on the "
        f"mean log-likelihood is {plain['mean_effect']:.4f}; {100 * plain['helped']:.0f} % of the items gain, "
        f"{plain['mean_effect_of_helped']:.2f} each, and {100 * plain['hurt']:.0f} % lose, "
        f"{-plain['mean_effect_of_hurt']:.2f} each. `python -m benchmarks.item_effects`; {where(found)}.",
        ("labels", "items", "share of the effect"),
        [
            (name, f"the {100 * part['fraction']:.3g} % {part['who']}", f"{100 * part['share']:.0f} %")
            for kind, name in kinds.items()
            for part in found[kind]["carried"]
        ],
    )


if __name__ == "__main__":
    main()
