"""The verdict: the result of a run in one sentence for somebody who knows no statistics, and in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from peppermill.evaluation.scores import number, p_text, row_of, signed, with_unit

#: Clauses for scores that plain words explain better than "its ... goes from ... to ...".
CLAUSES = {
    "ece": "on average its stated confidence is {after} off instead of {before}",
    "error": "it is wrong on {after} of {items:,} test items instead of {before}",
    "rmse": "its typical error goes from {before} to {after} on {items:,} test items",
}


@dataclass(frozen=True)
class Tile:
    """One score before and after; `outcome` is better, worse, or unclear if it could be chance."""

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
    return _of_one(content) if method is None else _of_two(content, method)


def judged(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The method that the verdict is about: the race's choice, else the best of those that add noise, or of all."""
    others = content["methods"][1:]
    if race := content.get("race"):
        return next((method for method in others if method["name"] == race["method"]), None)
    noisy = [method for method in others if "sigma" in method["fitted"]]
    return min(noisy or others, key=_nll, default=None)


def rival_of(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The best of the methods that cost less than the judged one; if there are none, of those that cost more."""
    method, others = judged(content), content["methods"][1:]
    if method is None:
        return None
    cheaper = [other for other in others if other["forward_passes"] < method["forward_passes"]]
    dearer = [other for other in others if other["forward_passes"] > method["forward_passes"]]
    return min(cheaper or dearer, key=_nll, default=None)


def by_prominence(names: Iterable[str]) -> list[str]:
    """The scores in the order of the page: those of the verdict's sentence first."""
    return sorted(names, key=lambda name: not row_of(name).headline)


def outcome(name: str, difference: Mapping[str, Any], level: float) -> str:
    """Whether a paired difference of a score is significant at the level of its interval, and in which direction."""
    if difference["p_value"] is None or difference["p_value"] >= round(1 - level, 9) or not difference["value"]:
        return "unclear"
    return "better" if (difference["value"] < 0) == row_of(name).lower_is_better else "worse"


def p_words(p_value: float | None) -> str:
    """A p-value that does not break the line."""
    return "p unknown" if p_value is None else p_text(p_value).replace(" ", "\u00a0")


def heading(name: str) -> str:
    """The plain words for a score, beginning with a capital letter."""
    words = row_of(name).words
    return words[:1].upper() + words[1:]


def tile(name: str, first: Mapping[str, Any], method: Mapping[str, Any]) -> Tile:
    """One score of the first method and of another."""
    before, after = (m["scores"]["estimates"][name]["value"] for m in (first, method))
    difference = method["comparison"]["differences"][name]
    found, row = outcome(name, difference, method["scores"]["level"]), row_of(name)
    percent = round(100 * (after - before) / abs(before)) if before and after is not None else None
    sign = "±" if not percent else "+" if percent > 0 else "−"
    return Tile(
        heading(name),
        row.title,
        with_unit(name, before),
        with_unit(name, after),
        "" if percent is None else f"{sign}{abs(percent)} %",
        found,
        f"{'could be chance' if found == 'unclear' else 'significant'}, {p_words(difference['p_value'])}",
    )


def _of_two(content: Mapping[str, Any], method: Mapping[str, Any]) -> Verdict:
    first = content["methods"][0]
    # Calibration first: it is what the claim is about.
    names = sorted(by_prominence(method["scores"]["estimates"]), key=lambda name: name != "ece")
    tiles = {name: tile(name, first, method) for name in names}
    clauses = []
    for name, shown in tiles.items():
        row = row_of(name)
        if row.headline:
            clause = CLAUSES.get(name, f"its {row.words} goes from {{before}} to {{after}}")
            text = clause.format(before=shown.before, after=shown.after, items=method["scores"]["items"])
            clauses.append(f"{text} ({shown.short}; {shown.reason})")
    before, after = first["forward_passes"], method["forward_passes"]
    same = before == after
    clauses.append("at no extra cost" if same else f"and a prediction costs {after} forward passes instead of {before}")
    price = "the same price" if same else f"{after / before:.3g} times the work"
    return Verdict(
        f"{method['name']} {_claim(method, tiles)}",
        ", ".join(clauses) + ".",
        (*tiles.values(), Tile("Cost", "passes", f"{before}", f"{after}", "", "cost", price)),
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
    }
    if (nll, ece) != ("unclear", "unclear"):
        return claims.get((nll, ece), "makes this network worse")
    clear = [f"{row_of(name).words} {tile.outcome}" for name, tile in tiles.items() if tile.outcome != "unclear"]
    return f"makes this network's {' and its '.join(clear)}" if clear else "makes no significant difference here"


def _note(content: Mapping[str, Any], method: Mapping[str, Any]) -> str:
    """What the extra passes bought beyond the best of the cheaper methods, or would buy if the method is cheap."""
    rival, race, passes = rival_of(content), content.get("race") or {}, method["forward_passes"]
    if rival is None:
        more = [c for c in race.get("candidates", ()) if c["passes"] > passes and c["nll"] is not None]
        if not more:
            return ""
        best = min(more, key=lambda c: c["nll"])
        return (
            f"No extra pass pays: on the {race['items']:,} validation items the best candidate with more passes, "
            f"{best['name']}, changes the NLL by {signed('nll', best['difference'])} ± {number('nll', best['error'])}."
        )
    known, gain, test = content.get("rival"), _nll(rival) - _nll(method), ""
    found = "better" if gain > 0 else "worse"
    if known and (known["method"], known["rival"]) == (method["name"], rival["name"]):
        found = outcome("nll", known["nll"], method["scores"]["level"])
        chance = "could be chance" if found == "unclear" else "significant"
        test = f" ({chance}, {p_words(known['nll']['p_value'])})"
    openings = {
        "better": ("The extra passes pay", "No extra pass pays"),
        "unclear": ("The extra passes bought no significant gain", "No extra pass pays"),
        "worse": ("Better for less", "More passes pay here"),
    }
    cost = rival["forward_passes"]
    reached = f"{rival['name']}, at {cost} forward pass{'es' if cost > 1 else ''}, reaches NLL {_nll(rival):.4f}"
    side = "below" if gain > 0 else "above"
    return f"{openings[found][cost > passes]}: {reached}; {method['name']} is {abs(gain):.4f} {side} it{test}."


def _of_one(content: Mapping[str, Any]) -> Verdict:
    method = content["methods"][0]
    scores = method["scores"]
    shown = ", ".join(
        f"{row_of(name).words} {with_unit(name, estimate['value'])} ({row_of(name).title})"
        for name, estimate in scores["estimates"].items()
    )
    details = f"{shown}, on {scores['items']:,} test items."
    if content.get("race"):
        return Verdict("This network needs no calibration", details, note=_note(content, method))
    return Verdict(
        f"Only the {method['name']} was measured",
        details,
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
        f"stated confidence is {with_unit('ece', best['ece'])} off instead of "
        f"{with_unit('ece', network['ece'])} (ECE) on the {sweep['items']:,} items of the sweep; σ was "
        "chosen on these very items, so this is not a test.",
    )


def _nll(method: Mapping[str, Any]) -> float:
    value = method["scores"]["estimates"]["nll"]["value"]
    return math.inf if value is None else float(value)
