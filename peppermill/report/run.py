"""A run: settings, scores, curves and provenance in one JSON file, enough for a report without model or data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from peppermill.evaluation.comparison import Comparison
from peppermill.evaluation.item_effects import Effects
from peppermill.evaluation.member_count import SizeCurve
from peppermill.evaluation.scores import Scores
from peppermill.evaluation.sweep import Sweep, SweepPoint, sweep_table
from peppermill.metrics import Reliability, reliability, risk_coverage_curve
from peppermill.plumbing.display import Table, shows_table
from peppermill.plumbing.files import read_json, write_atomically
from peppermill.predictions import Predictions
from peppermill.report.table import caption, header, rows
from peppermill.report.verdict import verdict

KIND = "peppermill run"
VERSION = 1
COVERAGES = 50  # points of a curve of risk against coverage


@dataclass(frozen=True)
class Method:
    """One method of a run: scores, reliability table (None for a regression), difference from the first method, fit."""

    name: str
    scores: Scores
    reliability: Reliability | None
    comparison: Comparison | None = None
    fitted: Mapping[str, float] = field(default_factory=dict)
    forward_passes: int = 1
    risks: tuple[float, ...] | None = None  # the error rate at coverages of 2 %, 4 %, ..., 100 %


@shows_table
@dataclass(frozen=True)
class Run:
    """Settings, results and provenance.

    `race` is how `calibrate` chose a method, and `rival` the paired comparison of the judged method with the best one
    of another cost. `curvature`, `overfitting` and `sizes` hold the numbers of further panels (docs/report.md).
    """

    title: str
    settings: Mapping[str, Any]
    methods: tuple[Method, ...]
    sweep: Sweep | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    effects: Effects | None = None
    curvature: Mapping[str, Any] | None = None
    overfitting: Mapping[str, Any] | None = None
    sizes: SizeCurve | None = None
    race: Mapping[str, Any] | None = None
    rival: Mapping[str, Any] | None = None
    uncertainty: Mapping[str, Any] | None = None  # histograms for right and wrong items, the most uncertain items
    abstention: Mapping[str, Any] | None = None  # a rule of `abstain`, and what became of it on the test items

    def table(self) -> Table:
        """The methods with their scores, and what the extra passes bought; without methods, the sweep or the sizes."""
        return self.sizes.table() if self.sizes and not self.methods else run_table(plain(self))


def run_table(content: Mapping[str, Any]) -> Table:
    """The table of methods in the content of a run file; without methods, of its sweep."""
    if not content["methods"]:
        sweep = content.get("sweep")
        return sweep_table(sweep["points"], sweep["items"], sweep["bins"]) if sweep else Table((), (), content["title"])
    cells = [["\n".join(filter(None, cell)) for cell in row] for row in rows(content)]
    note = verdict(content).note if len(content["methods"]) > 1 else ""
    return Table(header(content), cells, content["title"], "\n".join(filter(None, (caption(content), note))))


def method_of(
    name: str, predictions: Predictions, scores: Scores, comparison: Comparison | None = None, **more: Any
) -> Method:
    """A method from its predictions: the reliability table has the bins of its scores."""
    if predictions.likelihood.name == "gaussian":
        return Method(name, scores, None, comparison, **more)
    table = reliability(predictions.log_probs, predictions.labels, scores.bins)
    risk = risk_coverage_curve(predictions.log_probs, predictions.labels)[1].tolist()
    risks = tuple(risk[math.ceil(len(risk) * step / COVERAGES) - 1] for step in range(1, COVERAGES + 1))
    return Method(name, scores, table, comparison, **more, risks=risks)


def write_run(run: Run, path: str | Path) -> None:
    """Write the run as JSON, whole or not at all."""
    content = {"format": KIND, "version": VERSION, **plain(run)}
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Anything in a run as lists, dicts and finite numbers; NaN and infinity become None."""
    if isinstance(value, SweepPoint):  # in a file, each score stands beside sigma
        return plain({name: part for name, part in vars(value).items() if name != "scores"} | dict(value.scores))
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(part) for name, part in vars(value).items()}
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_run(path: str | Path) -> dict[str, Any]:
    """The content of a run file, as plain lists and numbers, checked to be whole and ours."""
    content = read_json(path, KIND, VERSION)
    missing = [name for name in ("title", "settings", "methods", "provenance") if name not in content]
    if missing:
        raise ValueError(f"{path} is damaged: it has no {', '.join(missing)}. Run the command that wrote it again.")
    return content
