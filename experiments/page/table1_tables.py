"""The tables of Table 1's section: our numbers beside the printed ones, our columns, and paired tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.page.markdown import table
from experiments.printed import TABLE1_COLUMNS, TABLE1_NETWORKS, printed_fit, printed_score
from experiments.table1.split_methods import PAIRS, TITLES

SCORES = {"nll": "NLL", "brier": "Brier", "ece": "ECE %", "error": "Top-1 error %"}
UNITS = {"nll": 1, "brier": 1, "ece": 100, "error": 100}
DIGITS = {"nll": 3, "brier": 3, "ece": 2, "error": 2}
LEVEL = 0.05  # of significance

#: Results by the name of their network, as `table1-NAME.json` holds them.
Rows = Mapping[str, Mapping[str, Any]]


def beside_printed(rows: Rows) -> str:
    """The printed table, and ours below each of its lines."""
    short = {"network": "BL", "temperature": "TS", "pep": "PEP"}
    cells = [(score, column) for score, columns in TABLE1_COLUMNS.items() for column in columns]
    heads = ["Network", "", "T*", "σ* × 10³", *(f"{SCORES[score]} {short[column]}" for score, column in cells)]
    lines = []
    for name in [*TABLE1_NETWORKS, *(name for name in rows if name not in TABLE1_NETWORKS)]:
        if name in TABLE1_NETWORKS:
            temperature, sigma = printed_fit(name)
            theirs = [f"{printed_score(name, score, column):.{DIGITS[score]}f}" for score, column in cells]
            lines.append([name, "printed", f"{temperature:.2f}", f"{1000 * sigma:.2f}", *theirs])
        if name in rows:
            row, columns = rows[name], rows[name]["columns"]
            fitted = np.mean(columns["temperature"]["temperature"]), 1000 * np.mean(columns["pep"]["sigma"])
            ours = [f"**{_values(row, column, score).mean():.{DIGITS[score]}f}**" for score, column in cells]
            label = f"ours, {row['items']['test']:,}"
            lines.append([row["title"], label, *(f"{value:.2f}" for value in fitted), *ours])
    return table(heads, lines)


def our_columns(rows: Rows) -> str:
    """Every method of every network that was run."""
    lines = []
    for row in rows.values():
        best = min(_values(row, method, "nll").mean() for method in TITLES)
        for method, title in TITLES.items():
            column = row["columns"][method]
            sigma = _spread(1000 * np.asarray(column["sigma"]), 2) if "pep" in method else ""
            temperature = _spread(np.asarray(column["temperature"]), 3) if method.endswith("temperature") else ""
            cells = [_spread(_values(row, method, score), 4 if UNITS[score] == 1 else 2) for score in SCORES]
            if _values(row, method, "nll").mean() == best:
                cells[0] = f"**{cells[0]}**"
            lines.append([row["title"], title, sigma, temperature, *cells])
    return table(["Network", "method", "σ* × 10³", "T", *SCORES.values()], lines)


def tests(rows: Rows) -> str:
    """Every pair of methods on every network: how large the difference is, and how often it is significant."""
    lines = []
    for row in rows.values():
        for first, second in PAIRS:
            found = row["comparisons"][f"{second} - {first}"]
            nll, start = found["nll"], found["nll"][0]
            interval = f"[{start['lower']:+.4f}, {start['upper']:+.4f}], p = {start['p']:.2g}"
            counts = [_count(nll, -1), _count(nll, 1), _count(found["brier"], -1), _count(found["error"], -1)]
            mean = f"{np.mean([one['mean'] for one in nll]):+.4f}"
            lines.append([row["title"], f"{TITLES[second]} − {TITLES[first]}", mean, interval, *counts])
    heads = ["Network", "second − first", "NLL", "first split", "better", "worse", "Brier better", "error better"]
    return table(heads, lines)


def in_short(rows: Rows) -> str:
    """The number of splits in which each kind of PEP is significantly better than temperature scaling."""
    kinds = [second for first, second in PAIRS if first == "temperature"]
    lines = [
        [row["title"], *(_count(row["comparisons"][f"{kind} - temperature"]["nll"], -1) for kind in kinds)]
        for row in rows.values()
    ]
    return table(["Network", *(TITLES[kind] for kind in kinds)], lines)


def not_run(rows: Rows) -> list[str]:
    """The networks of the paper that have no results."""
    return [name for name in TABLE1_NETWORKS if name not in rows]


def _values(row: Mapping[str, Any], method: str, score: str) -> np.ndarray:
    values: np.ndarray = np.asarray(row["columns"][method]["scores"][score]) * UNITS[score]
    return values


def _spread(values: np.ndarray, digits: int) -> str:
    mean = f"{values.mean():.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {values.std():.{digits}f}"


def _count(differences: list[Mapping[str, float]], sign: int) -> str:
    """In how many splits the difference has this sign and p < 0.05."""
    significant = sum(one["p"] < LEVEL and sign * one["mean"] > 0 for one in differences)
    return f"{significant} of {len(differences)}"
