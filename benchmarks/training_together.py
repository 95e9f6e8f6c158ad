"""Training 25 seeds together against training them one after another, as a ratio, in one run.

    python -m benchmarks.training_together --device cuda [--models 25] [--steps 50] [--out results/bench]

For each network of the paper: the milliseconds of one step of the usual eager loop (one network, torch's Adam, data on
the device), times the number of seeds, against one step of all seeds together: as one stack, with and without a CUDA
graph, compiled or not. Images are made on the spot: the time of a step does not depend on what they show.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import where
from peppermill.paper import networks
from peppermill.paper.machine import Machine, precision, synchronize
from peppermill.paper.trainer import ADAM_EPSILON, BATCH, Schedule, Trainer
from peppermill.plumbing.files import write_atomically
from peppermill.report.provenance import provenance

SHAPES = {"mnist_mlp": (1, 28, 28), "mnist_cnn": (1, 28, 28), "cifar_cnn": (3, 32, 32)}


def eager_seconds(
    network: nn.Sequential, images: Tensor, labels: Tensor, seed: int, learning_rate: float, steps: int, device: str
) -> float:
    """Seconds that the usual loop takes for so many steps of one network: what training together is compared with."""
    model = networks.initialize(network, seed).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, eps=ADAM_EPSILON)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(device)
    began = 0.0
    for step in range(-3, steps):  # three steps to warm up
        if step == 0:
            synchronize(device)
            began = time.perf_counter()
        first = (max(step, 0) * BATCH) % (len(order) - BATCH + 1)
        chosen = order[first : first + BATCH]
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    synchronize(device)
    return time.perf_counter() - began


def together_seconds(
    network: nn.Sequential, images: Tensor, labels: Tensor, seeds: range, machine: Machine, steps: int
) -> float:
    """Seconds that so many steps of all seeds together take."""
    with precision(machine):
        trained = Trainer(network, images, labels, seeds, Schedule((2.5e-4,)), machine)
        generator = torch.Generator().manual_seed(0)
        chosen = [torch.randint(len(labels), (BATCH, len(seeds)), generator=generator) for _ in range(steps)]
        chosen = [one.to(machine.device) for one in chosen]
        for number, one in enumerate(chosen[:3] + chosen):
            if number == 3:
                synchronize(machine.device)
                began = time.perf_counter()
            trained.run(one)
        synchronize(machine.device)
        return time.perf_counter() - began


def measure(name: str, dropout: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    device, steps, seeds = arguments.device, arguments.steps, range(17, 17 + arguments.models)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(10 * BATCH, *SHAPES[name], generator=generator).to(device)
    labels = torch.randint(10, (10 * BATCH,), generator=generator).to(device)
    with precision(Machine(device, precision=arguments.precision)):
        eager = eager_seconds(networks.NETWORKS[name](10, dropout), images, labels, 17, 2.5e-4, steps, device)
    row: dict[str, Any] = {"network": name, "dropout": dropout, "eager_ms_per_step": 1000 * eager / steps}
    for key, machine in _machines(device, arguments.precision).items():
        seconds = together_seconds(networks.NETWORKS[name](10, dropout), images, labels, seeds, machine, steps)
        row[key] = {"ms_per_step": 1000 * seconds / steps, "ratio": arguments.models * eager / seconds}
        title = f"{name}{' with dropout' if dropout else ''}, {key}"
        print(
            f"{title}: {1000 * seconds / steps:.2f} ms for {arguments.models} seeds, eager "
            f"{1000 * eager / steps:.2f} ms for one: {row[key]['ratio']:.1f} times faster",
            flush=True,
        )
    return row


def _machines(device: str, precision: str) -> dict[str, Machine]:
    """The ways to train together on this device."""
    ways = {"stack": Machine(device, graphs=False, precision=precision)}
    if device.startswith("cuda"):
        ways["stack, graph"] = Machine(device, precision=precision)
        ways["compiled stack, graph"] = Machine(device, precision=precision, compiled=True)
    return ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", type=int, default=25)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--networks", default=",".join(SHAPES))
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    arguments = parser.parse_args()
    rows = [measure(name, dropout, arguments) for name in arguments.networks.split(",") for dropout in (False, True)]
    content = {
        "models": arguments.models,
        "steps": arguments.steps,
        "precision": arguments.precision,
        "rows": rows,
        "provenance": provenance(17),
    }
    write_atomically(arguments.out / "training_together.json", json.dumps(content, indent=1) + "\n")
    print(f"wrote {arguments.out / 'training_together.json'}")


def section(found: dict[str, Any]) -> str:
    table = []
    for row in found["rows"]:
        best = max((row[key] for key in row if isinstance(row[key], dict)), key=lambda one: one["ratio"])
        name = row["network"].replace("_", " ") + (" with dropout" if row["dropout"] else "")
        table.append(
            f"| {name} | {row['eager_ms_per_step']:.2f} ms | {best['ms_per_step']:.2f} ms | **{best['ratio']:.1f}** |"
        )
    return "\n".join(
        [
            "## Training 25 seeds together",
            "",
            "One step of one network in the usual eager loop, one step of 25 networks together, and the gain.",
            f"`python -m benchmarks.training_together --device cuda`; {where(found)}.",
            "",
            "| network | eager, one | together, 25 | times faster |",
            "|---|---|---|---|",
            *table,
            "",
        ]
    )


if __name__ == "__main__":
    main()
