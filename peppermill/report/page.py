"""Run files -> one self-contained page: no model, no data, no GPU, no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from peppermill.evaluation.scores import number, row_of, signed, with_unit
from peppermill.metrics import SCORES
from peppermill.plumbing.files import versions, write_atomically
from peppermill.plumbing.optional import importing
from peppermill.report.run import Run, fitted_text, plain, read_run, score_columns
from peppermill.report.verdict import by_prominence, heading, judged, outcome, p_words, verdict
from peppermill.uncertainty import CLASS_UNCERTAINTIES

#: A report is made from a run, or from the file that `write_run` wrote.
Source: TypeAlias = Run | str | Path

LOSSES = (0.01, 0.003, 0.001)  # of NLL
TOP_CLASSES = 8  # of each kind: most helped and most hurt


def write_report(runs: Source | Sequence[Source], path: str | Path = "report.html") -> Path:
    """One HTML file that shows a run, or compares several `runs`; written whole or not at all.

    It opens by double click and loads nothing from the network: its scripts are inside.
    """
    sources = [runs] if isinstance(runs, (Run, str, Path)) else list(runs)
    if not sources:
        raise ValueError("`runs` is empty: give at least one run, or the path of a run file.")
    jinja2, safe = import_module("jinja2"), import_module("markupsafe").Markup
    templates = environment()
    contents, articles, drawn = [], [], []
    for k, source in enumerate(sources):
        content = json.loads(json.dumps(plain(source))) if isinstance(source, Run) else read_run(source)
        try:
            drawn.append(payload(content))
            articles.append(safe(article(templates, content, drawn[-1], k)))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, jinja2.TemplateError) as error:
            name = "the run" if isinstance(source, Run) else source
            raise ValueError(
                f"{name} is damaged ({type(error).__name__}: {error}), so no report was written: run the command that "
                "wrote it again."
            ) from error
        contents.append(content)
    with importing("the report needs plotly", "plotly", "report"):
        library: str = import_module("plotly.offline").get_plotlyjs()
    script = "\n".join(_asset(name) for name in ("figures.js", "page.js"))
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, library))
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    several = [compared(content) for content in contents] if len(contents) > 1 else []
    names = by_prominence(dict.fromkeys(name for row in several for name in row["scores"]))
    formats = {name: ".1%" if row_of(name).percent else ".3f" for name in names}
    page = templates.get_template("page.html").render(
        titles=[str(content["title"]) for content in contents],
        articles=articles,
        comparison=several,
        scores=names,
        payload=safe(in_script({"runs": drawn, "compared": several, "formats": formats})),
        library=safe(base64.b64encode(gzip.compress(library.encode(), 9, mtime=0)).decode()),
        script=safe(script),
        css=safe(_asset("page.css")),
        # The browser may run these two scripts, show pictures that are inside the page, and load nothing else.
        policy=f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:",
        version=versions()["peppermill"],
    )
    write_atomically(path, page)
    return Path(path)


def environment() -> Any:
    """The templates, which show the content of run files; these functions turn its numbers into texts."""
    jinja2 = import_module("jinja2")
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,  # every text is escaped unless it is marked as safe
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = (amount, enough, fitted_text, heading, number, outcome, p_words, place, row_of, signed, with_unit, words)
    made.filters |= {function.__name__: function for function in texts} | {"count": "{:,}".format}
    made.globals |= {"class_name": class_name, "shown_classes": TOP_CLASSES, "measures": CLASS_UNCERTAINTIES}
    return made


def article(templates: Any, content: Mapping[str, Any], drawn: Mapping[str, Any], index: int = 0) -> str:
    """One run: verdict, table of methods, items, panels, provenance."""
    methods, scales = content["methods"], {}  # the range of each column's intervals
    for name in methods[0]["scores"]["estimates"] if methods else ():
        ends = [m["scores"]["estimates"][name][key] for m in methods for key in ("lower", "value", "upper")]
        known = [end for end in ends if end is not None] or [0.0]
        scales[name] = min(known), max(known)
    shown: str = templates.get_template("run.html").render(
        run={**dict.fromkeys(field.name for field in fields(Run)), **content},
        index=index,
        verdict=verdict(content),
        drawn=drawn,
        columns=score_columns(content) if methods else (),
        scales=scales,
    )
    return shown


def place(value: float | None, scale: tuple[float, float]) -> float:
    """Where a value lies on a scale, in percent."""
    low, high = scale
    return 0.0 if value is None or high <= low else round(100 * (value - low) / (high - low), 2)


def enough(sizes: Mapping[str, Any]) -> str:
    """How many members are enough for each of three losses, where fewer than all are."""
    rows, size = list(zip(sizes["sizes"], sizes["loss"], strict=True)), sizes["sizes"][-1]
    fewest = {most: next(k for k, loss in rows if loss["upper"] <= most) for most in LOSSES}
    parts = [f"{k} lose{'s' if k == 1 else ''} at most {most:g}" for most, k in fewest.items() if k < size]
    return ", ".join(parts) or f"any fewer lose more than {LOSSES[0]:g}"


def amount(value: float | None) -> str:
    """A number to three digits; a dash if it is not known."""
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def words(value: Any) -> str:
    """A setting as text."""
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def compared(content: Mapping[str, Any]) -> dict[str, Any]:
    """One of several runs: the judged method before and after."""
    row: dict[str, Any] = {"title": str(content["title"]), "method": None, "passes": None, "sigma": None, "scores": {}}
    if method := judged(content):
        row |= {"method": method["name"], "passes": method["forward_passes"], "sigma": method["fitted"].get("sigma")}
        for name, difference in method["comparison"]["differences"].items():
            before, after = (m["scores"]["estimates"][name]["value"] for m in (content["methods"][0], method))
            found = outcome(name, difference, method["scores"]["level"])
            row["scores"][name] = {"before": before, "after": after, "p_value": difference["p_value"], "outcome": found}
    return row


def in_script(value: Any) -> str:
    """JSON that may stand inside a <script> element: no name in it can end the element or begin another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return files("peppermill.report").joinpath("assets", name).read_text(encoding="utf-8")


def payload(content: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers behind one run's figures, to eight digits; a panel that the run does not have is null."""
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
    sigmas, ensemble = ([point[name] for point in points] for name in ("sigma", "log_likelihood"))
    members = [point["member_log_likelihoods"] for point in points]
    known = [point for point in points if point["log_likelihood"] is not None]
    best = max(known, key=lambda point: point["log_likelihood"])["sigma"]
    fitted = (method["fitted"] for method in content["methods"])
    star = float(next((one["sigma"] for one in fitted if "sigma" in one and "temperature" not in one), best))
    return {
        "sigmas": sigmas,
        "star": star,
        "nearest": min(range(len(sigmas)), key=lambda k: abs(sigmas[k] - star)),
        "ensemble": ensemble,
        "members": [list(member) for member in zip(*members, strict=True)],
        "mean": [None if None in row else sum(row) / len(row) for row in members],
        "range": worth_seeing([point["log_likelihood"] for point in known]),
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
