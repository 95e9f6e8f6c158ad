"""How the benchmarks measure: rivals take turns, so that a noisy machine is noisy for both."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peppermill.files import write_atomically
from peppermill.results import provenance

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


def write_result(name: str, content: Mapping[str, Any], seed: int = 0) -> None:
    """results/bench/NAME.json, with versions, hardware, seed, commit and command."""
    text = json.dumps({**content, "provenance": provenance(seed)}, indent=1, allow_nan=False)
    write_atomically(RESULTS / f"{name}.json", text + "\n")
    print(f"wrote results/bench/{name}.json")


def _seconds(job: Callable[[], Any]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start
