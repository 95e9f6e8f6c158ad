"""The table of methods as text, from the content of a run file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from peppermill.metrics import SCORES, Score


def row_of(name: str) -> Score:
    """The row of a score in `metrics.SCORES`; a score that this version does not know is shown by its own name."""
    return SCORES.get(name) or replace(SCORES["nll"], name=name, title=name, words=name)


def by_prominence(names: Iterable[str]) -> list[str]:
    """The scores in the order of the page: those of the verdict's sentence first."""
    return sorted(names, key=lambda name: not row_of(name).headline)


def header(content: Mapping[str, Any]) -> list[str]:
    """The names of the columns."""
    scores = content["methods"][0]["scores"]
    return ["method", *(_column(name, scores["bins"]) for name in scores["estimates"])]


def rows(content: Mapping[str, Any]) -> list[list[tuple[str, str, str]]]:
    """One row for each method: its name, then each score with its interval and its difference from the first method."""
    found = []
    for method in content["methods"]:
        passes, differences = method["forward_passes"], (method["comparison"] or {}).get("differences", {})
        cost = "1 forward pass" if passes == 1 else f"{passes} forward passes"
        cells = [(method["name"], fitted_text(method["fitted"]), cost)]
        for name, estimate in method["scores"]["estimates"].items():
            value, lower, upper = (number(name, estimate[key]) for key in ("value", "lower", "upper"))
            change = differences.get(name)
            text = f"{signed(name, change['value'])}, {p_text(change['p_value'])}" if change else ""
            cells.append((value, f"[{lower}, {upper}]", text))
        found.append(cells)
    return found


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
    used = ", ".join(f"{test} for {' and '.join(titles)}" for test, titles in tests.items())
    return (
        f"{opening}; below them the paired difference from the {first['name']}, with its p-value "
        f"({used}{'; Holm-corrected' if len(others) > 1 else ''})."
    )


def sweep_scores(point: Mapping[str, Any]) -> dict[str, Any]:
    """The scores at one sigma of a sweep, by name."""
    likelihood = point["log_likelihood"]
    nll = {"nll": None if likelihood is None else -likelihood}  # version one did not write it
    return nll | {name: point[name] for name in SCORES if name in point}


def sweep_header(sweep: Mapping[str, Any]) -> list[str]:
    """The columns of a sweep: the log-likelihood stands for the NLL."""
    scores = [_column(name, sweep["bins"]) for name in sweep_scores(sweep["points"][0]) if name != "nll"]
    return ["sigma", "L(sigma)/N", "members' average", "best T", *scores]


def sweep_cells(point: Mapping[str, Any]) -> list[str]:
    """One sigma of a sweep, in the columns of `sweep_header`."""
    members = point["member_log_likelihoods"]
    average = None if None in members else sum(members) / len(members)
    numbers = {"L": point["log_likelihood"], "average": average, "T": point["temperature"], **sweep_scores(point)}
    del numbers["nll"]
    texts = ("not finite" if value is None else number(name, value) for name, value in numbers.items())
    return [f"{point['sigma']:.4g}", *texts]


def p_text(p_value: float) -> str:
    """A p-value as people write it."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def number(name: str, value: float | None) -> str:
    """A value of the score `name` with its decimals, a percentage without its sign; null is a dash."""
    if value is None:
        return "–"
    row = row_of(name)
    return f"{100 * value:.{row.decimals - 2}f}" if row.percent else f"{value:.{row.decimals}f}"


def with_unit(name: str, value: float | None) -> str:
    """A value of the score `name`, with a percent sign after a space that does not break the line."""
    return number(name, value) + ("\u00a0%" if row_of(name).percent else "")


def signed(name: str, value: float | None) -> str:
    """A difference of the score `name`, its sign always shown."""
    return number(name, value) if value is None else f"{'+' if value >= 0 else '−'}{number(name, abs(value))}"


def _column(name: str, bins: int) -> str:
    row = row_of(name)
    return row.title + (" %" if row.percent else "") + (f" ({bins} bins)" if row.binned else "")


def fitted_text(fitted: Mapping[str, float]) -> str:
    """What was fitted, as in "σ = 0.0184, T = 1.2"."""
    return ", ".join(
        f"{ {'sigma': 'σ', 'temperature': 'T'}.get(name, name) } = {value:.3g}" for name, value in fitted.items()
    )
