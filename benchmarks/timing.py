"""How the benchmarks measure: rivals take turns, so that a noisy machine is noisy for both."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from peppermill.plumbing.files import write_atomically
from peppermill.report.provenance import provenance

RESULTS = Path(__file__).resolve().parent.parent / "results" / "bench"


def median_ratio(first: Callable[[], Any], second: Callable[[], Any], rounds: int = 7) -> dict[str, float]:
    """Seconds of both, and the median over rounds of first / second; one round of each warms up."""
    first(), second()
    pairs = [(_seconds(first), _seconds(second)) for _ in range(rounds)]
    ratios = sorted(a / b for a, b in pairs)
    return {
        "ratio": statistics.median(ratios),
        "ratio_lowest": ratios[0],
        "ratio_highest": ratios[-1],
        "first_seconds": statistics.median(a for a, _ in pairs),
        "second_seconds": statistics.median(b for _, b in pairs),
        "rounds": rounds,
    }


def in_turns(jobs: Mapping[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of every job in each of some rounds, in which they take turns."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = clock(device)
            job()
            found[name].append(clock(device) - start)
    return found


def clock(device: str) -> float:
    """Time on the CPU is counted by process, because the machine may be shared; a GPU is waited for."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def clock_name(device: str) -> str:
    """What `clock` counts, for the result."""
    return "CPU seconds of the process" if device == "cpu" else "seconds"


def ratio(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """The median over rounds of first / second, the lowest and the highest."""
    ratios = sorted(a / b for a, b in zip(first, second, strict=True))
    return {"ratio": statistics.median(ratios), "ratio_lowest": ratios[0], "ratio_highest": ratios[-1]}


def peak_bytes() -> float:
    """The peak memory of this process, on Linux; `getrusage` would also count what its parent held when it forked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * float(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def write_result(name: str, content: Mapping[str, Any], seed: int = 0) -> None:
    """results/bench/NAME.json, with versions, hardware, seed, commit and command."""
    text = json.dumps({**content, "provenance": provenance(seed)}, indent=1, allow_nan=False)
    write_atomically(RESULTS / f"{name}.json", text + "\n")
    print(f"wrote results/bench/{name}.json")


def where(found: Mapping[str, Any]) -> str:
    """The hardware, torch and commit of a result, for the page."""
    p = found["provenance"]
    hardware = p["hardware"].get("gpu") or f"{p['hardware']['processor']}, {p['hardware']['threads']} threads"
    return f"{hardware}, torch {p['versions']['torch']}, commit {p['commit']}"


def _seconds(job: Callable[[], Any]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start
