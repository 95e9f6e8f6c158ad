"""What the engines cost: `python -m benchmarks.engines`, or with `--device cuda` on a GPU.

CPU: MLP, small CNN and ResNet-20, batches of 1 to 256, m = 10: each engine against ten plain passes. GPU: batches
of 256 against ten plain passes of the same precision, and batches of 1 against one pass, eager and CUDA-graphed.
Weights are kept from call to call, as they are for a user who predicts more than once. Rivals take turns; the first
rounds warm up. With one thread on a CPU the clock is the process's own, which others on the machine do not make slower.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm
from benchmarks.networks import mnist_mlp, resnet20
from benchmarks.timing import RESULTS, provenance, where

SIZE, SIGMA = 10, 0.01
MEASURED_SECONDS = 0.06  # of each rival in each round, unless one call takes longer

#: Networks of the CPU set, and the shape of one item.
ON_CPU: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mnist_mlp": (mnist_mlp, (1, 28, 28)),
    "demo_cnn": (pm.demo.network, (1, 28, 28)),
    "resnet20": (resnet20, (3, 32, 32)),
}
ON_GPU = ("resnet50", "densenet121", "vgg16")
NAMES = {"mnist_mlp": "MNIST MLP", "demo_cnn": "demo CNN", "resnet20": "ResNet-20"}

#: The largest ratio that we aim for, by network and batch on a CPU, and by network and precision on a GPU.
CPU_AIMS: dict[str, Callable[[int], float | None]] = {
    "mnist_mlp": lambda batch: 1.0 if batch <= 32 else None,
    "demo_cnn": lambda batch: 0.80 if batch >= 32 else 1.0,
    "resnet20": lambda batch: 0.85,
}
FLOAT32_AIMS = {"resnet50": 0.60, "densenet121": 0.85, "vgg16": 0.65}
BFLOAT16_AIM, EAGER_AIM, GRAPHED_AIM = 0.80, 0.60, 2.4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", default="", help="networks; others keep their rows")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64,128,256")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", default="1,2", help="of a CPU: with one the clock is the process's own")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    cuda = arguments.device.startswith("cuda")
    path = arguments.out / f"engines-{'gpu' if cuda else 'cpu'}.json"
    for threads in map(int, "1" if cuda else arguments.threads.split(",")):
        torch.set_num_threads(threads)
        for name in arguments.networks.split(",") if arguments.networks else ON_GPU if cuda else ON_CPU:
            rows = [row | {"threads": threads} for row in (on_gpu if cuda else on_cpu)(name, arguments)]
            rows = [*_kept(path, rows), *rows]
            content = {"size": SIZE, "rounds": arguments.rounds, "rows": rows, "provenance": provenance()}
            path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def _kept(path: Path, measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of other networks, batches and numbers of threads, measured before."""

    def case(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in ("network", "batch", "precision", "threads"))

    known = json.loads(path.read_text())["rows"] if path.exists() else []
    return [row for row in known if case(row) not in set(map(case, measured))]


def on_cpu(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A network at every batch: the time of each engine, in units of ten plain passes."""
    rows = []
    build, shape = ON_CPU[name]
    model = build()
    for batch in map(int, arguments.batches.split(",")):
        inputs = torch.rand(batch, *shape)
        rivals = {engine: ensemble(model, inputs, engine) for engine in ("loop", "vmap", "auto")}
        ratios, plain = against(plain_passes(model, inputs), rivals, arguments.rounds)
        rows.append({"network": name, "batch": batch, "plain_us": 1e6 * plain, **ratios})
        print(
            f"{name} {batch}, {torch.get_num_threads()} threads: "
            + ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()),
            flush=True,
        )
    return rows


def on_gpu(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Batches of 256 against ten plain passes, in both precisions; batches of 1 against one pass, eager and graphed."""
    import torchvision

    rows = []
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)().eval().to(arguments.device)
    if name != "vgg16":
        rows.append({"network": name, "batch": 1, "precision": None, **latency(model, arguments)})
        print(rows[-1], flush=True)
    inputs = torch.randn(256, 3, 224, 224, device=arguments.device)
    for precision in (None, "bfloat16"):
        rivals = {engine: ensemble(model, inputs, engine, precision) for engine in ("loop", "auto")}
        ratios, plain = against(plain_passes(model, inputs, precision), rivals, arguments.rounds)
        rows.append({"network": name, "batch": 256, "precision": precision, "plain_us": 1e6 * plain, **ratios})
        print(rows[-1], flush=True)
    return rows


def latency(model: nn.Module, arguments: argparse.Namespace) -> dict[str, float]:
    """One item: all members, in units of one eager pass and of one CUDA-graphed pass."""
    inputs = torch.randn(1, 3, 224, 224, device=arguments.device)
    outputs: dict[str, float] = {}
    for base, one in (("eager", plain_passes(model, inputs, count=1)), ("graphed", graphed_pass(model, inputs))):
        rivals = {engine: ensemble(model, inputs, engine) for engine in ("graphs", "auto")}
        ratios, plain = against(one, rivals, 5 * arguments.rounds)
        outputs |= {f"{base}_us": 1e6 * plain} | {f"{engine}_to_{base}": value for engine, value in ratios.items()}
    return outputs


def ensemble(model: nn.Module, inputs: Tensor, engine: str, precision: str | None = None) -> Callable[[], Tensor]:
    """What a call of the ensemble does, from inputs to averaged log-probabilities."""
    pep = pm.PepEnsemble.at_sigma(model, SIGMA, size=SIZE).with_engine(engine, precision)

    @torch.no_grad()
    def predict() -> Tensor:
        return pep(inputs)

    return predict


def plain_passes(
    model: nn.Module, inputs: Tensor, precision: str | None = None, count: int = SIZE
) -> Callable[[], list[Tensor]]:
    """The bare network, m times."""

    @torch.no_grad()
    def passes() -> list[Tensor]:
        dtype = getattr(torch, precision) if precision else torch.bfloat16
        with torch.autocast(inputs.device.type, dtype, enabled=precision is not None, cache_enabled=False):
            return [model(inputs) for _ in range(count)]

    return passes


@torch.no_grad()
def graphed_pass(model: nn.Module, inputs: Tensor) -> Callable[[], Tensor]:
    """One pass of the bare network as a CUDA graph, inputs copied in and outputs copied off."""
    static, side = inputs.clone(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = model(static)

    def replay() -> Tensor:
        static.copy_(inputs)
        graph.replay()
        return outputs.clone()

    return replay


def against(
    plain: Callable[[], Any], rivals: dict[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, float], float]:
    """Median seconds of each rival over those of the plain way, and the latter.

    In each round everybody runs several times in a row, the first few times unmeasured, so that nobody starts with the
    caches that a rival left; and every other round goes backwards, so that nobody always comes after the same rival.
    """
    jobs = [plain, *rivals.values()]
    for job in jobs:
        _seconds(job, 3)
    repeats = [max(1, min(20, round(MEASURED_SECONDS / _seconds(job, 1)))) for job in jobs]
    times = [[0.0] * len(jobs) for _ in range(rounds)]
    for number, row in enumerate(times):
        for k in range(len(jobs)) if number % 2 else reversed(range(len(jobs))):
            row[k] = _seconds(jobs[k], repeats[k])
    return _ratios(list(rivals), times), statistics.median(row[0] for row in times)


def _ratios(names: Sequence[str], times: list[list[float]]) -> dict[str, float]:
    return {name: statistics.median(row[k + 1] / row[0] for row in times) for k, name in enumerate(names)}


def _seconds(job: Callable[[], Any], repeats: int) -> float:
    for _ in range(min(3, repeats - 1)):
        job()
    _wait()
    clock = time.perf_counter if torch.cuda.is_available() or torch.get_num_threads() > 1 else time.process_time
    times = []
    for _ in range(repeats):
        start = clock()
        job()
        _wait()
        times.append(clock() - start)
    return statistics.median(times)  # others on the machine make some of them longer


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def section(found: dict[str, Any]) -> str:
    """The words of the page."""
    return _gpu_section(found) if "gpu" in found["provenance"]["hardware"] else _cpu_section(found)


def _cpu_section(found: dict[str, Any]) -> str:
    rows = sorted(found["rows"], key=lambda row: (list(NAMES).index(row["network"]), row["threads"], row["batch"]))
    return "\n".join(
        [
            "## Engines on a CPU",
            "",
            f"Time of a prediction of m = {found['size']} members, divided by that of ten plain passes of the network "
            "with the same number of threads. The last column is our upper limit; an asterisk marks a ratio above it. "
            f"`python -m benchmarks.engines`; {where(found)}.",
            "",
            "| network | batch | threads | loop | vmap | auto | aim |",
            "|---|---|---|---|---|---|---|",
            *map(_cpu_row, rows),
            "",
        ]
    )


def _cpu_row(row: dict[str, Any]) -> str:
    aim = CPU_AIMS[row["network"]](row["batch"])
    engines = f"{row['loop']:.2f} | {row['vmap']:.2f} | {_marked(row['auto'], aim)}"
    return f"| {NAMES[row['network']]} | {row['batch']} | {row['threads']} | {engines} | {aim or ''} |"


def _marked(value: float, aim: float | None) -> str:
    return f"**{value:.2f}**" + ("*" if aim is not None and round(value, 2) > aim else "")


def _gpu_section(found: dict[str, Any]) -> str:
    large, small = ([row for row in found["rows"] if (row["batch"] == 1) == one] for one in (False, True))
    return "\n".join(
        [
            "## Engines on a GPU",
            "",
            f"m = {found['size']}, `auto`; an asterisk marks a ratio above our upper limit. "
            f"`python -m benchmarks.engines --device cuda`; {where(found)}.",
            "",
            "| network | precision | batch 256, over ten plain passes of that precision | aim | milliseconds |",
            "|---|---|---|---|---|",
            *map(_large_row, large),
            "",
            f"| network | batch 1, over an eager pass (aim {EAGER_AIM}) | over a graphed pass (aim {GRAPHED_AIM}) |",
            "|---|---|---|",
            *(
                f"| {row['network']} | {_marked(row['auto_to_eager'], EAGER_AIM)} "
                f"| {_marked(row['auto_to_graphed'], GRAPHED_AIM)} |"
                for row in small
            ),
            "",
        ]
    )


def _large_row(row: dict[str, Any]) -> str:
    aim = BFLOAT16_AIM if row["precision"] else FLOAT32_AIMS[row["network"]]
    milliseconds = row["auto"] * row["plain_us"] / 1e3
    precision = row["precision"] or "float32"
    return f"| {row['network']} | {precision} | {_marked(row['auto'], aim)} | {aim:.2f} | {milliseconds:.0f} |"


if __name__ == "__main__":
    main()
