"""PEP beside what people would use instead, on the same work: `python -m benchmarks.peers [--device cuda]`.

The embedded network, its images, m = 10, and these rivals, where they are installed:

- m deep copies of the network with the members' weights, in a loop;
- torch-uncertainty's `deep_ensembles` of the same copies;
- laplace-torch's sampled predictive, a diagonal posterior over all weights or over the last layer;
- for tuning, the authors' procedure: 20 values of sigma, for each the images read again and m networks set up.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm
from benchmarks.rivals import LAPLACE_ITEMS, SIZE, Job, Rivals, versions_of_peers
from benchmarks.timing import clock_name, in_turns, peak_bytes, ratio, rounded_up, table_section, where, write_result

ITEMS, BATCH = 2000, 250  # of the embedded test images
TUNING_ITEMS, AUTHORS_ROUNDS = 1000, 20  # values of sigma that the authors' procedure looks at
ROUNDS, CALLS = 5, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--name", help="of the result: results/bench/NAME.json")
    parser.add_argument("--peak", metavar="WAY", help="print the peak memory of one way on a large network, and stop")
    asked = parser.parse_args()
    if asked.peak:
        print(_peak_here(asked.peak, asked.device))
        return
    found = measure(asked.device, asked.items, asked.rounds)
    write_result(
        asked.name or f"peers-{asked.device.partition(':')[0]}",
        {**found, "memory": peak_memory(asked.device), "peers": versions_of_peers()},
    )


def measure(device: str, items: int, rounds: int) -> dict[str, Any]:
    """Every time, in seconds and as a multiple of ours."""
    images, labels = (part[:items].to(device) for part in pm.demo.test())
    rivals = Rivals(pm.demo.network().to(device), images, labels)
    batches, one = list(images.split(BATCH)), [images[:1]] * CALLS
    prepared = preparing(rivals, device)
    return {
        "size": SIZE,
        "items": items,
        "batch": BATCH,
        "rounds": rounds,
        "clock": clock_name(device),
        "predicting": against_ours({name: way(batches) for name, way in rivals.ways().items()}, device, rounds),
        "one_item": against_ours(
            {name: way(one) for name, way in rivals.ways().items() if name != "ours"}, device, rounds, "ours_by_batch"
        ),
        "preparing_seconds": prepared,
        "laplace_items": LAPLACE_ITEMS,
        "tuning_items": min(TUNING_ITEMS, items),
        "tuning": against_ours(tuning(rivals.model, min(TUNING_ITEMS, items)), device, min(3, rounds)),
        "largest_difference_from_copies": rivals.agreement(),
    }


def against_ours(jobs: dict[str, Job], device: str, rounds: int, ours: str = "ours") -> dict[str, Any]:
    """Every job's seconds, and its time divided by ours: above 1, we are faster."""
    in_turns(jobs, device, 1)  # warms up
    seconds = in_turns(jobs, device, rounds)
    return {name: {**ratio(taken, seconds[ours]), "seconds": taken} for name, taken in seconds.items()}


def preparing(rivals: Rivals, device: str) -> dict[str, float]:
    """Seconds before the first prediction, sigma known: ours needs none, others have to make something."""
    jobs: dict[str, Job] = {"copies": lambda: [rivals.copy(member) for member in range(SIZE)]}
    if find_spec("laplace"):
        jobs |= {f"laplace_{kind}": partial(rivals.laplace, kind) for kind in ("all", "last_layer")}
    return {name: taken[0] for name, taken in in_turns(jobs, device, 1).items()}


def tuning(model: nn.Module, items: int) -> dict[str, Job]:
    """Finding sigma: ours, and as the authors did it, on the same items and with the same m."""
    data = tuple(part[:items] for part in pm.demo.validation())

    def authors() -> list[float]:
        return [_log_likelihood(model, items, 0.002 * (k + 1)) for k in range(AUTHORS_ROUNDS)]

    def ours(temperature: bool) -> pm.PepEnsemble:
        return pm.fit(model, data, size=SIZE, batch_size=BATCH, temperature=temperature)

    return {"ours": partial(ours, False), "ours_with_temperature": partial(ours, True), "authors": authors}


@torch.no_grad()
def _log_likelihood(model: nn.Module, items: int, sigma: float) -> float:
    """At one sigma: the images are read, and each member is a network that is set up and run over them."""
    images, labels = (part[:items] for part in pm.demo.validation())
    device, total = next(model.parameters()).device, torch.zeros(())
    for member in range(SIZE):
        network, generator = copy.deepcopy(model), torch.Generator().manual_seed(member)
        for value in (value for value in network.parameters() if value.ndim > 1):
            value += sigma * torch.randn(value.shape, generator=generator).to(device)
        total = total + torch.cat([_probabilities(network, batch.to(device)) for batch in images.split(BATCH)]) / SIZE
    return float(total.gather(1, labels[:, None]).log().mean())


def _probabilities(network: nn.Module, images: Tensor) -> Tensor:
    found: Tensor = network(images).softmax(dim=1).cpu()
    return found


def peak_memory(device: str) -> dict[str, float]:
    """Peak memory of each way beyond a plain pass, in copies of the weights of a network of 64 MiB.

    laplace-torch is left out: what it takes is decided by its fit, a gradient for each item and class.
    """
    ways = ["ours", "copies", *(["torch_uncertainty"] if find_spec("torch_uncertainty") else [])]
    plain = _peak("plain", device)
    weights = 4.0 * sum(value.numel() for value in _large_network().parameters())
    return {way: (_peak(way, device) - plain) / weights for way in ways}


def _large_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4)), nn.Linear(2048, 10)).eval()


def _peak(way: str, device: str) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peers", "--peak", way, "--device", device]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(found.stdout.strip().splitlines()[-1])


def _peak_here(way: str, device: str) -> float:
    """Of this process, which makes nothing that this way does not need."""
    inputs, labels = torch.randn(8, 2048).to(device), torch.zeros(8, dtype=torch.long).to(device)
    rivals = Rivals(_large_network().to(device), inputs, labels)
    rivals.ways()[way]([inputs])()
    if device == "cpu":
        return peak_bytes()
    return float(torch.cuda.max_memory_allocated())


#: What the ways are called on the page, and against what each is the rival.
NAMES = {
    "plain": "ten plain passes of the bare network, the floor",
    "ours_by_batch": "peppermill, batch after batch: `pep(x)`",
    "ours": "peppermill, member after member: `predict_items`",
    "copies": "ten deep copies in a loop",
    "torch_uncertainty": "torch-uncertainty, `deep_ensembles` of the copies",
    "laplace_all": "laplace-torch, all weights, sampled",
    "ours_last_layer": "peppermill, last layer only, `pep(x)`",
    "laplace_last_layer": "laplace-torch, last layer only, sampled",
}


def section(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in found["peers"].items()) or "No peer was installed"
    command = found["provenance"]["command"]
    table = table_section(
        f"Beside others, on a {'GPU' if 'gpu' in found['provenance']['hardware'] else 'CPU'}",
        f"The demo network, m = {found['size']}: {found['items']:,} images in batches of {found['batch']}, and one "
        f"image at a time. Times as multiples of peppermill's own ({found['clock']}): **above 1 peppermill is "
        f"faster**, below 1 the other. Memory is the peak beyond a plain pass, in copies of the weights. Our "
        f"probabilities and the copies' differ by at most {rounded_up(found['largest_difference_from_copies'])}. "
        f"{versions}. `{command}`; {where(found)}.",
        ("what", f"batches of {found['batch']}", "one image", "memory"),
        [_row(name, title, found) for name, title in NAMES.items() if name in found["predicting"]],
    )
    return "\n".join([table, *_words(found), ""])


def _row(name: str, title: str, found: dict[str, Any]) -> tuple[str, str, str, str]:
    memory = f"{found['memory'][name]:.1f}" if name in found["memory"] else ""
    one = f"**{found['one_item'][name]['ratio']:.2f}**" if name in found["one_item"] else ""
    return title, f"**{found['predicting'][name]['ratio']:.2f}**", one, memory


def _words(found: dict[str, Any]) -> list[str]:
    """Tuning, preparing, and where a peer is faster."""
    authors, made = found["tuning"]["authors"]["ratio"], found["preparing_seconds"]
    per_item = made.get("laplace_all", 0) / found["laplace_items"]
    laplace = f", and fitting laplace-torch to all weights {per_item:.2g} s per item" if per_item else ""
    return [
        f"To find sigma on {found['tuning_items']:,} images, the authors' procedure (20 values of sigma; for each, the "
        f"images are read again and ten networks are built) takes **{authors:.2f}** times as long as `fit`, and `fit` "
        f"with a temperature {found['tuning']['ours_with_temperature']['ratio']:.2f} times as long. Before the first "
        f"prediction, making ten copies takes {made['copies']:.2f} s{laplace}; peppermill needs no preparation.",
        "",
        f"Where others are faster: {'; '.join(_faster(found)) or 'nowhere in this table'}.",
    ]


def _faster(found: dict[str, Any]) -> list[str]:
    """Every peer that beats ours on the same work, and by how much."""
    lines = []
    for kind, words in {"predicting": f"batches of {found['batch']}", "one_item": "one image at a time"}.items():
        taken = {name: one["ratio"] for name, one in found[kind].items()}
        ours = min(taken[name] for name in ("ours", "ours_by_batch") if name in taken)
        rivals = {name: ours / taken[name] for name in ("copies", "torch_uncertainty", "laplace_all") if name in taken}
        if "laplace_last_layer" in taken:
            rivals["laplace_last_layer"] = taken["ours_last_layer"] / taken["laplace_last_layer"]
        lines += [f"{NAMES[name]}, {words}, {times:.1f} times" for name, times in rivals.items() if times > 1.05]
    return lines


if __name__ == "__main__":
    main()
