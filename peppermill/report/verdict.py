"""The verdict: what a run says, in one sentence for somebody who knows no statistics, and in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peppermill.report.table import NAMES, number, p_text

TITLES = {
    "nll": "Log-loss",
    "ece": "Calibration error",
    "error": "Mistakes",
    "brier": "Brier score",
    "rmse": "Typical error",
}
UNITS = {"ece": "\u00a0%", "error": "\u00a0%"}  # a space that does not break the line


@dataclass(frozen=True)
class Tile:
    """One score before and after; `outcome` is better, worse, or unclear where it could be chance."""

    title: str
    short: str
    before: str
    after: str
    change: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """`claim` and `details` make one sentence; `note` is what a careful reader asks next."""

    claim: str
    details: str
    tiles: tuple[Tile, ...] = ()
    note: str = ""


def verdict(content: Mapping[str, Any]) -> Verdict:
    """The verdict on a run; without methods, on its sweep."""
    if not content["methods"]:
        return _of_sweep(content.get("sweep"))
    method = judged(content)
    return _of_one(content["methods"][0]) if method is None else _of_two(content, method)


def judged(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The method that the verdict is about: of those that add noise (of all, if none does) that of smallest NLL."""
    others = content["methods"][1:]
    noisy = [method for method in others if "sigma" in method["fitted"]]
    return min(noisy or others, key=_nll, default=None)


def outcome(difference: Mapping[str, Any], level: float) -> str:
    """Whether a paired difference is significant at the level of its interval, and which way it goes."""
    if difference["p_value"] is None or difference["p_value"] >= round(1 - level, 9) or not difference["value"]:
        return "unclear"
    return "better" if difference["value"] < 0 else "worse"


def p_words(p_value: float | None) -> str:
    """A p-value that does not break the line."""
    return "p unknown" if p_value is None else p_text(p_value).replace(" ", "\u00a0")


def tile(name: str, first: Mapping[str, Any], method: Mapping[str, Any]) -> Tile:
    """One score of the first method and of another."""
    before, after = (m["scores"]["estimates"][name] for m in (first, method))
    difference = method["comparison"]["differences"][name]
    found = outcome(difference, method["scores"]["level"])
    return Tile(
        TITLES.get(name, name),
        NAMES.get(name, name),
        _written(name, before),
        _written(name, after),
        _relative(before["value"], after["value"]),
        found,
        f"{'could be chance' if found == 'unclear' else 'significant'}, {p_words(difference['p_value'])}",
    )


def _of_two(content: Mapping[str, Any], method: Mapping[str, Any]) -> Verdict:
    first = content["methods"][0]
    tiles = {name: tile(name, first, method) for name in method["scores"]["estimates"]}
    parts = [
        _part(name, tiles[name], method["scores"]["items"]) for name in ("ece", "nll", "error", "rmse") if name in tiles
    ]
    passes = first["forward_passes"], method["forward_passes"]
    return Verdict(
        f"{method['name']} {_claim(method, tiles)}",
        ", ".join(parts) + f", {_cost(*passes)}.",
        (*(tiles[name] for name in ("ece", "nll", "error", "rmse", "brier") if name in tiles), _cost_tile(*passes)),
        _note(content, method),
    )


def _claim(method: Mapping[str, Any], tiles: Mapping[str, Tile]) -> str:
    if method["fitted"].get("sigma") == 0 and "temperature" not in method["fitted"]:
        return "leaves this network as it is, because noise does not help it"
    nll, ece = tiles["nll"].outcome, tiles["ece"].outcome if "ece" in tiles else "unclear"
    claims = {
        ("better", "better"): "makes this network more honest",
        ("better", "unclear"): "makes this network's probabilities better",
        ("better", "worse"): "makes this network's probabilities better, though not its calibration",
        ("unclear", "better"): "makes this network's confidence more honest",
        ("unclear", "unclear"): "changes nothing here that could not be chance",
    }
    return claims.get((nll, ece), "makes this network worse")


def _part(name: str, shown: Tile, items: int) -> str:
    texts = {
        "ece": f"on average its stated confidence is {shown.after} off instead of {shown.before}",
        "nll": f"its log-loss goes from {shown.before} to {shown.after}",
        "error": f"it is wrong on {shown.after} of {items:,} test items instead of {shown.before}",
        "rmse": f"its typical error goes from {shown.before} to {shown.after} on {items:,} test items",
    }
    return f"{texts[name]} ({shown.short}; {shown.reason})"


def _cost(before: int, after: int) -> str:
    if before == after:
        return "at no extra cost"
    return f"and a prediction costs {after} forward passes instead of {before}"


def _cost_tile(before: int, after: int) -> Tile:
    times = after / before
    price = "the same price" if times == 1 else f"{times:.3g} times the work"
    return Tile("Cost", "passes", f"{before}", f"{after}", "", "cost", price)


def _note(content: Mapping[str, Any], method: Mapping[str, Any]) -> str:
    """The best of the cheaper methods: a reader must not pay for what is to be had for less."""
    cheaper = [m for m in content["methods"][1:] if m["forward_passes"] < method["forward_passes"]]
    if not cheaper:
        return ""
    best = min(cheaper, key=_nll)
    opening = "Better for less" if _nll(best) <= _nll(method) else "For less"
    scores = ", ".join(
        f"{NAMES.get(name, name)} {_written(name, estimate)}"
        for name, estimate in best["scores"]["estimates"].items()
        if name != "brier"
    )
    passes = best["forward_passes"]
    return f"{opening}: {best['name']}, at {passes} forward pass{'es' if passes > 1 else ''}, reaches {scores}."


def _of_one(method: Mapping[str, Any]) -> Verdict:
    scores = method["scores"]
    shown = ", ".join(
        f"{TITLES.get(name, name).lower()} {_written(name, estimate)} ({NAMES.get(name, name)})"
        for name, estimate in scores["estimates"].items()
    )
    return Verdict(
        f"Only the {method['name']} was measured",
        f"{shown}, on {scores['items']:,} test items.",
        note="Add an ensemble (`peppermill evaluate --pep pep.json`) to see what PEP changes.",
    )


def _of_sweep(sweep: Mapping[str, Any] | None) -> Verdict:
    if not sweep:
        return Verdict("Nothing was measured in this run", "it has neither methods nor a sweep.")
    network = sweep["points"][0]
    points = [point for point in sweep["points"] if point["log_likelihood"] is not None]
    best = max(points, key=lambda point: point["log_likelihood"])
    helps = f"Noise of σ = {best['sigma']:.3g} helps this network most"
    return Verdict(
        helps if best["sigma"] else "Noise does not help this network",
        f"its log-loss goes from {-network['log_likelihood']:.4f} to {-best['log_likelihood']:.4f} (NLL) and its "
        f"stated confidence is {number('ece', best['ece'])}{UNITS['ece']} off instead of "
        f"{number('ece', network['ece'])}{UNITS['ece']} (ECE) on the {sweep['items']:,} items of the sweep; σ was "
        "chosen on these very items, so this is no test.",
    )


def _written(name: str, estimate: Mapping[str, Any]) -> str:
    return number(name, estimate["value"]) + UNITS.get(name, "")


def _nll(method: Mapping[str, Any]) -> float:
    value = method["scores"]["estimates"]["nll"]["value"]
    return math.inf if value is None else float(value)


def _relative(before: float | None, after: float | None) -> str:
    if not before or after is None:
        return ""
    change = round(100 * (after - before) / abs(before))
    return f"{'+' if change > 0 else '−' if change < 0 else '±'}{abs(change)} %"
