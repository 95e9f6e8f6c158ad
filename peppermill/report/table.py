"""The table of methods as text, from the content of a run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {"nll": "NLL", "brier": "Brier", "ece": "ECE", "error": "error", "rmse": "RMSE"}
PERCENT = ("ece", "error")


def header(content: Mapping[str, Any]) -> list[str]:
    """The names of the columns."""
    scores = content["methods"][0]["scores"]
    return ["method", *(_column(name, scores["bins"]) for name in scores["estimates"])]


def rows(content: Mapping[str, Any]) -> list[list[tuple[str, str, str]]]:
    """One row for each method.

    Its name, then for each score the value, its interval and the difference from the first method.
    """
    return [
        [(method["name"], fitted_text(method["fitted"]), _cost(method["forward_passes"])), *_cells(method)]
        for method in content["methods"]
    ]


def caption(content: Mapping[str, Any]) -> str:
    """How the numbers are to be read."""
    first, *others = content["methods"]
    scores = first["scores"]
    opening = f"{scores['items']:,} test items; in brackets {100 * scores['level']:.0f} % bootstrap intervals"
    if not others:
        return f"{opening}."
    return (
        f"{opening}; below them the paired difference from the {first['name']}, with its p-value "
        f"({_tests(others[0]['comparison']['differences'])}{'; Holm-corrected' if len(others) > 1 else ''})."
    )


def markdown(content: Mapping[str, Any]) -> str:
    """The table for a README."""
    titles = header(content)
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for cells in rows(content):
        texts = [f"**{cells[0][0]}**" + (f"<br>{cells[0][1]}" if cells[0][1] else "")]
        texts += ["<br>".join(part for part in cell if part) for cell in cells[1:]]
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join([*lines, "", caption(content)])


def sweep_cells(point: Mapping[str, Any]) -> list[str]:
    """One sigma of a sweep: sigma, L(sigma)/N, the members' average, the best T, Brier, ECE % and error %."""
    members = point["member_log_likelihoods"]
    average = None if None in members else sum(members) / len(members)
    values = [point["log_likelihood"], average, point["temperature"], point["brier"]]
    numbers = ["not finite" if value is None else f"{value:.4f}" for value in values]
    return [f"{point['sigma']:.4g}", *numbers, number("ece", point["ece"]), number("error", point["error"])]


def p_text(p_value: float) -> str:
    """A p-value as people write it."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def number(name: str, value: float | None) -> str:
    """A value of the score `name` as people write it: percent to two digits, the rest to four; null is a dash."""
    if value is None:
        return "–"
    return f"{100 * value:.2f}" if name in PERCENT else f"{value:.4f}"


def signed(name: str, value: float | None) -> str:
    """A difference of the score `name`, its sign always shown."""
    return number(name, value) if value is None else f"{'+' if value >= 0 else '−'}{number(name, abs(value))}"


def _column(name: str, bins: int) -> str:
    title = NAMES.get(name, name)
    return f"{title} % ({bins} bins)" if name == "ece" else f"{title} %" if name in PERCENT else title


def _tests(differences: Mapping[str, Any]) -> str:
    """Which test each score had, as in "paired t for NLL and Brier"."""
    scores: dict[str, list[str]] = {}
    for name, difference in differences.items():
        scores.setdefault(difference["test"], []).append(NAMES.get(name, name))
    return ", ".join(f"{test} for {' and '.join(names)}" for test, names in scores.items())


def _cells(method: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    differences = (method["comparison"] or {}).get("differences", {})
    return [_cell(name, estimate, differences.get(name)) for name, estimate in method["scores"]["estimates"].items()]


def _cell(name: str, estimate: Mapping[str, float], difference: Mapping[str, float] | None) -> tuple[str, str, str]:
    value, lower, upper = (number(name, estimate[key]) for key in ("value", "lower", "upper"))
    told = f"{signed(name, difference['value'])}, {p_text(difference['p_value'])}" if difference else ""
    return value, f"[{lower}, {upper}]", told


def fitted_text(fitted: Mapping[str, float]) -> str:
    """What was fitted, as in "σ = 0.0184, T = 1.2"."""
    return ", ".join(
        f"{ {'sigma': 'σ', 'temperature': 'T'}.get(name, name) } = {value:.3g}" for name, value in fitted.items()
    )


def _cost(forward_passes: int) -> str:
    return "1 forward pass" if forward_passes == 1 else f"{forward_passes} forward passes"
