"""What the local analysis costs: `python -m benchmarks.curvature`.

The exact trace of the Fisher information and 8 probes of the Laplacian, for a ResNet-20 and 1,000 images 32x32, against
one plain forward and backward pass over the same images (at most 40 times, under 2 GB); and against others on the same
work: the squared gradients of items by BackPACK, the Hessian-vector products by curvlinops.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from backpack import backpack, extend
from backpack.extensions import BatchL2Grad
from curvlinops import HessianLinearOperator
from torch import Tensor, nn

import peppermill as pm
from benchmarks.networks import resnet20
from benchmarks.timing import write_result
from peppermill.curvature.fisher import item_gradients
from peppermill.curvature.landscape import gaussian_directions, landscape_of
from peppermill.curvature.laplacian import hessian_products

IMAGES, PROBES, BATCH, ROUNDS = 1000, 8, 100, 3
LIMIT, LIMIT_BYTES = 40, 2e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--name", default="curvature", help="of the result: results/bench/NAME.json")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--peak", action="store_true", help="print the peak memory of our work alone, and stop")
    asked = parser.parse_args()
    if asked.peak:
        _print_peak(Work(asked.device, asked.images), asked.device)
        return
    peak = _peak_of_ours(asked.device, asked.images)  # first: a process begins with the peak of its parent
    _in_turns(Work(asked.device, BATCH).jobs(), asked.device, rounds=1)  # warms up
    work = Work(asked.device, asked.images)
    seconds, values = _in_turns(work.jobs(), asked.device, asked.rounds)
    ours = [a + b for a, b in zip(seconds["fisher"], seconds["laplacian"], strict=True)]
    theirs = [a + b for a, b in zip(seconds["backpack_fisher"], seconds["curvlinops_laplacian"], strict=True)]
    write_result(
        asked.name,
        {
            "images": asked.images,
            "probes": PROBES,
            "batch": BATCH,
            "rounds": asked.rounds,
            "parameters": work.landscape.dimensions,
            "clock": "CPU seconds of the process" if asked.device == "cpu" else "seconds",
            "seconds": {**seconds, "ours": ours, "peers": theirs},
            "ratio_to_plain_pass": _ratio(ours, seconds["plain"]),
            "limit": LIMIT,
            "ratio_to_peers": _ratio(ours, theirs),
            "ratio_of_fisher_to_backpack": _ratio(seconds["fisher"], seconds["backpack_fisher"]),
            "ratio_of_laplacian_to_curvlinops": _ratio(seconds["laplacian"], seconds["curvlinops_laplacian"]),
            "agreement": _agreement(values),
            "peak_bytes": peak,
            "limit_bytes": LIMIT_BYTES,
            "peers": {name: version(name) for name in ("curvlinops-for-pytorch", "backpack-for-pytorch")},
        },
    )


class Work:
    """The same work, by us and by others."""

    def __init__(self, device: str, images: int) -> None:
        generator = torch.Generator().manual_seed(0)
        inputs, labels = torch.randn(images, 3, 32, 32, generator=generator), torch.arange(images) % 10
        self.model = resnet20().to(device)
        pairs = zip(inputs.to(device).split(BATCH), labels.to(device).split(BATCH), strict=True)
        self.batches = list(pairs)
        self.landscape, self.data = landscape_of(self.model, self.batches, "all", pm.Categorical(), BATCH)
        self.directions = partial(gaussian_directions, self.landscape.center, PROBES, 0)
        self.loss = nn.CrossEntropyLoss(reduction="sum")
        self.extended, self.extended_loss = extend(resnet20().to(device)), extend(nn.CrossEntropyLoss(reduction="sum"))
        self.params = list(self.model.parameters())

    def jobs(self) -> dict[str, Callable[[], Any]]:
        return {
            "plain": self.plain,
            "fisher": self.fisher,
            "laplacian": self.laplacian,
            "backpack_fisher": self.backpack_fisher,
            "curvlinops_laplacian": self.curvlinops_laplacian,
        }

    def plain(self) -> None:
        for inputs, labels in self.batches:
            self.model.zero_grad()
            self.loss(self.model(inputs), labels).backward()

    def fisher(self) -> Tensor:
        return item_gradients(self.landscape, self.data, lambda items: None).squares.sum()

    def laplacian(self) -> Tensor:
        return hessian_products(self.landscape, self.data, self.directions, lambda items: None).forms

    def backpack_fisher(self) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for inputs, labels in self.batches:
            self.extended.zero_grad()
            with backpack(BatchL2Grad()):
                self.extended_loss(self.extended(inputs), labels).backward()
            total += sum(p.batch_l2.double().sum().cpu() for p in self.extended.parameters())
        return total

    def curvlinops_laplacian(self) -> Tensor:
        hessian = HessianLinearOperator(
            self.model, self.loss, self.params, self.batches, check_deterministic=False, num_data=self.data_size
        )
        probes = torch.stack([torch.cat([v.flatten() for v in probe.values()]) for probe in self.directions()], dim=1)
        return -(probes * (hessian @ probes)).sum(dim=0).double().cpu()

    @property
    def data_size(self) -> int:
        return sum(len(labels) for _, labels in self.batches)


def _agreement(values: dict[str, Tensor]) -> dict[str, float]:
    """The largest relative difference between our numbers and theirs."""
    ours, theirs = values["laplacian"], values["curvlinops_laplacian"]
    fisher = float(values["fisher"]) / float(values["backpack_fisher"])
    return {"fisher": abs(fisher - 1), "laplacian": float(((ours - theirs) / theirs).abs().max())}


def _in_turns(
    jobs: dict[str, Callable[[], Any]], device: str, rounds: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of every job in each of some rounds, in which they take turns; and what each gave in the last."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    values: dict[str, Any] = {}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = _clock(device)
            values[name] = job()
            found[name].append(_clock(device) - start)
    return found, values


def _clock(device: str) -> float:
    """Time on the CPU is counted by process, because the machine may be shared; a GPU is waited for."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _ratio(first: list[float], second: list[float]) -> dict[str, float]:
    ratios = sorted(a / b for a, b in zip(first, second, strict=True))
    return {"ratio": statistics.median(ratios), "ratio_lowest": ratios[0], "ratio_highest": ratios[-1]}


def _print_peak(work: Work, device: str) -> None:
    work.fisher(), work.laplacian()
    resident = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(resident if device == "cpu" else float(torch.cuda.max_memory_allocated()))


def _peak_of_ours(device: str, images: int) -> float:
    """In a process of its own, torch and the data included."""
    asked = [sys.executable, "-m", "benchmarks.curvature", "--peak", "--device", device, "--images", str(images)]
    found = subprocess.run(asked, capture_output=True, text=True, check=True)
    return float(found.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
