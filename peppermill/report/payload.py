"""The numbers behind the page's figures, from the content of a run file: only what is drawn, to eight digits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from peppermill.evaluation.scores import number, row_of, signed, with_unit
from peppermill.metrics import SCORES
from peppermill.report.verdict import by_prominence

TOP_CLASSES = 8  # of each kind: most helped and most hurt


def payload(content: Mapping[str, Any]) -> dict[str, Any]:
    """What one run's figures need; a panel that the run does not have is null."""
    effects, overfitting, curvature = (content.get(name) for name in ("effects", "overfitting", "curvature"))
    items = [*effects["helped"], *effects["hurt"]] if effects else []  # in the order of the page's cards
    points = ("name", "overfitting", "effect", "sigma")
    predicted = ("sigmas", "predicted", "predicted_error", "measured")
    sizes, first = content.get("sizes"), content["methods"][0] if content["methods"] else None
    by_size = sizes and dict(zip(sizes["sizes"], sizes["nll"], strict=True))
    network = first and first["scores"]["estimates"]["nll"]["value"]
    text = json.dumps(
        {
            "sweep": _sweep(content),
            "methods": [method["reliability"] for method in content["methods"]],
            "items": [{name: item[name] for name in ("members", "network", "ensemble")} for item in items],
            "classes": _classes(content),
            "race": content.get("race") and [c for c in content["race"]["candidates"] if c["nll"] is not None],
            "curvature": curvature and [*zip(*(curvature[name] for name in predicted), strict=True)],
            "overfitting": overfitting and [{k: p[k] for k in points} for p in overfitting["points"]],
            "sizes": by_size and {"sizes": [*by_size], "nll": [*by_size.values()], "network": network},
            "uncertainty": (content.get("uncertainty") or {}).get("measures"),
            "risk": {
                "methods": [{"name": m["name"], "risks": m["risks"]} for m in content["methods"] if m.get("risks")],
                "rule": content.get("abstention"),
            },
        }
    )
    found: dict[str, Any] = json.loads(
        text, parse_float=lambda digits: float(f"{float(digits):.8g}"), parse_constant=lambda nan_or_infinity: None
    )
    return found


def star(content: Mapping[str, Any]) -> float:
    """sigma* of the run: that of an ensemble without temperature, else the best of the sweep."""
    chosen = [
        m["fitted"]["sigma"] for m in content["methods"] if "sigma" in m["fitted"] and "temperature" not in m["fitted"]
    ]
    points = [point for point in content["sweep"]["points"] if point["log_likelihood"] is not None]
    return float(chosen[0] if chosen else max(points, key=lambda point: point["log_likelihood"])["sigma"])


def sweep_scores(point: Mapping[str, Any]) -> dict[str, Any]:
    """The scores at one sigma of a sweep, by name."""
    likelihood = point["log_likelihood"]
    nll = {"nll": None if likelihood is None else -likelihood}  # version one did not write it
    return nll | {name: point[name] for name in SCORES if name in point}


def worth_seeing(ensemble: Sequence[float]) -> tuple[float, float]:
    """From as far below the network, which is first, as the peak is above it, to a little above the peak.

    The fall beyond is of no interest, wherever it ends.
    """
    top, base = max(filter(math.isfinite, ensemble)), ensemble[0]
    span = max(top - base, 1e-3)
    return base - span, top + 0.25 * span


def _sweep(content: Mapping[str, Any]) -> Any:
    if not content.get("sweep"):
        return None
    points = content["sweep"]["points"]
    best, sigmas = star(content), [point["sigma"] for point in points]
    ensemble = [point["log_likelihood"] for point in points]
    members = [point["member_log_likelihoods"] for point in points]
    return {
        "sigmas": sigmas,
        "star": best,
        "nearest": min(range(len(sigmas)), key=lambda k: abs(sigmas[k] - best)),
        "ensemble": ensemble,
        "members": [list(member) for member in zip(*members, strict=True)],
        "mean": [None if None in row else sum(row) / len(row) for row in members],
        "range": worth_seeing([value for value in ensemble if value is not None]),
        "titles": {name: row_of(name).title for name in by_prominence(sweep_scores(points[0]))},
        "texts": [_texts(point, points[0]) for point in points],
        "reliability": [point["reliability"] for point in points],
    }


def _texts(point: Mapping[str, Any], network: Mapping[str, Any]) -> dict[str, Any]:
    """The text beside the slider: every score at this sigma, and its change from the network."""
    now, was = sweep_scores(point), sweep_scores(network)
    names = by_prominence(now)
    changes = {name: None if None in (now[name], was[name]) else now[name] - was[name] for name in names}
    worse = {name: 1 if row_of(name).lower_is_better else -1 for name in names}
    tempered = point["tempered_log_likelihood"]
    return {
        "sigma": f"{point['sigma']:.3g}",
        "values": {name: with_unit(name, now[name]) for name in names},
        "changes": {name: signed(name, value) for name, value in changes.items()},
        "ways": {name: worse[name] * ((value > 0) - (value < 0)) if value else 0 for name, value in changes.items()},
        "tempered": f"The best temperature here is T\u00a0=\u00a0{point['temperature']:.3g}, with NLL "
        f"{number('nll', None if tempered is None else -tempered)}.",
    }


def _classes(content: Mapping[str, Any]) -> Any:
    """The classes whose log-loss falls most and least, or all classes if there are few; and the gain of all items."""
    effects = content.get("effects")
    if not effects:
        return None
    classes = effects["classes"]
    known = [k for k, pair in enumerate(zip(classes["network"], classes["ensemble"], strict=True)) if None not in pair]
    ranked = sorted(known, key=lambda k: classes["ensemble"][k] - classes["network"][k])
    shown = ranked if len(ranked) <= 2 * TOP_CLASSES else ranked[:TOP_CLASSES] + ranked[-TOP_CLASSES:]
    return {
        "names": [class_name(content, k) for k in shown],
        **{name: [classes[name][k] for k in shown] for name in ("items", "network", "ensemble")},
        "gain": sum(classes["items"][k] * (classes["network"][k] - classes["ensemble"][k]) for k in known),
    }


def class_name(content: Mapping[str, Any], k: int) -> str:
    """The name of class k, or its number."""
    names = content.get("class_names") or ()
    return str(names[k]) if 0 <= k < len(names) else f"class {k}"
