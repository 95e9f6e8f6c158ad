"""What calibrators cost and what they gain: `python -m benchmarks.calibrators`.

- `pm.fit_calibrator(..., "vector")` with the choice of its strength: 1,000 classes and 5,000 items in under 10 s, a
  million items of 10 classes in under 30 s. Each class has a scale and a bias of its own, so that the weakest strengths
  are tried, too: the slowest case.
- Test NLL of the demo network on random halves of its 10,000 images, fitted on the other half.
"""

from __future__ import annotations

import time
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm
from benchmarks.timing import clock, clock_name, table_section, where, write_result

CASES = ((5_000, 1_000, 6.0, 10.0), (1_000_000, 10, 3.0, 30.0))  # items, classes, lead of the label's logit, limit
SPLITS = 12
CALIBRATORS = ("temperature", "vector", "matrix")


def main() -> None:
    write_result(
        "calibrators",
        {
            "speed": [speed(*case) for case in CASES],
            "clock": clock_name("cpu"),
            "splits": SPLITS,
            "demo": demo(),
        },
    )


def speed(items: int, classes: int, lead: float, limit: float) -> dict[str, float]:
    """Seconds of vector scaling of made-up logits, each class too sure or unsure by its own measure."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (items,), generator=generator)
    logits = 1.5 * torch.randn(items, classes, generator=generator)
    logits[torch.arange(items), labels] += lead
    scales, biases = torch.randn(2, classes, generator=generator)
    logits = 1.6 * (1 + 0.2 * scales) * logits + 0.5 * biases
    wall, start = time.perf_counter(), clock("cpu")
    pm.fit_calibrator(nn.Identity().eval(), (logits, labels), "vector")
    seconds = {"seconds": clock("cpu") - start, "wall_seconds": time.perf_counter() - wall}
    return {"items": items, "classes": classes, "limit": limit, **seconds}


def demo() -> dict[str, list[float]]:
    """Test NLL of every calibrator on each of the random halves."""
    validation, test = pm.demo.data()
    images, labels = (torch.cat(both) for both in zip(validation, test, strict=True))
    log_probs = pm.predict(pm.demo.network(), (images, labels)).log_probs
    found: dict[str, list[float]] = {name: [] for name in CALIBRATORS}
    for seed in range(SPLITS):
        halves = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).chunk(2)
        fitted_on, others = ((log_probs[half], labels[half]) for half in halves)
        for name in CALIBRATORS:
            found[name].append(nll(pm.fit_calibrator(nn.Identity().eval(), fitted_on, name), others))
    return found


def nll(predictor: Any, data: tuple[Tensor, Tensor]) -> float:
    predictions = pm.predict(predictor, data)
    return pm.metrics.nll(predictions.log_probs, predictions.labels)


def section(found: dict[str, Any]) -> str:
    demo = found["demo"]
    gains = {name: [warm - own for warm, own in zip(demo["temperature"], demo[name], strict=True)] for name in demo}
    speeds = [
        f"{case['items']:,} items of {case['classes']:,} classes in {case['seconds']:.1f} s "
        f"(limit {case['limit']:.0f} s)"
        for case in found["speed"]
    ]
    return table_section(
        "Calibrators",
        f"Fitting vector scaling, including the choice of its shrinkage: {'; '.join(speeds)}; {found['clock']}. The "
        f"table shows the test NLL of the demo network with one pass, over {found['splits']} random halves of the "
        f"images, and the gain over temperature scaling (mean ± standard deviation). "
        f"`python -m benchmarks.calibrators`; {where(found)}.",
        ("calibrator", "test NLL", "gain"),
        [(name, f"{mean(demo[name]):.4f}", f"{mean(gains[name]):.4f} ± {stdev(gains[name]):.4f}") for name in demo],
    )


if __name__ == "__main__":
    main()
