"""What an uncertainty costs beyond the prediction: `python -m benchmarks.uncertainty`, on a GPU with `--device cuda`.

`pep.uncertainty(x)` against `pep(x)`, both without a graph, in turns.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

import peppermill as pm
from benchmarks.networks import mnist_mlp, resnet20
from benchmarks.timing import clock_name, in_turns, ratio, table_section, where, write_result

SIGMA = 0.01  # time does not depend on it
SIZE, ROUNDS = 10, 9

#: Each network with the shape of its inputs and the batches that it is given.
CASES = {
    "demo network, 10 classes": (pm.demo.network, (1, 28, 28), (1, 100, 500)),
    "MNIST MLP, 10 classes": (mnist_mlp, (1, 28, 28), (1, 100, 500)),
    "ResNet-20, 10 classes": (resnet20, (3, 32, 32), (1, 100)),
    "linear layer 512 to 1,000 classes": (lambda: nn.Linear(512, 1000).eval(), (512,), (1, 100)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    rows = []
    for name, (make, shape, batches) in CASES.items():
        pep = pm.PepEnsemble.at_sigma(make().to(device), SIGMA, size=SIZE)
        rows += [{"network": name, "batch": batch, **measured(pep, batch, shape, device)} for batch in batches]
        print(*rows[-len(batches) :], sep="\n")
    content = {"size": SIZE, "rounds": ROUNDS, "clock": clock_name(device), "rows": rows}
    write_result("uncertainty" if device == "cpu" else "uncertainty-cuda", content)


@torch.no_grad()
def measured(pep: pm.PepEnsemble, batch: int, shape: tuple[int, ...], device: str) -> dict[str, float]:
    """The ratio of both times; small batches are repeated so that a turn is long enough to be measured."""
    inputs, turns = torch.randn(batch, *shape, device=device), max(1, 50 // batch)
    jobs = {
        "uncertainty": lambda: [pep.uncertainty(inputs) for _ in range(turns)],
        "prediction": lambda: [pep(inputs) for _ in range(turns)],
    }
    in_turns(jobs, device, 2)
    found = in_turns(jobs, device, ROUNDS)
    return ratio(found["uncertainty"], found["prediction"])


def section(found: dict[str, Any]) -> str:
    gpu = "gpu" in found["provenance"]["hardware"]
    cause = (
        "`pep(x)` replays a CUDA graph, but the arithmetic on each member's outputs is launched kernel by kernel: on "
        "networks this small that costs more than the network. The aim of 1.1 is missed on a GPU."
        if gpu
        else "The fixed cost of a call shows for single items of small networks, the arithmetic on the outputs for "
        "a network that consists of a single layer with 1,000 classes."
    )
    return table_section(
        f"The price of an uncertainty{', on a GPU' * gpu}",
        f"Time of `pep.uncertainty(x)`, which also returns the prediction, divided by that of `pep(x)`, with "
        f"m = {found['size']}: median, lowest and highest of {found['rounds']} turns, in {found['clock']}. {cause} "
        f"`python -m benchmarks.uncertainty{' --device cuda' * gpu}`; {where(found)}.",
        ("network", "batch", "ratio", "lowest to highest"),
        [
            (
                row["network"],
                f"{row['batch']}",
                f"**{row['ratio']:.2f}**",
                f"{row['ratio_lowest']:.2f} to {row['ratio_highest']:.2f}",
            )
            for row in found["rows"]
        ],
    )


if __name__ == "__main__":
    main()
