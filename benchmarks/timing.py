"""How the benchmarks measure and what they write. Rivals take turns, so that a noisy machine is noisy for both."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import peppermill as pm

RESULTS = Path(__file__).resolve().parent.parent / "results" / "bench"


def median_ratio(first: Callable[[], Any], second: Callable[[], Any], rounds: int = 7) -> dict[str, float]:
    """Seconds of both, and the median over rounds of first / second, after one round to warm up."""
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
    """CPU time of the process on a CPU, which others may share; on a GPU, the time after it has finished its work."""
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


def provenance(seed: int = 0) -> dict[str, Any]:
    """That of `pm.provenance`, with the command as it is typed."""
    found = pm.provenance(seed)
    return found | {"command": f"python -m benchmarks.{found['command'].replace('.py', '', 1)}"}


def write_result(name: str, content: Mapping[str, Any], seed: int = 0) -> None:
    """results/bench/NAME.json, with versions, hardware, seed, commit and command."""
    text = json.dumps({**content, "provenance": provenance(seed)}, indent=1, allow_nan=False)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(f"wrote results/bench/{name}.json")


def where(found: Mapping[str, Any]) -> str:
    """The hardware, torch and commit of a result, for the page."""
    p = found["provenance"]
    threads = p["hardware"].get("threads")
    cpu = f"{p['hardware']['processor']}, {threads} thread{'s' * (threads != 1)}"
    return f"{p['hardware'].get('gpu') or cpu}, torch {p['versions']['torch']}, commit {p['commit']}"


def rounded_up(value: float) -> str:
    """Two digits that are not below the value: what may follow "at most"."""
    text = f"{value:.1e}"
    return text if float(text) >= value else f"{value + 0.5 * 10 ** float(text.partition('e')[2]) / 10:.1e}"


def table_section(title: str, text: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A section of the page: a title, a paragraph and a table."""
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return "\n".join([f"## {title}", "", text, "", lines[0], "|---" * len(columns) + "|", *lines[1:], ""])


def _seconds(job: Callable[[], Any]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start
