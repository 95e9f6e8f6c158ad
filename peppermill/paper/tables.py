"""Table 2 as text: our number beside the printed one, what differs, and what the paper says about the order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from peppermill.paper.printed import COLUMNS, inside, inside_before_rounding, printed

TITLES = {
    "baseline": "Baseline",
    "pep": "PEP",
    "temperature": "Temp. scaling",
    "mc_dropout": "MCD",
    "swa": "SWA",
    "deep_ensembles": "Deep ensembles",
    "pep_temperature": "PEP with T",
    "pep_kernels_temperature": "PEP with T, all kernels",
    "pep_antithetic": "PEP, antithetic",
    "pep_kernels": "PEP, all kernels",
}
SCORES = {"nll": "NLL", "brier": "Brier", "ece": "ECE %", "error": "Error %"}
PERCENT = ("ece", "error")
OURS = tuple(name for name in TITLES if name not in COLUMNS)

#: A row of results by its name, as `table2-NAME.json` holds it.
Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Difference:
    """The mean paired difference over models, and its interval by Student's t."""

    mean: float
    lower: float
    upper: float
    models: int

    def __str__(self) -> str:
        return f"{self.mean:+.5f} [{self.lower:+.5f}, {self.upper:+.5f}]"


def cell(row: Mapping[str, Any], column: str, score: str) -> tuple[float, float]:
    """Mean and population standard deviation over models (or draws), in the units of the printed table."""
    values = np.asarray(row["columns"][column]["scores"][score]) * (100 if score in PERCENT else 1)
    return float(values.mean()), float(values.std())


def paired_difference(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Difference:
    """second - first, model by model."""
    differences = np.asarray(second) - np.asarray(first)
    mean, count = float(differences.mean()), len(differences)
    if count < 2:
        return Difference(mean, -math.inf, math.inf, count)
    half = float(stats.t.ppf((1 + level) / 2, count - 1) * differences.std(ddof=1) / math.sqrt(count))
    return Difference(mean, mean - half, mean + half, count)


def agreement(rows: Rows, columns: Sequence[str]) -> tuple[list[tuple[str, str, str]], int, int]:
    """The cells (score, row, column) outside, the number of all, and how many are outside even before rounding."""
    every = [(score, row, column) for score in SCORES for row in rows for column in columns]
    outside = [one for one in every if not inside(_mean(rows, one), printed(*one))]
    rounded = [one for one in outside if not inside_before_rounding(_mean(rows, one), printed(*one))]
    return outside, len(every), len(rounded)


def paper_table(rows: Rows, score: str) -> list[str]:
    """The six columns of the paper: ours above, the printed number below; a cross where they do not agree."""
    lines = _header("Experiment", [TITLES[column] for column in COLUMNS])
    for name, row in rows.items():
        cells = [_beside(row, name, column, score) for column in COLUMNS]
        lines.append(f"| {row['title']} | " + " | ".join(cells) + " |")
    return lines


def our_table(rows: Rows, score: str) -> list[str]:
    """PEP and temperature scaling again, and our columns; the smallest mean of a row in bold."""
    columns = ("pep", "temperature", *OURS)
    lines = _header("Experiment", [TITLES[column] for column in columns])
    for row in rows.values():
        means = {column: cell(row, column, score) for column in columns}
        best = min(value for value, _ in means.values())
        cells = [f"**{_number(m, score)}**" if m == best else _number(m, score) for m, _ in means.values()]
        spread = [f"{text} ± {_number(s, score)}" for text, (_, s) in zip(cells, means.values(), strict=True)]
        lines.append(f"| {row['title']} | " + " | ".join(spread) + " |")
    return lines


def orderings(rows: Rows) -> list[str]:
    """What the paper says of every row, checked on ours."""
    lines = _header("Experiment", ["PEP below baseline on NLL", "deep ensembles best on NLL", "... on error"])
    for row in rows.values():
        best = {s: min(COLUMNS, key=lambda c, s=s, row=row: cell(row, c, s)[0]) for s in ("nll", "error")}  # type: ignore[misc]
        below = cell(row, "pep", "nll")[0] < cell(row, "baseline", "nll")[0]
        answers = [_yes(below), *(_yes(best[s] == "deep_ensembles", TITLES[best[s]]) for s in ("nll", "error"))]
        lines.append(f"| {row['title']} | " + " | ".join(answers) + " |")
    return lines


def joint_differences(rows: Rows) -> list[str]:
    """The joint method against temperature scaling and against PEP on test NLL, paired over models."""
    heads = [f"{TITLES[ours]} − {TITLES[theirs]}" for ours, theirs in JOINT_PAIRS]
    lines = _header("Experiment", heads)
    for row in rows.values():
        found = [joint_difference(row, ours, theirs) for ours, theirs in JOINT_PAIRS]
        cells = [f"{one}{' ✗' if one.mean > 0 else ''}" for one in found]
        lines.append(f"| {row['title']} | " + " | ".join(cells) + " |")
    return lines


JOINT_PAIRS = tuple(
    (ours, theirs) for ours in ("pep_temperature", "pep_kernels_temperature") for theirs in ("temperature", "pep")
)


def joint_difference(row: Mapping[str, Any], ours: str, theirs: str) -> Difference:
    """Test NLL of one column less that of another, paired over the models of a row."""
    columns = row["columns"]
    return paired_difference(columns[theirs]["scores"]["nll"], columns[ours]["scores"]["nll"])


def fitted(rows: Rows) -> list[str]:
    """sigma* and T of every method that fits one: mean, smallest and largest over models."""
    lines = _header("Experiment", ["method", "σ*", "T"])
    for row in rows.values():
        for column, content in row["columns"].items():
            if "sigma" in content or "temperature" in content:
                texts = [spread(content.get(key)) for key in ("sigma", "temperature")]
                lines.append(f"| {row['title']} | {TITLES[column]} | " + " | ".join(texts) + " |")
    return lines


def _beside(row: Mapping[str, Any], name: str, column: str, score: str) -> str:
    ours, theirs = cell(row, column, score), printed(score, name, column)
    mark = "" if inside(ours[0], theirs) else " ✗"
    return f"**{_number(ours[0], score)}** ± {_number(ours[1], score)}{mark}<br>{theirs[0]:.3f} ± {theirs[1]:.2f}"


def _mean(rows: Rows, one: tuple[str, str, str]) -> float:
    score, row, column = one
    return cell(rows[row], column, score)[0]


def _number(value: float, score: str) -> str:
    return f"{value:.3f}" if score in PERCENT else f"{value:.4f}"


def spread(values: Sequence[float] | None) -> str:
    """Mean, smallest and largest over models."""
    return "" if not values else f"{np.mean(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def _yes(holds: bool, otherwise: str = "") -> str:
    return "yes" if holds else f"**no**{f': {otherwise}' if otherwise else ''}"


def _header(first: str, others: Sequence[str]) -> list[str]:
    return [f"| {first} | " + " | ".join(others) + " |", "|---" * (len(others) + 1) + "|"]
