"""The table of methods as text, from the content of a run file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from peppermill.evaluation.scores import column_of, number, p_text, row_of, signed
from peppermill.metrics import SCORES


def by_prominence(names: Iterable[str]) -> list[str]:
    """The scores in the order of the page: those of the verdict's sentence first."""
    return sorted(names, key=lambda name: not row_of(name).headline)


def header(content: Mapping[str, Any]) -> list[str]:
    """The names of the columns."""
    scores = content["methods"][0]["scores"]
    return ["method", *(column_of(name, scores["bins"]) for name in scores["estimates"])]


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


def fitted_text(fitted: Mapping[str, float]) -> str:
    """What was fitted, as in "σ = 0.0184, T = 1.2"."""
    return ", ".join(
        f"{ {'sigma': 'σ', 'temperature': 'T'}.get(name, name) } = {value:.3g}" for name, value in fitted.items()
    )
