"""Which schedule of stochastic weight averaging comes nearest to the printed SWA column? The paper publishes none.

Every candidate of `swa_schedules.py` is run on the rows asked for; `nearest` is the candidate with the smallest mean
relative distance from the printed NLL, Brier score, ECE and error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from peppermill.paper import columns
from peppermill.paper.printed import printed
from peppermill.paper.result import write_result
from peppermill.paper.rows import row_data
from peppermill.paper.swa_schedules import CANDIDATES
from peppermill.paper.work import Settings, Work, row_of
from peppermill.report.provenance import provenance

KIND = "peppermill swa schedules"
VERSION = 1


def main(settings: Settings, candidates: Sequence[str] = CANDIDATES) -> dict[str, Any]:
    """The scores of every candidate on every row, and the distance of each from the printed column."""
    rows: dict[str, dict[str, Any]] = {}
    each = [replace(settings, swa=candidate) for candidate in candidates]  # all are right, or nothing is run
    for name in settings.rows:
        row = row_of(name, settings)
        data = row_data(row, settings.data, settings.machine.device, settings.validation)
        rows[name] = {}
        for candidate, asked in zip(candidates, each, strict=True):
            work = Work(name, row, asked, data)
            column = work.stage(f"swa-{candidate}", columns.swa)
            rows[name][candidate] = {"scores": column["scores"], "distance": distance(name, column["scores"])}
            settings.say(f"{row.title}: {candidate} is {rows[name][candidate]['distance']:.3f} from the printed column")
    content = {
        "format": KIND,
        "version": VERSION,
        "rows": rows,
        "nearest": _nearest(rows, candidates),
        "settings": settings.identity(),
        "provenance": provenance(settings.seeds[0]),
    }
    write_result(settings.out / "swa.json", content)
    return content


def distance(row: str, scores: dict[str, list[float]]) -> float:
    """The mean over the four scores of |ours - printed| / printed."""
    parts = []
    for score, values in scores.items():
        target = printed(score, row, "swa")[0] / (100 if score in ("ece", "error") else 1)
        parts.append(abs(sum(values) / len(values) - target) / target)
    return sum(parts) / len(parts)


def _nearest(rows: dict[str, dict[str, Any]], candidates: Sequence[str]) -> dict[str, str]:
    """The best candidate of each row, and of all rows together."""
    distances = {row: {one: float(found[one]["distance"]) for one in candidates} for row, found in rows.items()}
    distances["all rows"] = {one: sum(found[one] for found in distances.values()) for one in candidates}
    return {row: min(found, key=found.__getitem__) for row, found in distances.items()}
