"""What the engines cost: `python -m benchmarks.engines`, or with `--device cuda` on a GPU.

CPU: MLP, small CNN and ResNet-20, batches of 1 to 256, m = 10: each engine against ten plain passes, and "auto" against
the best of them. GPU: batches of 256 (at most 1.03 times ten plain passes) and of 1 (at most 1.0 times one eager pass
and 2.2 times one CUDA-graphed pass). Weights are kept from call to call, as they are for a user who predicts more than
once. Rivals take turns; the first rounds warm up. With one thread on a CPU the clock is the process's own, which others
on the machine do not make slower.
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
from peppermill.engines.choose import engine_of
from peppermill.engines.members import members_of
from torch import Tensor, nn

import peppermill.demo
from benchmarks.networks import resnet20
from benchmarks.timing import RESULTS, where
from peppermill.engines.loop import averaged, member_predictions
from peppermill.likelihood import Categorical
from peppermill.noise import Noise
from peppermill.paper.networks import initialize, mnist_mlp
from peppermill.parameters import select
from peppermill.perturbation import Perturbation
from peppermill.plumbing.files import write_atomically
from peppermill.report.provenance import provenance

SIZE, SIGMA, MLP_BATCHES = 10, 0.01, 32
MEASURED_SECONDS = 0.06  # of each rival in each round, unless one call takes longer

#: Networks of the CPU set, and the shape of one item.
ON_CPU: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mnist_mlp": (lambda: initialize(mnist_mlp(), 0).eval(), (1, 28, 28)),
    "demo_cnn": (peppermill.demo.network, (1, 28, 28)),
    "resnet20": (resnet20, (3, 32, 32)),
}
ON_GPU = ("resnet50", "densenet121", "vgg16")
NAMES = {"mnist_mlp": "MNIST MLP", "demo_cnn": "demo CNN", "resnet20": "ResNet-20"}


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
            content: dict[str, Any] = {"size": SIZE, "rounds": arguments.rounds, "rows": rows}
            text = json.dumps(content | {"provenance": provenance(0)}, indent=1, allow_nan=False)
            write_atomically(path, text + "\n")
    print(f"wrote {path.name}")


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
        rivals = {engine: ensemble(model, inputs, engine) for engine in ("loop", "joined", "vmap", "auto")}
        ratios, plain = against(plain_passes(model, inputs), rivals, arguments.rounds)
        best = min(value for engine, value in ratios.items() if engine != "auto")
        measured = {"plain_us": 1e6 * plain, **ratios, "auto_to_best": ratios["auto"] / best}
        rows.append({"network": name, "batch": batch, **measured})
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
    perturbation = Perturbation(select(model, "kernels"), Noise(), SIZE)
    runner, likelihood = engine_of(engine, precision), Categorical()

    @torch.no_grad()
    def predict() -> Tensor:
        members = members_of(model, perturbation, SIGMA)
        return averaged(likelihood, member_predictions(members, likelihood, (inputs,), {}, runner))

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
    return "\n".join(
        [
            "## Engines on a CPU",
            "",
            f"A prediction of m = {found['size']} members, in units of ten plain passes of the network with as many "
            "threads; and `auto` over the best of the others, aim at most 1.05 ([engines.md](engines.md)). Aim for the "
            f"MNIST MLP in batches of 1 to {MLP_BATCHES}: 0.5. {_above(found['rows'])} `python -m benchmarks.engines`; "
            f"{where(found)}.",
            "",
            "| network | batch | threads | loop | joined | vmap | auto | auto / best |",
            "|---|---|---|---|---|---|---|---|",
            *map(_cpu_row, sorted(found["rows"], key=_place)),
            "",
        ]
    )


def _above(rows: list[dict[str, Any]]) -> str:
    """Where an aim is missed."""
    slow = [row for row in rows if row["network"] == "mnist_mlp" and row["batch"] <= MLP_BATCHES and row["auto"] > 0.5]
    wrong = [row for row in rows if row["auto_to_best"] > 1.05]
    cells = [
        f"the {NAMES[row['network']]} in batches of {row['batch']}, threads: {row['threads']}" for row in slow + wrong
    ]
    return f"Above these aims: {'; '.join(cells)}." if cells else "Nothing here is above these aims."


def _place(row: dict[str, Any]) -> tuple[int, ...]:
    return list(NAMES).index(row["network"]), row["threads"], row["batch"]


def _cpu_row(row: dict[str, Any]) -> str:
    engines = " | ".join(f"{row[engine]:.2f}" for engine in ("loop", "joined", "vmap"))
    place = f"{NAMES[row['network']]} | {row['batch']} | {row['threads']}"
    return f"| {place} | {engines} | **{row['auto']:.2f}** | {row['auto_to_best']:.2f} |"


def _gpu_section(found: dict[str, Any]) -> str:
    large, small = ([row for row in found["rows"] if (row["batch"] == 1) == one] for one in (False, True))
    return "\n".join(
        [
            "## Engines on a GPU",
            "",
            f"m = {found['size']}; `python -m benchmarks.engines --device cuda`; {where(found)}.",
            "",
            "| network | precision | batch 256, auto over ten plain passes, aim at most 1.03 |",
            "|---|---|---|",
            *(f"| {row['network']} | {row['precision'] or 'float32'} | **{row['auto']:.3f}** |" for row in large),
            "",
            "| network | engine | batch 1, over one eager pass, aim at most 1.0 | over one graphed pass, at most 2.2 |",
            "|---|---|---|---|",
            *(
                f"| {row['network']} | {engine} | **{row[f'{engine}_to_eager']:.2f}** "
                f"| **{row[f'{engine}_to_graphed']:.2f}** |"
                for row in small
                for engine in ("graphs", "auto")
            ),
            "",
        ]
    )


if __name__ == "__main__":
    main()
