"""What predictions for very many items cost: `python -m benchmarks.scale`.

Measured on the CPU: what writing parts costs beside the same passes without it (at most 1.05 times), the peak memory
for 400,000 and 4,000,000 rows (within 10 %), two processes against one (at least 1.8 times faster), and the rates of
decoding, encoding and writing. GPU rates come from results/bench/engines-gpu.json. From these follow the costs of 10^6
to 10^12 items, and a simulation of stragglers and lost workers gives the size of a part. docs/scale.md shows all of it.
"""

from __future__ import annotations

import argparse
import heapq
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import peppermill as pm
from benchmarks.timing import RESULTS, clock, in_turns, peak_bytes, ratio, table_section, where, write_result

SIZE, ITEMS, ROUNDS = 4, 4000, 11  # of the ratios on the demo network
ROWS, CLASSES, INPUTS = (400_000, 4_000_000), 100, 8  # of the measure of memory
PICTURES = 300
WORKERS, SIMULATED_ITEMS, TRIALS = 64, 10**8, 5
PART_SIZES = (1_000, 10_000, 50_000, 100_000, 1_000_000)

#: What is assumed and not measured here, each with its reason.
ASSUMPTIONS = {
    "classes": (
        1000,
        "classes of an item, in probabilities of 4 bytes; `--top 5` keeps 5 numbers and 5 classes, 40 bytes",
    ),
    "picture_bytes": (110_000, "bytes of a JPEG picture, as in ImageNet"),
    "network_bytes": (1_250_000_000, "bytes a second that a worker reads: 10 Gbit/s"),
    "decode_cores": (16, "cores beside each GPU that decode pictures"),
    "straggler_share": (0.05, "of the parts run at half the speed"),
    "hours_between_losses": (24, "hours after which a worker is lost, on average, as with spot machines"),
    "restart_seconds": (120, "seconds until a lost worker is back, with network and ensemble loaded"),
    "part_seconds": (0.05, "seconds for the files of a part: create, flush to disk, rename"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--memory", type=int, help="measure the peak memory of a prediction of this many rows")
    parser.add_argument("--share", help="predict a share of the data into this folder")
    asked = parser.parse_args()
    if asked.memory:
        print(json.dumps(memory(asked.memory)))
        return
    if asked.share:
        share(Path(asked.share))
        return
    torch.set_num_threads(1)
    found: dict[str, Any] = {"size": SIZE, "items": ITEMS, "streaming": streaming(), "rates": rates()}
    peaks = {rows: json.loads(run("--memory", str(rows))) for rows in ROWS}
    found["memory"] = {"rows": list(ROWS), "peak_bytes": [peaks[rows] for rows in ROWS]}
    found["processes"] = processes()
    found["gpu"] = gpu_rates()
    found["costs"] = [cost(found, items, size) for items in (10**6, 10**9, 10**12) for size in (1, 4, 10)]
    found["parts"] = [simulate(found, rows) for rows in PART_SIZES]
    found["assumptions"] = {name: value for name, (value, _) in ASSUMPTIONS.items()}
    write_result("scale", found)


def run(*arguments: str) -> str:
    """The output of this file in a process of its own, with one thread."""
    command = [sys.executable, "-m", "benchmarks.scale", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def streaming() -> dict[str, Any]:
    """CPU seconds of the passes alone, and of the same with parts written as npz and as Parquet."""
    pep = pm.PepEnsemble.at_sigma(pm.demo.network(), 0.02, size=SIZE)
    x = pm.demo.data()[1][0][:ITEMS]
    with tempfile.TemporaryDirectory() as folder:
        names = iter(range(10**6))

        def write(form: str) -> None:
            pm.write_predictions(
                pep, x, Path(folder) / str(next(names)), columns="probabilities,predicted", format=form
            )

        def passes() -> None:
            for batch in x.split(500):
                pep.predict_proba(batch)

        jobs = {"passes": passes, "npz": lambda: write("npz"), "parquet": lambda: write("parquet")}
        for job in jobs.values():
            job()
        seconds = in_turns(jobs, "cpu", ROUNDS)
    return {name: ratio(seconds[name], seconds["passes"]) for name in ("npz", "parquet")}


def rates() -> dict[str, float]:
    """Items a second of one core: decoding a picture, and encoding, checking and writing rows of 100 classes."""
    generator, files = np.random.RandomState(0), []
    for _ in range(PICTURES):
        coarse = Image.fromarray(generator.randint(0, 256, (15, 20, 3)).astype(np.uint8))
        buffer = io.BytesIO()
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(buffer, "jpeg", quality=90)
        files.append(buffer.getvalue())
    start = clock("cpu")
    for file in files:
        with Image.open(io.BytesIO(file)) as picture:
            np.asarray(picture.convert("RGB").resize((256, 256))) / np.float32(255)
    decoding = len(files) / (clock("cpu") - start)
    rates = {"decoded_pictures": decoding}
    network, x = nn.Linear(INPUTS, CLASSES).eval(), torch.randn(100_000, INPUTS)
    for form in ("npz", "parquet"):
        with tempfile.TemporaryDirectory() as folder:
            seconds = []
            for k in range(3):
                start = clock("cpu")
                sum(len(batch["row"]) for batch in pm.stream(network, x, columns="probabilities"))
                passes = clock("cpu") - start
                start = clock("cpu")
                pm.write_predictions(network, x, Path(folder) / str(k), columns="probabilities", format=form)
                seconds.append(max(clock("cpu") - start - passes, 1e-3))
            rates[f"{form}_bytes"] = 4 * CLASSES * len(x) / statistics.median(seconds)
    return rates


def memory(rows: int) -> float:
    """The peak memory of a prediction of this many rows, from an array that is mapped and not read at once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        numbers = np.lib.format.open_memmap(path, "w+", np.float32, (rows, INPUTS))
        for start in range(0, rows, 100_000):
            numbers[start : start + 100_000] = np.random.default_rng(start).normal(size=(100_000, INPUTS))
        del numbers
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        pm.write_predictions(network(), np.load(path, mmap_mode="r"), Path(folder) / "out")
        return peak_bytes()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(INPUTS, CLASSES).eval()


def share(folder: Path) -> None:
    """What one process of the measure of two does: its start is not counted, only the prediction."""
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    pep = pm.PepEnsemble.at_sigma(pm.demo.network(), 0.02, size=SIZE)
    x = pm.demo.data()[1][0][:ITEMS].repeat(3, 1, 1, 1)
    for k in range(2):  # the first time is to warm up
        if "RANK" in os.environ:
            torch.distributed.barrier()  # or the first process's time would hold its wait for the second
        wall, own = time.perf_counter(), time.process_time()
        pm.write_predictions(pep, x, folder / str(k), part_items=500)
        seconds = time.perf_counter() - wall, time.process_time() - own
    print(*seconds)


def processes() -> dict[str, Any]:
    """One process against two under torchrun, in turns: CPU seconds of the busier one, and seconds on the wall."""
    alone = [sys.executable]
    both = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(3):
            seconds = []
            for name, launcher in (("one", alone), ("two", both)):
                command = [*launcher, "-m", "benchmarks.scale", "--share", f"{folder}/{name}{k}"]
                lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
                found = [[float(word) for word in line.split()] for line in lines if line[:1].isdigit()]
                seconds.append([max(column) for column in zip(*found, strict=True)])
            rounds.append([one / two for one, two in zip(*seconds, strict=True)])
    wall, own = (sorted(column) for column in zip(*rounds, strict=True))
    found = {"ratio": own[1], "ratio_lowest": own[0], "ratio_highest": own[-1], "wall_ratio": wall[1]}
    return {**found, "load": os.getloadavg()[0]}


def gpu_rates() -> dict[str, Any]:
    """Passes a second of one member of ResNet50 on the GPU of results/bench/engines-gpu.json, batch 256, float32."""
    measured = json.loads((RESULTS / "engines-gpu.json").read_text())
    row = next(r for r in measured["rows"] if (r["network"], r["batch"], r["precision"]) == ("resnet50", 256, None))
    seconds = 1e-6 * row["auto"] * row["plain_us"] / measured["size"]
    return {"passes": row["batch"] / seconds, "gpu": measured["provenance"]["hardware"]["gpu"], "network": "resnet50"}


def value(name: str) -> float:
    return float(ASSUMPTIONS[name][0])


def cost(found: dict[str, Any], items: int, size: int) -> dict[str, Any]:
    """GPU hours, storage, and what limits a worker with one GPU: the slowest of four rates, in items a second."""
    row_bytes = 4 * value("classes")
    rates = {
        "GPU": found["gpu"]["passes"] / size,
        "decoding": value("decode_cores") * found["rates"]["decoded_pictures"],
        "reading": value("network_bytes") / value("picture_bytes"),
        "writing": found["rates"]["parquet_bytes"] / row_bytes,
    }
    limit = min(rates, key=lambda name: rates[name])
    return {
        "items": items,
        "size": size,
        "gpu_hours": items / rates["GPU"] / 3600,
        "worker_hours": items / rates[limit] / 3600,
        "limit": limit,
        "rates": rates,
        "all_bytes": items * row_bytes,
        "top_bytes": items * 5 * 8.0,
        "workers_in_a_day": items / rates[limit] / 86_400,
    }


def simulate(found: dict[str, Any], rows: int) -> dict[str, float]:
    """Time over the ideal, of 64 workers and 10^8 items at m = 4, as torchrun shares them and as a queue does.

    A part on a slow worker takes twice as long. A lost worker loses its part, returns after a while, and goes on.
    """
    rate, seed = found["gpu"]["passes"] / 4, random.Random(0)
    ideal = SIMULATED_ITEMS / rate / WORKERS
    parts = -(-SIMULATED_ITEMS // rows)
    shared, queued = [], []
    for _ in range(TRIALS):
        ends = [0.0] * WORKERS
        for part in range(parts):
            ends[part % WORKERS] += part_seconds(rows / rate, seed)
        shared.append(max(ends) / ideal)
        free = [0.0] * WORKERS
        for _ in range(parts):
            heapq.heappush(free, heapq.heappop(free) + part_seconds(rows / rate, seed))
        queued.append(max(free) / ideal)
    return {"rows": rows, "files": parts, "shared": statistics.mean(shared), "queued": statistics.mean(queued)}


def part_seconds(work: float, seed: random.Random) -> float:
    """The time of one part on one worker, with the losses on the way."""
    work = work * (2 if seed.random() < value("straggler_share") else 1) + value("part_seconds")
    spent, mean = 0.0, 3600 * value("hours_between_losses")
    while (loss := seed.expovariate(1 / mean)) < work:
        spent += loss + value("restart_seconds")
    return spent + work


def section(found: dict[str, Any]) -> str:
    one, two = found["streaming"], found["processes"]
    small, large = found["memory"]["peak_bytes"]
    rows = [
        ("parts of npz, over the passes alone", f"**{one['npz']['ratio']:.3f}**", "at most 1.05"),
        ("parts of Parquet, over the passes alone", f"**{one['parquet']['ratio']:.3f}**", "at most 1.05"),
        (f"peak memory, {ROWS[1]:,} over {ROWS[0]:,} rows", f"**{large / small:.2f}**", "at most 1.10"),
        ("one process over two", f"**{two['ratio']:.2f}**", "at least 1.8"),
    ]
    return table_section(
        "Predictions in parts",
        f"`write_predictions` on the demo network, m = {found['size']}, {found['items']:,} images. Times are CPU "
        f"seconds, medians of {ROUNDS} rounds. Peak memory is that of a memory-mapped array, {large / 1e6:.0f} MB for "
        f"the larger one. Two processes run under torchrun and are timed by the CPU seconds of the busier one: a ratio "
        f"of {two['ratio_lowest']:.2f} to {two['ratio_highest']:.2f} in three rounds ({two['wall_ratio']:.2f} by the "
        f"clock, at a load average of {two['load']:.0f}). "
        f"[scale.md](scale.md) extrapolates to very large data sets. `python -m benchmarks.scale`; {where(found)}.",
        ("measure", "found", "aim"),
        rows,
    )


def short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def in_bytes(number: float) -> str:
    unit = max((one for one in (1e6, 1e9, 1e12, 1e15) if one <= number), default=1e6)
    return f"{number / unit:.3g} {dict(zip((1e6, 1e9, 1e12, 1e15), ('MB', 'GB', 'TB', 'PB'), strict=True))[unit]}"


def page_block() -> str:
    """The generated part of docs/scale.md."""
    found = json.loads((RESULTS / "scale.json").read_text())
    lines = ["| items | m | GPU hours | workers for one day | limited by | all classes | `--top 5` |", "|---" * 7 + "|"]
    for row in found["costs"]:
        hours, workers = short(row["gpu_hours"]), short(row["workers_in_a_day"])
        items, sizes = f"10^{len(str(row['items'])) - 1}", (in_bytes(row[name]) for name in ("all_bytes", "top_bytes"))
        lines.append(f"| {items} | {row['size']} | {hours} | {workers} | {row['limit']} | {' | '.join(sizes)} |")
    rates = {row["size"]: row["rates"] for row in found["costs"]}
    lines += ["", "| rate of one worker, items a second | m = 1 | m = 4 | m = 10 |", "|---" * 4 + "|"]
    for name in rates[1]:
        lines.append(f"| {name} | " + " | ".join(f"{rates[size][name]:,.0f}" for size in (1, 4, 10)) + " |")
    head = ("rows of a part", "files", "torchrun: time over the ideal", "a queue, as in Ray: time over the ideal")
    lines += ["", f"| {' | '.join(head)} |", "|---" * 4 + "|"]
    for row in found["parts"]:
        lines.append(f"| {row['rows']:,} | {row['files']:,} | {row['shared']:.3f} | {row['queued']:.3f} |")
    lines += ["", "| assumption | value | reason |", "|---|---|---|"]
    lines += [f"| {name} | {found['assumptions'][name]:,} | {why} |" for name, (_, why) in ASSUMPTIONS.items()]
    source = f"{found['gpu']['gpu']}, ResNet50, float32, batch 256, from `results/bench/engines-gpu.json`"
    lines += ["", f"`python -m benchmarks.scale`, `results/bench/scale.json`; {where(found)}; GPU rates: {source}."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
