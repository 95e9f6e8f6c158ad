"""What derivatives miss in a ReLU network: `python -m benchmarks.kinks`.

Two networks of the demo's architecture, trained alike on the embedded test images: one with ReLU and max pooling, one
with tanh and average pooling, which has no kink. On 500 validation images, for steps h of several lengths: the effect
rate of eq. 20 from derivatives, that of eq. 15 from steps of h, and 2 (L(h) - L(0)) / h^2 of an ensemble at sigma = h.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import peppermill as pm
from benchmarks.timing import table_section, where, write_result

STEPS = (0.0001, 0.0003, 0.001, 0.003)
ITEMS, PROBES, MEMBERS = 500, 32, 64
SEED, EPOCHS, BATCH, RATE = 0, 5, 128, 1e-3


def main() -> None:
    found = {name: rates(trained(bend, pool)) for name, (bend, pool) in KINDS.items()}
    write_result(
        "kinks", {"items": ITEMS, "probes": PROBES, "members": MEMBERS, "epochs": EPOCHS, "networks": found}, SEED
    )


KINDS = {"ReLU, max pooling": (nn.ReLU, nn.MaxPool2d), "tanh, average pooling": (nn.Tanh, nn.AvgPool2d)}


def rates(model: nn.Module) -> list[dict[str, float]]:
    """One row for each step, every rate divided by the number of items."""
    images, labels = pm.demo.validation()
    data = images[:ITEMS], labels[:ITEMS]
    rows = []
    for step in STEPS:
        found = pm.local_analysis(model, data, probes=PROBES, step=step, seed=SEED)
        (point,) = pm.compare_effects(found, model, data, [step], size=MEMBERS, seed=SEED)
        numbers = {
            "from_derivatives": found.rate_from_traces,
            "from_derivatives_error": found.laplacian_error,
            "from_steps": found.effect_rate,
            "from_steps_error": found.effect_rate_error,
            "kinks": found.kinks,
            "kinks_error": found.kinks_error,
            "measured": 2 * point.measured / step**2,
            "measured_error": 2 * point.measured_error / step**2,
        }
        rows.append({"step": step, **{name: value / ITEMS for name, value in numbers.items()}})
    return rows


def trained(bend: type[nn.Module], pool: type[nn.Module]) -> nn.Module:
    """The demo's layers with another bend and another pooling, trained on the 5,000 embedded test images."""
    torch.manual_seed(SEED)
    images, labels = pm.demo.test()
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 5, stride=2, padding=1), bend(), nn.BatchNorm2d(16)),
        *(nn.Conv2d(16, 32, 3), bend(), nn.BatchNorm2d(32), pool(2), nn.Flatten()),
        *(nn.Linear(800, 128), bend(), nn.BatchNorm1d(128), nn.Linear(128, 10)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    return model.eval()


def section(found: dict[str, Any]) -> str:
    columns = ("from_derivatives", "from_steps", "measured")
    return table_section(
        "What derivatives miss",
        f"The effect rate per item of two networks trained alike, on {found['items']} images: from derivatives "
        f"(eq. 20, {found['probes']} probes), from steps of length h (eq. 15), and measured on an ensemble of "
        f"{found['members']} members at sigma = h. A network with kinks has curvature that no derivative sees. "
        f"`python -m benchmarks.kinks`; {where(found)}.",
        ("network", "h", "from derivatives", "from steps", "measured"),
        [
            (network, f"{row['step']:g}", *(f"{row[name]:.0f} ± {row[f'{name}_error']:.0f}" for name in columns))
            for network, rows in found["networks"].items()
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
