"""What the local analysis costs: `python -m benchmarks.curvature`.

`local_analysis` with 8 probes (the exact trace of the Fisher information, the Laplacian, and the effect rate from small
steps) for a ResNet-20 and 1,000 images 32x32, against one plain forward and backward pass over the same images (at most
40 times, under 2 GB); and against others, if they are installed, on part of the same work: the squared gradients of the
items by BackPACK and the Hessian-vector products by curvlinops.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm
from benchmarks.networks import resnet20
from benchmarks.timing import clock_name, in_turns, peak_bytes, ratio, rounded_up, table_section, where, write_result

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
    work = Work(asked.device, asked.images)
    if asked.peak:
        work.ours()
        print(peak_bytes() if asked.device == "cpu" else float(torch.cuda.max_memory_allocated()))
        return
    command = [sys.executable, "-m", "benchmarks.curvature", "--peak", "--device", asked.device, "--images"]
    peak = subprocess.run([*command, str(asked.images)], capture_output=True, text=True, check=True).stdout
    in_turns(Work(asked.device, BATCH).jobs(), asked.device, rounds=1)  # warms up
    seconds = in_turns(work.jobs(), asked.device, asked.rounds)
    content = {
        "work": f"`local_analysis` with {PROBES} probes",
        "images": asked.images,
        "probes": PROBES,
        "batch": BATCH,
        "rounds": asked.rounds,
        "parameters": sum(value.numel() for value in work.model.parameters()),
        "clock": clock_name(asked.device),
        "seconds": seconds,
        "ratio_to_plain_pass": ratio(seconds["ours"], seconds["plain"]),
        "limit": LIMIT,
        "peak_bytes": float(peak.strip().splitlines()[-1]),
        "limit_bytes": LIMIT_BYTES,
    }
    if all(map(find_spec, PEERS)):
        theirs = [a + b for a, b in zip(seconds["backpack_fisher"], seconds["curvlinops_laplacian"], strict=True)]
        content |= {
            "ratio_to_peers": ratio(seconds["ours"], theirs),
            "agreement": work.agreement(),
            "peers": {name: version(name) for name in PEERS.values()},
        }
    write_result(asked.name, content)


class Work:
    """The same work, by us and by others."""

    def __init__(self, device: str, images: int) -> None:
        generator = torch.Generator().manual_seed(0)
        inputs, labels = torch.randn(images, 3, 32, 32, generator=generator), torch.arange(images) % 10
        self.device, self.model = device, resnet20().to(device)
        self.batches = list(zip(inputs.to(device).split(BATCH), labels.to(device).split(BATCH), strict=True))
        self.loss = nn.CrossEntropyLoss(reduction="sum")

    def jobs(self) -> dict[str, Callable[[], Any]]:
        jobs: dict[str, Callable[[], Any]] = {"plain": self.plain, "ours": self.ours}
        if all(map(find_spec, PEERS)):
            jobs |= {"backpack_fisher": self.backpack_fisher(), "curvlinops_laplacian": self.curvlinops_laplacian}
        return jobs

    def plain(self) -> None:
        for inputs, labels in self.batches:
            self.model.zero_grad()
            self.loss(self.model(inputs), labels).backward()

    def ours(self) -> pm.LocalAnalysis:
        return pm.local_analysis(self.model, self.batches, parameters="all", probes=PROBES)

    def backpack_fisher(self) -> Callable[[], Tensor]:
        """The job, on a network of its own, because BackPACK stores its results in the network."""
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
        """v^T H v of as many probes, [n]."""
        from curvlinops import HessianLinearOperator

        params, items = list(self.model.parameters()), sum(len(labels) for _, labels in self.batches)
        hessian = HessianLinearOperator(
            self.model, self.loss, params, self.batches, check_deterministic=False, num_data=items
        )
        dimensions = sum(value.numel() for value in params)
        probes = torch.randn(dimensions, PROBES, generator=torch.Generator().manual_seed(0)).to(self.device)
        return -(probes * (hessian @ probes)).sum(dim=0).double().cpu()

    def agreement(self) -> dict[str, float]:
        """The relative difference between our trace of the Fisher information and BackPACK's."""
        return {"fisher": abs(self.ours().fisher_trace / float(self.backpack_fisher()()) - 1)}


def section(found: dict[str, Any]) -> str:
    rows = [
        (
            "the whole, against one plain forward and backward pass over the same images",
            found["ratio_to_plain_pass"]["ratio"],
            f"{found['limit']}",
        ),
        ("peak memory of the process, GB", found["peak_bytes"] / 1e9, f"{found['limit_bytes'] / 1e9:g}"),
    ]
    peers = ""
    if "peers" in found:
        rows += [("the whole, against BackPACK and curvlinops", found["ratio_to_peers"]["ratio"], "1")]
        names = ", ".join(f"{name} {number}" for name, number in found["peers"].items())
        apart = max(found["agreement"].values())
        peers = f"Others: {names}; our numbers and theirs differ by at most {rounded_up(apart)} of their size. "
    # The first results left out the small steps of `local_analysis`.
    work = found.get("work", "The exact trace of the Fisher information and 8 probes of the Laplacian")
    return table_section(
        "The local analysis",
        f"{work}, for a ResNet-20 "
        f"({found['parameters']:,} parameters) over {found['images']:,} images, in batches of {found['batch']}; "
        f"{found['clock']}. {peers}`python -m benchmarks.curvature`; {where(found)}.",
        ("what", "ratio", "aim at most"),
        [(what, f"**{value:.2f}**", limit) for what, value, limit in rows],
    )


if __name__ == "__main__":
    main()
