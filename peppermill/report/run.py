"""A run: settings, scores, curves and provenance in one JSON file, enough for a report without model or data."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.evaluation.comparison import Comparison
from peppermill.evaluation.item_effects import Effects
from peppermill.evaluation.member_count import SizeCurve
from peppermill.evaluation.scores import Scores, column_of, evaluate, number, p_text, row_of, signed
from peppermill.evaluation.sweep import Sweep, SweepPoint, sweep_table
from peppermill.metrics import BINS, Reliability, reliability, risk_coverage_curve
from peppermill.plumbing.display import Table, shows_table
from peppermill.plumbing.files import read_json, versions, write_atomically
from peppermill.predictions import Predictions
from peppermill.recipe import fingerprint
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
    """The table of methods in the content of a run file; without methods, of its sweep.

    A cell has a score, its interval, and its difference from the first method.
    """
    if not content["methods"]:
        sweep = content.get("sweep")
        return sweep_table(sweep["points"], sweep["items"], sweep["bins"]) if sweep else Table((), (), content["title"])
    rows = []
    for method in content["methods"]:
        passes, differences = method["forward_passes"], (method["comparison"] or {}).get("differences", {})
        cost = "1 forward pass" if passes == 1 else f"{passes} forward passes"
        cells = [(method["name"], fitted_text(method["fitted"]), cost)]
        for name, estimate in method["scores"]["estimates"].items():
            value, lower, upper = (number(name, estimate[key]) for key in ("value", "lower", "upper"))
            change = differences.get(name)
            text = f"{signed(name, change['value'])}, {p_text(change['p_value'])}" if change else ""
            cells.append((value, f"[{lower}, {upper}]", text))
        rows.append(["\n".join(filter(None, cell)) for cell in cells])
    note = verdict(content).note if len(rows) > 1 else ""
    title, below = content["title"], "\n".join(filter(None, (caption(content), note)))
    return Table(["method", *score_columns(content)], rows, title, below)


def score_columns(content: Mapping[str, Any]) -> list[str]:
    """The headings of the scores."""
    scores = content["methods"][0]["scores"]
    return [column_of(name, scores["bins"]) for name in scores["estimates"]]


def caption(content: Mapping[str, Any]) -> str:
    """How to read the numbers."""
    first, *others = content["methods"]
    scores = first["scores"]
    examples = scores.get("examples", scores["items"])  # version one did not write it
    within = f" in {examples:,} examples" if examples < scores["items"] else ""
    opening = f"{scores['items']:,} test items{within}; in brackets {100 * scores['level']:.0f} % bootstrap intervals"
    if not others:
        return f"{opening}."
    tests: dict[str, list[str]] = {}
    for name, difference in others[0]["comparison"]["differences"].items():
        tests.setdefault(difference["test"], []).append(row_of(name).title)
    used = "; ".join(f"{test} for {', '.join(titles)}" for test, titles in tests.items())
    return (
        f"{opening}; below them the paired difference from the {first['name']}, with its p-value "
        f"({used}{'; Holm-corrected' if len(others) > 1 else ''})."
    )


def fitted_text(fitted: Mapping[str, float]) -> str:
    """What was fitted, as in "σ = 0.0184, T = 1.2"."""
    letters = {"sigma": "σ", "temperature": "T"}
    return ", ".join(f"{letters.get(name, name)} = {value:.3g}" for name, value in fitted.items())


def method_of(name: str, predictions: Predictions, bins: int = BINS, seed: int = 0, **more: Any) -> Method:
    """A method from its predictions: the reliability table has the bins of its scores."""
    scores = evaluate(predictions, bins=bins, seed=seed)
    if predictions.likelihood.name == "gaussian":
        return Method(name, scores, None, **more)
    table = reliability(predictions.log_probs, predictions.labels, bins)
    risk = risk_coverage_curve(predictions.log_probs, predictions.labels)[1].tolist()
    risks = tuple(risk[math.ceil(len(risk) * step / COVERAGES) - 1] for step in range(1, COVERAGES + 1))
    return Method(name, scores, table, **more, risks=risks)


def write_run(run: Run, path: str | Path) -> None:
    """Write the `run` as JSON, whole or not at all."""
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


def provenance(seed: int, network: nn.Module | None = None) -> dict[str, Any]:
    """Versions, hardware, seed, commit, command, time, fingerprint of the `network`: enough to repeat a number."""
    program = "peppermill" if Path(sys.argv[0]).name == "__main__.py" else Path(sys.argv[0]).name
    # No folders of this machine.
    words = (Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])
    return {
        "versions": {**versions(), "numpy": version("numpy"), "scipy": version("scipy")},
        "hardware": hardware(),
        "seed": seed,
        "commit": _commit(),
        "command": " ".join([program, *words]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": vars(fingerprint(network)) if network is not None else None,
    }


def hardware() -> dict[str, Any]:
    """The processor, its cores, and the GPU if there is one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    found = {"processor": processor, "cores": os.cpu_count(), "system": platform.system()}
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return found | {"threads": torch.get_num_threads()} | gpu


def _commit() -> str | None:
    """The commit of this checkout; for a copy without history, the value of PEPPERMILL_COMMIT."""
    if os.environ.get("PEPPERMILL_COMMIT"):
        return os.environ["PEPPERMILL_COMMIT"]
    package = Path(__file__).resolve().parents[1]
    if not (package.parent / ".git").exists():
        return None
    command = ["git", "-C", str(package), "rev-parse", "--short=12", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
