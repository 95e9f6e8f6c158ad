"""The texts of the page, from the content of a run file: what the templates show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from peppermill.evaluation.scores import number, row_of, signed, with_unit
from peppermill.report.payload import TOP_CLASSES, class_name, star, sweep_scores
from peppermill.report.run import fitted_text, score_columns
from peppermill.report.verdict import by_prominence, judged, outcome, p_words, verdict
from peppermill.uncertainty import CLASS_UNCERTAINTIES

_WHY = " (being less sure costs a little where the network was right, and saves much where it was sure and wrong)"
LOSSES = (0.01, 0.003, 0.001)  # of NLL
_BASE64 = re.compile(r"[A-Za-z0-9+/]+=*")


def view(content: Mapping[str, Any]) -> dict[str, Any]:
    """One run: verdict, table of methods, items, panels, provenance."""
    return {
        "title": str(content["title"]),
        "verdict": verdict(content),
        "judged": judged(content) if content["methods"] else None,
        "race": content.get("race"),
        "methods": content["methods"],
        "sweep": _sweep(content),
        "table": _table(content) if content["methods"] else None,
        "effects": _effects(content),
        "curvature": content.get("curvature"),
        "overfitting": content.get("overfitting"),
        "uncertainty": _uncertainty(content),
        "sizes": _sizes(content.get("sizes")),
        "rule": _rule(content.get("abstention")),
        "provenance": _groups(content),
    }


def _sweep(content: Mapping[str, Any]) -> dict[str, Any] | None:
    sweep = content.get("sweep")
    if not sweep:
        return None
    return {
        "star": f"{star(content):.3g}",
        "last": len(sweep["points"]) - 1,
        "swept": f"{sweep['items']:,}",
        "bins": sweep["bins"],
        "members": len(sweep["points"][0]["member_log_likelihoods"]),
        "scores": [
            (row.name, row.words if row.title in row.words else f"{row.words}, {row.title}")
            for row in map(row_of, by_prominence(sweep_scores(sweep["points"][0])))
        ],
    }


def _table(content: Mapping[str, Any]) -> dict[str, Any]:
    methods = content["methods"]
    scales = {}  # the range of each column's intervals
    for name in methods[0]["scores"]["estimates"]:
        ends = [m["scores"]["estimates"][name][key] for m in methods for key in ("lower", "value", "upper")]
        known = [end for end in ends if end is not None] or [0.0]
        scales[name] = min(known), max(known)
    exceptions = [row_of(name).title for name in scales if not row_of(name).lower_is_better]
    return {
        "columns": score_columns(content),
        "level": round(100 * methods[0]["scores"]["level"]),
        "first": methods[0]["name"],
        "tested": f"{methods[0]['scores']['items']:,}",
        "several": len(methods) > 2,
        "larger": " and ".join(exceptions),
        "rows": [
            {
                "name": method["name"],
                "fitted": fitted_text(method["fitted"]),
                "passes": method["forward_passes"],
                "cells": [_cell(name, method, scale) for name, scale in scales.items()],
            }
            for method in methods
        ],
    }


def _cell(name: str, method: Mapping[str, Any], scale: tuple[float, float]) -> dict[str, Any]:
    """One score of one method: texts, the number to sort by, and where its interval lies on the column's scale."""
    estimate = method["scores"]["estimates"][name]
    difference = ((method["comparison"] or {}).get("differences") or {}).get(name)
    value, lower, upper = (number(name, estimate[key]) for key in ("value", "lower", "upper"))
    (low, high), ends = scale, ((key, estimate[key]) for key in ("lower", "value", "upper"))
    return {
        "value": value,
        "interval": f"[{lower}, {upper}]",
        "sort": estimate["value"],
        "at": {key: 0.0 if x is None or high <= low else round(100 * (x - low) / (high - low), 2) for key, x in ends},
        "difference": difference and _difference(name, difference, method["scores"]["level"]),
    }


def _difference(name: str, difference: Mapping[str, Any], level: float) -> dict[str, str]:
    lower, upper = (signed(name, difference[key]) for key in ("lower", "upper"))
    permutation = difference["permutation_p_value"]
    return {
        "text": signed(name, difference["value"]),
        "interval": f"[{lower}, {upper}]",
        "p": p_words(difference["p_value"]),
        "test": difference["test"] + (f"; permutation {p_words(permutation)}" if permutation is not None else ""),
        "outcome": outcome(name, difference, level),
    }


def _effects(content: Mapping[str, Any]) -> dict[str, Any] | None:
    effects = content.get("effects")
    if not effects:
        return None
    corrected, spoiled, classes = effects["corrected"], effects["spoiled"], effects["classes"]
    rows = zip(classes["items"], classes["network"], classes["ensemble"], strict=True)
    gain = sum(items * (was - now) for items, was, now in rows if None not in (was, now))  # in log-likelihood
    return {
        "method": effects["method"],
        "gained": f"{effects['gained']:,} of {effects['items']:,} test items",
        "lost": f"{effects['lost']:,}" + (_WHY if effects["gained"] < effects["lost"] and gain > 0 else ""),
        "corrected": f"{corrected:,} {'mistake is' if corrected == 1 else 'mistakes are'} corrected",
        "spoiled": f"{spoiled:,} new {'one is' if spoiled == 1 else 'ones are'} made",
        "tempered": effects["temperature"] != 1,
        "kinds": [
            (kind, title, [_item(content, effect) for effect in effects[kind]])
            for kind, title in (("helped", "Most helped"), ("hurt", "Most hurt"))
            if effects[kind]
        ],
        "classes": sum(map(bool, classes["items"])),
        "shown": TOP_CLASSES,
    }


def _item(content: Mapping[str, Any], effect: Mapping[str, Any]) -> dict[str, Any]:
    label, before, after = (effect[name] for name in ("label", "before", "after"))
    was_right, is_right = before == label, after == label
    kinds = {(False, True): "mistake corrected", (True, False): "mistake made", (True, True): "right before and after"}
    image = effect.get("image") or ""
    return {
        "item": effect["item"],
        "image": image if _BASE64.fullmatch(image) else None,
        "label": class_name(content, label),
        "said": f"{'still' if before == after else class_name(content, before) + ' →'} {class_name(content, after)}",
        "network": f"{100 * effect['network']:.1f} %",
        "ensemble": f"{100 * effect['ensemble']:.1f} %",
        "kind": kinds.get((was_right, is_right), "wrong before and after"),
    }


def _uncertainty(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """The measures in words, and the most uncertain items as cards or with maps."""
    panel = content.get("uncertainty")
    if not panel:
        return None
    names = {name: (name.replace("_", " "), words.replace("_", " ")) for name, words in CLASS_UNCERTAINTIES.items()}
    cards = []
    for one in panel["shown"]:
        pictures = {name: one.get(name) or "" for name in ("image", "heat")}
        card = {name: text if _BASE64.fullmatch(text) else None for name, text in pictures.items()}
        card |= {"item": f"{one['item']:,}", "value": f"{one['value']:.3f}"}
        if "label" in one:
            right = one["label"] == one["predicted"]
            card |= {"right": right, "label": class_name(content, one["label"])}
            card |= {"said": class_name(content, one["predicted"]), "confidence": f"{100 * one['confidence']:.1f} %"}
        cards.append(card)
    return {
        **{name: panel[name] for name in ("method", "items", "wrong")},
        "ranked": names[panel["ranked"]][0],
        "measures": [(*names[measure["name"]], measure["auroc"]) for measure in panel["measures"]],
        "cards": [card for card in cards if "label" in card],
        "maps": [card for card in cards if card["heat"]],
    }


def _sizes(panel: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How many members are enough for each of three losses, where fewer than all are."""
    if not panel:
        return None
    rows, size = list(zip(panel["sizes"], panel["loss"], strict=True)), panel["sizes"][-1]
    enough = {most: next(k for k, loss in rows if loss["upper"] <= most) for most in LOSSES}
    parts = [f"{k} lose{'s' if k == 1 else ''} at most {most:g}" for most, k in enough.items() if k < size]
    return {
        "method": panel["method"],
        "size": size,
        "tested": f"{panel['items']:,}",
        "level": f"{100 * panel['level']:g}",
        "enough": ", ".join(parts) or f"any fewer lose more than {LOSSES[0]:g}",
    }


def _rule(rule: Mapping[str, Any] | None) -> str:
    """The promise of a rule, and how it was kept on the test items."""
    if not rule or rule["error"] is None:
        return ""
    kept, error = (f"{100 * rule[name]:.3g} %" for name in ("coverage", "error"))
    return (
        f"The rule for {rule['method']} promises at most {100 * rule['risk']:g} %; it keeps {kept}, with {error} wrong."
    )


def amount(value: float | None) -> str:
    """A number to three digits; a dash if it is not known."""
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def _groups(content: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Provenance and settings as titled lists of name and text: what is nested gets a list of its own."""
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    for title, values in (("run", content["provenance"]), ("settings", content["settings"])):
        groups.append((title, [(str(k), _text(v)) for k, v in values.items() if not isinstance(v, Mapping)]))
        nested = [(k, v) for k, v in values.items() if isinstance(v, Mapping)]
        groups += [(str(k), [(str(name), _text(part)) for name, part in v.items()]) for k, v in nested]
    return [(title, rows) for title, rows in groups if rows]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def compared(contents: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each of several runs: the judged method before and after."""
    found = []
    for content in contents:
        row: dict[str, Any] = {"title": str(content["title"]), "method": None, "passes": None, "sigma": None}
        row["scores"] = {}
        if content["methods"] and (method := judged(content)):
            row |= {"method": method["name"], "passes": method["forward_passes"]}
            row["sigma"] = method["fitted"].get("sigma")
            for name, estimate in method["scores"]["estimates"].items():
                before, after = content["methods"][0]["scores"]["estimates"][name]["value"], estimate["value"]
                difference = method["comparison"]["differences"][name]
                row["scores"][name] = {
                    "before": before,
                    "after": after,
                    "texts": [with_unit(name, value) for value in (before, after)],
                    "p": p_words(difference["p_value"]),
                    "outcome": outcome(name, difference, method["scores"]["level"]),
                }
        found.append(row)
    return found
