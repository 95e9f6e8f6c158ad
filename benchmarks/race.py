"""Does the race keep its word? `python -m benchmarks.race`: a hundred simulated repetitions of five hard cases.

A tiny network, validation items with labels drawn from its own probabilities at some temperature (or by chance), and
5,000 test items drawn alike. In none of the cases can noise tell anything, so the race should choose one pass; and its
cross-fitted estimate of the NLL should be within two standard errors of the test result in at least 90 % of them.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm
from benchmarks.timing import table_section, where, write_result

REPETITIONS, PASSES, TEST_ITEMS = 100, 4, 5000

#: For each case: validation items, classes, and the temperature at which labels are drawn; infinity means by chance.
CASES: dict[str, tuple[int, int, float]] = {
    "random labels": (400, 4, math.inf),
    "200 items": (200, 4, 2.0),
    "two classes": (400, 2, 2.0),
    "perfectly calibrated": (600, 4, 1.0),
    "underconfident": (400, 4, 0.5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    asked = parser.parse_args()
    cases = {}
    for name, case in CASES.items():
        cases[name] = measure(*case, repetitions=asked.repetitions)
        print(name, cases[name], flush=True)
    write_result("race", {"passes": PASSES, "test_items": TEST_ITEMS, "cases": cases})


def measure(items: int, classes: int, temperature: float, repetitions: int) -> dict[str, Any]:
    """What the race chose in each repetition, and how often its estimate was right."""
    chosen, notes, inside, losses = Counter[str](), set[str](), 0, []
    for seed in range(repetitions):
        model = network(classes, seed)
        generator = torch.Generator().manual_seed(seed)
        validation, test = (drawn(model, count, temperature, generator) for count in (items, TEST_ITEMS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.PepWarning)
            pep = pm.calibrate(model, validation, PASSES)
        assert pep.race is not None
        test_nll = -pm.predict(pep, test).log_likelihoods
        error = float(test_nll.std()) * math.sqrt(1 / items + 1 / TEST_ITEMS)
        inside += abs(pep.race.choice.nll - float(test_nll.mean())) <= 2 * error
        losses.append(float(test_nll.mean() - true_nll(model, test, temperature)))
        chosen[pep.method] += 1
        notes |= {pep.race.choice.name} if pep.passes > 1 else set()
    one_pass = sum(count for method, count in chosen.items() if not method.startswith("PEP"))
    return {
        "items": items,
        "classes": classes,
        "repetitions": repetitions,
        "one_pass": one_pass,
        "chosen": dict(chosen),
        "more_passes": sorted(notes),
        "inside": inside,
        "loss": sum(losses) / len(losses),
    }


def network(classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, classes)).eval()
    with torch.no_grad():
        model[2].weight.mul_(3)
    return model


@torch.no_grad()
def drawn(model: nn.Module, count: int, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs, and labels by the network's own probabilities at this temperature."""
    inputs = torch.randn(count, 6, generator=generator)
    probabilities = (model(inputs) / temperature).softmax(dim=1)
    return inputs, torch.multinomial(probabilities, 1, generator=generator)[:, 0]


@torch.no_grad()
def true_nll(model: nn.Module, data: tuple[Tensor, Tensor], temperature: float) -> Tensor:
    """The NLL of the probabilities from which the labels were drawn."""
    return nn.functional.cross_entropy(model(data[0]) / temperature, data[1])


def section(found: dict[str, Any]) -> str:
    return table_section(
        "The race on data that noise cannot improve",
        f"`pm.calibrate` with at most {found['passes']} passes: labels drawn from a tiny network's own probabilities "
        f"at some temperature, or by chance. How often one pass was chosen, how often its cross-fitted estimate was "
        f"within two standard errors of the NLL on {found['test_items']:,} test items (the aim is 90 %), and what it "
        "loses in test NLL against the probabilities from which the labels were drawn. `python -m benchmarks.race`; "
        f"{where(found)}.",
        ("case", "items", "classes", "one pass", "estimate right", "loss", "chosen"),
        [
            (
                name,
                str(row["items"]),
                str(row["classes"]),
                f"{row['one_pass']} of {row['repetitions']}",
                f"**{row['inside']} of {row['repetitions']}**",
                f"{row['loss']:.4f}",
                ", ".join(f"{method} ({count})" for method, count in sorted(row["chosen"].items())),
            )
            for name, row in found["cases"].items()
        ],
    )


if __name__ == "__main__":
    main()
