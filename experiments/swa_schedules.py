"""Which schedule of stochastic weight averaging comes nearest to the printed SWA column? The paper publishes none.

Every candidate runs on the rows of the settings. The nearest one has the smallest mean relative distance from the
printed NLL, Brier score, ECE and error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.printed import printed
from experiments.resume import write_result
from experiments.settings import Settings as Table2Settings
from experiments.settings import arithmetic
from experiments.table2.methods import column
from experiments.table2.weight_averaging import swa_from
from experiments.table2.work import Work

KIND = "peppermill swa schedules"
CANDIDATES = (
    "plain:start=1",
    "plain:start=10",
    "plain:start=1,refresh=0",
    "fixed:swa=2.5e-4,start=10",
    "fixed:swa=1e-3",
    "fixed:swa=2.5e-3",
    "constant:swa=1e-3",
    "constant:swa=2.5e-3",
    "cyclic:high=3e-3,low=1e-3",
    "longer:swa=1e-3",
    "sgd:first=0.1,swa=0.01",
    "sgd:first=0.1,swa=0.05",
    "sgd:first=0.05,swa=0.01",
    "sgd:first=0.05,swa=0.05,start=5",
    "sgd:first=0.05,swa=0.01,momentum=0.9",
)


@dataclass(frozen=True)
class Settings(Table2Settings):
    """The rows of Table 2 and the schedules to compare on them."""

    schedules: tuple[str, ...] = CANDIDATES


def main(settings: Settings) -> dict[str, Any]:
    """The scores of every schedule on every row, and its distance from the printed column, into swa.json."""
    for schedule in settings.schedules:
        swa_from(schedule, 1.0)  # a wrong schedule fails now, not after an hour of training
    rows: dict[str, dict[str, Any]] = {}
    for name in settings.rows:
        rows[name] = {}
        for schedule in settings.schedules:
            work = Work(name, replace(settings, swa=schedule))
            with arithmetic(settings.precision):
                found = work.stage(f"swa-{schedule}", lambda work=work: column(work, "swa"), ("schedules",))  # type: ignore[misc]
            rows[name][schedule] = {"scores": found["scores"], "distance": distance(name, found["scores"])}
            settings.say(
                f"{work.row.title}: {schedule} is {rows[name][schedule]['distance']:.3f} from the printed column"
            )
    content = {"rows": rows, "nearest": nearest(rows, settings.schedules), "settings": settings.identity()}
    for row, schedule in content["nearest"].items():
        settings.say(f"{row}: the nearest schedule is {schedule}")
    return write_result(settings.out / "swa.json", KIND, content, settings.seeds[0])


def distance(row: str, scores: dict[str, list[float]]) -> float:
    """The mean over the four scores of |ours - printed| / printed."""
    parts = []
    for score, values in scores.items():
        target = printed(score, row, "swa")[0] / (100 if score in ("ece", "error") else 1)
        parts.append(abs(sum(values) / len(values) - target) / target)
    return sum(parts) / len(parts)


def nearest(rows: dict[str, dict[str, Any]], schedules: Sequence[str]) -> dict[str, str]:
    """The nearest schedule of each row, and of all rows together."""
    distances = {row: {one: float(found[one]["distance"]) for one in schedules} for row, found in rows.items()}
    distances["all rows"] = {one: sum(found[one] for found in distances.values()) for one in schedules}
    return {row: min(found, key=found.__getitem__) for row, found in distances.items()}
