"""What the local analysis costs: `python -m benchmarks.curvature`.

The exact trace of the Fisher information and 8 probes of the Laplacian, for a ResNet-20 and 1,000 images 32x32, against
one plain forward and backward pass over the same images (at most 40 times, under 2 GB); and against others on the same
work: the squared gradients of items by BackPACK, the Hessian-vector products by curvlinops, where they are installed.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm
from benchmarks.networks import resnet20
from benchmarks.timing import clock_name, in_turns, ratio, where, write_result
from peppermill.curvature.fisher import item_gradients
from peppermill.curvature.landscape import gaussian_directions, landscape_of
from peppermill.curvature.laplacian import hessian_products

IMAGES, PROBES, BATCH, ROUNDS = 1000, 8, 100, 3
LIMIT, LIMIT_BYTES = 40, 2e9

#: The packages of others, by the name under which they are imported.
PEERS = {"backpack": "backpack-for-pytorch", "curvlinops": "curvlinops-for-pytorch"}


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
    in_turns(Work(asked.device, BATCH).jobs(), asked.device, rounds=1)  # warms up
    work = Work(asked.device, asked.images)
    seconds = in_turns(work.jobs(), asked.device, asked.rounds)
    ours = [a + b for a, b in zip(seconds["fisher"], seconds["laplacian"], strict=True)]
    write_result(
        asked.name,
        {
            "images": asked.images,
            "probes": PROBES,
            "batch": BATCH,
            "rounds": asked.rounds,
            "parameters": work.landscape.dimensions,
            "clock": clock_name(asked.device),
            "seconds": {**seconds, "ours": ours},
            "ratio_to_plain_pass": ratio(ours, seconds["plain"]),
            "limit": LIMIT,
            "peak_bytes": peak,
            "limit_bytes": LIMIT_BYTES,
            **(against_peers(work, seconds, ours) if all(map(find_spec, PEERS)) else {}),
        },
    )


def against_peers(work: Work, seconds: dict[str, list[float]], ours: list[float]) -> dict[str, Any]:
    """Our time divided by theirs, part by part and together, and how far the numbers lie apart."""
    theirs = [a + b for a, b in zip(seconds["backpack_fisher"], seconds["curvlinops_laplacian"], strict=True)]
    return {
        "ratio_to_peers": ratio(ours, theirs),
        "ratio_of_fisher_to_backpack": ratio(seconds["fisher"], seconds["backpack_fisher"]),
        "ratio_of_laplacian_to_curvlinops": ratio(seconds["laplacian"], seconds["curvlinops_laplacian"]),
        "agreement": work.agreement(),
        "peers": {name: version(name) for name in PEERS.values()},
    }


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
        self.device = device
        self.params = list(self.model.parameters())
        self.values: dict[str, Any] = {}  # what each job gave last

    def jobs(self) -> dict[str, Callable[[], Any]]:
        jobs = {"plain": self.plain, "fisher": self.fisher, "laplacian": self.laplacian}
        if all(map(find_spec, PEERS)):
            theirs = {"backpack_fisher": self.backpack_fisher(), "curvlinops_laplacian": self.curvlinops_laplacian}
            jobs = {**jobs, **theirs}
        return {name: partial(self._kept, name, job) for name, job in jobs.items()}

    def _kept(self, name: str, job: Callable[[], Any]) -> None:
        self.values[name] = job()

    def plain(self) -> None:
        for inputs, labels in self.batches:
            self.model.zero_grad()
            self.loss(self.model(inputs), labels).backward()

    def fisher(self) -> Tensor:
        return item_gradients(self.landscape, self.data, lambda items: None).squares.sum()

    def laplacian(self) -> Tensor:
        return hessian_products(self.landscape, self.data, self.directions, lambda items: None).forms

    def backpack_fisher(self) -> Callable[[], Tensor]:
        """The job, on a network of its own, because BackPACK keeps what it needs in the network."""
        from backpack import backpack, extend
        from backpack.extensions import BatchL2Grad

        model, loss = extend(resnet20().to(self.device)), extend(nn.CrossEntropyLoss(reduction="sum"))

        def job() -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for inputs, labels in self.batches:
                model.zero_grad()
                with backpack(BatchL2Grad()):
                    loss(model(inputs), labels).backward()
                total += sum(p.batch_l2.double().sum().cpu() for p in model.parameters())
            return total

        return job

    def curvlinops_laplacian(self) -> Tensor:
        from curvlinops import HessianLinearOperator

        hessian = HessianLinearOperator(
            self.model, self.loss, self.params, self.batches, check_deterministic=False, num_data=self.data_size
        )
        probes = torch.stack([torch.cat([v.flatten() for v in probe.values()]) for probe in self.directions()], dim=1)
        return -(probes * (hessian @ probes)).sum(dim=0).double().cpu()

    @property
    def data_size(self) -> int:
        return sum(len(labels) for _, labels in self.batches)

    def agreement(self) -> dict[str, float]:
        """The largest relative difference between our numbers and theirs."""
        ours, theirs = self.values["laplacian"], self.values["curvlinops_laplacian"]
        fisher = float(self.values["fisher"]) / float(self.values["backpack_fisher"])
        return {"fisher": abs(fisher - 1), "laplacian": float(((ours - theirs) / theirs).abs().max())}


def _print_peak(work: Work, device: str) -> None:
    work.fisher(), work.laplacian()
    resident = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(resident if device == "cpu" else float(torch.cuda.max_memory_allocated()))


def _peak_of_ours(device: str, images: int) -> float:
    """In a process of its own, torch and the data included."""
    asked = [sys.executable, "-m", "benchmarks.curvature", "--peak", "--device", device, "--images", str(images)]
    found = subprocess.run(asked, capture_output=True, text=True, check=True)
    return float(found.stdout.strip().splitlines()[-1])


def section(found: dict[str, Any]) -> str:
    rows = [
        (
            "the whole, against one plain forward and backward pass over the same images",
            found["ratio_to_plain_pass"]["ratio"],
            f"{found['limit']}",
        ),
        ("peak memory of the process, GB", found["peak_bytes"] / 1e9, f"{found['limit_bytes'] / 1e9:g}"),
    ]
    if "peers" in found:
        rows += [
            ("the whole, against BackPACK and curvlinops", found["ratio_to_peers"]["ratio"], "1"),
            ("the Fisher trace, against BackPACK", found["ratio_of_fisher_to_backpack"]["ratio"], ""),
            ("the Laplacian, against curvlinops", found["ratio_of_laplacian_to_curvlinops"]["ratio"], ""),
        ]
    return "\n".join(
        [
            "## The local analysis",
            "",
            f"The exact trace of the Fisher information and {found['probes']} probes of the Laplacian of a ResNet-20 "
            f"({found['parameters']:,} parameters) over {found['images']:,} images, in batches of {found['batch']}; "
            f"{found['clock']}. {_peers_of(found)}`python -m benchmarks.curvature`; {where(found)}.",
            "",
            "| what | ratio | aim at most |",
            "|---|---|---|",
            *(f"| {what} | **{value:.2f}** | {limit} |" for what, value, limit in rows),
            "",
        ]
    )


def _peers_of(found: dict[str, Any]) -> str:
    if "peers" not in found:
        return ""
    names = ", ".join(f"{name} {number}" for name, number in found["peers"].items())
    apart = max(found["agreement"].values())
    return f"Others on the same work: {names}; our numbers and theirs differ by at most {apart:.0e} of their size. "


if __name__ == "__main__":
    main()
