"""The tables of Table 1's section: our numbers beside the printed ones, our columns, and paired tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.page.markdown import holm, table
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
            sigma = _spread(1000 * np.atleast_2d(column["sigma"]), 2) if "pep" in method else ""
            temperature = _spread(np.atleast_2d(column["temperature"]), 3) if method.endswith("temperature") else ""
            cells = [_spread(_values(row, method, score), 4 if UNITS[score] == 1 else 2) for score in SCORES]
            if _values(row, method, "nll").mean() == best:
                cells[0] = f"**{cells[0]}**"
            lines.append([row["title"], title, sigma, temperature, *cells])
    return table(["Network", "method", "σ* × 10³", "T", *SCORES.values()], lines)


def tests(rows: Rows) -> str:
    """Every pair of methods on every network: how large the difference is, and its interval; p after Holm."""
    lines = []
    for row in rows.values():
        adjusted = {
            score: holm({pair: found[score]["p"] for pair, found in row["comparisons"].items()})
            for score in ("nll", "brier", "error")
        }
        for first, second in PAIRS:
            pair = f"{second} - {first}"
            nll, brier, error = (row["comparisons"][pair][score] for score in ("nll", "brier", "error"))
            marks = {score: " ✓" if adjusted[score][pair] < LEVEL else "" for score in adjusted}
            cells = [
                f"{nll['mean']:+.4f} [{nll['lower']:+.4f}, {nll['upper']:+.4f}]{marks['nll']}",
                f"{adjusted['nll'][pair]:.2g}",
                f"{brier['mean']:+.4f}{marks['brier']}",
                f"{100 * error['mean']:+.2f}{marks['error']}",
            ]
            lines.append([row["title"], f"{TITLES[second]} − {TITLES[first]}", *cells])
    return table(["Network", "second − first", "NLL", "p", "Brier", "error %"], lines)


def in_short(rows: Rows) -> str:
    """Each kind of PEP against temperature scaling on NLL; a tick where p < 0.05 after Holm."""
    kinds = [second for first, second in PAIRS if first == "temperature"]
    lines = []
    for row in rows.values():
        nll = {pair: found["nll"] for pair, found in row["comparisons"].items()}
        adjusted, cells = holm({pair: one["p"] for pair, one in nll.items()}), []
        for pair in (f"{kind} - temperature" for kind in kinds):
            cells.append(f"{nll[pair]['mean']:+.4f}{' ✓' if adjusted[pair] < LEVEL else ''}")
        lines.append([row["title"], *cells])
    return table(["Network", *(TITLES[kind] for kind in kinds)], lines)


def gap_table(found: Mapping[str, Any]) -> str:
    """One change at a time: the network's error and NLL, and what temperature scaling and PEP change."""
    heads = ["changed", "error %", "NLL", "TS", "PEP", "σ* × 10³", "of the gap"]
    lines = []
    for row in found["rows"]:
        changes = f"{row['temperature']:+.4f}", f"{row['pep']:+.4f} ± {row['pep_error']:.4f}"
        share = f"{round(100 * row['share']) + 0:d} %" if row is not found["rows"][0] else ""
        lines.append(
            [
                row["name"],
                f"{100 * row['error']:.2f}",
                f"{row['nll']:.4f}",
                *changes,
                f"{1000 * row['sigma']:.2f}",
                share,
            ]
        )
    name = found["network"]
    theirs = [printed_score(name, "nll", column) for column in ("network", "temperature", "pep")]
    printed = [f"{printed_score(name, 'error', 'network'):.2f}", f"{theirs[0]:.3f}"]
    printed += [f"{other - theirs[0]:+.3f}" for other in theirs[1:]]
    return table(heads, [*lines, ["*printed*", *printed, f"{1000 * printed_fit(name)[1]:.2f}", "100 %"]])


def most_of_the_gap(found: Mapping[str, Any]) -> str:
    """The change that brings our gain nearest to the printed one, if any does."""
    best = max(found["rows"][1:], key=lambda row: float(row["share"]))
    return (
        f"{best['name']} ({100 * best['share']:.0f} %) explains most"
        if best["share"] > 0
        else "none explains any of it"
    )


def seeds_of(row: Mapping[str, Any]) -> int:
    """The number of seeds of the noise."""
    return len(_values(row, "pep", "nll"))


def gain_by_seed(row: Mapping[str, Any], gap: Mapping[str, Any]) -> str:
    """What PEP gains on average over the seeds of the table, and how much of the gap their spread is."""
    gains = (_values(row, "pep", "nll") - _values(row, "network", "nll")).mean(axis=1)
    spread, base = gains.std(ddof=1), gap["rows"][0]["pep"]
    return (
        f"The first row is the first noise seed alone; over the {len(gains)} seeds of the table, PEP changes the NLL "
        f"by {gains.mean():+.4f} ± {spread:.4f} (standard deviation). That spread is "
        f"{100 * spread / abs(gap['printed'] - base):.0f} % of the gap, so shares of a few percent mean nothing."
    )


def underconfident(rows: Rows) -> str:
    """What PEP changes in the NLL of every network whose best T is below 1."""
    found = []
    for row in rows.values():
        temperature = np.mean(row["columns"]["temperature"]["temperature"])
        if temperature < 1:
            nll = row["comparisons"]["pep - network"]["nll"]
            found.append(
                f"on {row['title']} (T = {temperature:.2f}) it changes the NLL by {nll['mean']:+.4f} "
                f"[{nll['lower']:+.4f}, {nll['upper']:+.4f}]"
            )
    return "; ".join(found)


def not_run(rows: Rows) -> list[str]:
    """The networks of the paper that have no results."""
    return [name for name in TABLE1_NETWORKS if name not in rows]


def _values(row: Mapping[str, Any], method: str, score: str) -> np.ndarray:
    """[seeds, splits]"""
    return np.array(row["columns"][method]["scores"][score]) * UNITS[score]


def _spread(values: np.ndarray, digits: int) -> str:
    """Mean ± deviation over splits (of the mean over seeds) ± deviation over seeds (of the mean over splits)."""
    parts = [values.mean(), *([values.mean(0).std()] if values.shape[1] > 1 else [])]
    parts += [values.mean(1).std(ddof=1)] if values.shape[0] > 1 else []
    return " ± ".join(f"{part:.{digits}f}" for part in parts)
