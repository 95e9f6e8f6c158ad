"""docs/shift.md: the networks under corruption and on images of other data sets, from `results/shift/*.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import peppermill as pm
from experiments.page.drawings import shift_boxes
from experiments.page.markdown import table, title_of

PAGE = Path("docs/shift.md")
SCORES = {"nll": ("NLL", 1, 3), "brier": ("Brier", 1, 3), "ece": ("ECE %", 100, 1), "error": ("error %", 100, 1)}
SCORES["aurc"] = ("AURC %", 100, 2)

OPENING = """# Under shift: corrupted images and other data sets

Do calibrated probabilities survive when the test images differ from the validation images? Every method is tuned on
clean validation images only, then tested on corrupted images and on images of other data sets.
`python -m experiments shift` and `python -m experiments unknown` write this page from `results/shift/*.json`.

In short: every method remains far better than the network alone, but none stays calibrated. From severity 2,
temperature scaling, alone or with noise, has the lowest NLL, and the mirror image no longer helps it.
"""
NO_SHIFT = """No results yet: `{command}`
makes them, for ResNet-20 and ResNet-56 on CIFAR-10 under the 15 corruptions of Hendrycks and Dietterich at five
severities, 2,500 images each. A run that was stopped continues.
"""
UNKNOWN = """An uncertainty score should be larger for images of another data set. AUROC is the probability that it is,
for one known and one unknown image (0.5 is chance, larger is better). FPR95 is the share of known images that are
flagged when the threshold catches 95 % of the unknown ones (smaller is better). Brackets show 95 % intervals: over
images (bootstrap) for one network, over networks (Student's t) for several. ✓ and ✗ mark scores that are better or
worse than the network's own confidence on the same images, where the interval of the paired difference excludes 0.
Fashion-MNIST networks are shown MNIST and notMNIST, CIFAR-10 networks CIFAR-100.
"""
SHIFT = """The 15 corruptions of Hendrycks and Dietterich (2019), from the package imagecorruptions, at five severities.
The plots follow Ovadia et al. (2019): each box spans the middle half of the corruptions, and its line is the median.
The severities were designed for larger images. On 32 by 32 pixels they are harsher than in CIFAR-10-C: from severity 2
on, most images are unrecognisable.
"""
SHIFT_COMMAND = "python -m experiments shift --weights FOLDER --device cuda --precision tf32"


def write_page(results: Path, page: Path = PAGE) -> str:
    """The page from all results in the folder."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    shifts = [one for one in found if "cells" in one]
    text = page_of(shifts, [one for one in found if "models" in one])
    page.parent.mkdir(parents=True, exist_ok=True)
    for one in shifts:
        pm.plots.save_figure(shift_boxes(one), page.parent / "figures" / f"shift-{one['network']}.svg")
    page.write_text(text, encoding="utf-8")
    return text


def page_of(shifts: list[dict[str, Any]], unknown: list[dict[str, Any]]) -> str:
    """The opening, the corruptions, then the other data sets."""
    lines = [OPENING, "## Corrupted images", ""]
    lines.append(SHIFT if shifts else NO_SHIFT.format(command=SHIFT_COMMAND))
    for one in shifts:
        picture = f"![Boxes over corruptions](figures/shift-{one['network']}.svg)"
        lines += [f"### {one['title']}", "", _holds(one), picture, "", _severities(one), "", _made(one), ""]
    lines += ["## Images of other data sets", ""]
    lines.append(UNKNOWN if unknown else "No results yet: `python -m experiments unknown`.")
    for one in unknown:
        lines += [_unknown(one), "", _made(one), ""]
    return "\n".join(lines).rstrip() + "\n"


def _medians(one: dict[str, Any], score: str) -> dict[int, dict[str, float]]:
    """By severity and method, over corruptions."""
    levels = sorted({int(key.split()[-1]) for key in one["cells"]})
    cells = {n: [cell for key, cell in one["cells"].items() if int(key.split()[-1]) == n] for n in levels}
    return {n: {m: float(np.median([cell[m][score] for cell in cells[n]])) for m in cells[n][0]} for n in levels}


def _holds(one: dict[str, Any]) -> str:
    """What holds and what does not: the best method by severity, and the race's choice against temperature scaling."""
    lines = []
    for score in ("nll", "ece", "aurc"):
        found = _medians(one, score)
        best: dict[str, list[str]] = {}
        for n in found:
            best.setdefault(min(found[n], key=found[n].__getitem__), []).append(str(n) if n else "clean")
        shown = "; ".join(f"{method} ({', '.join(at)})" for method, at in best.items())
        line = f"- Lowest median {SCORES[score][0].removesuffix(' %')}, by severity: {shown}."
        if {"race", "temperature scaling"} <= found[0].keys():
            gains = [n for n in found if n and found[n]["race"] < found[n]["temperature scaling"]]
            where = f"at severity {', '.join(map(str, gains))}" if gains else "at no severity"
            line += f" The race's choice beats temperature scaling {where}."
        lines.append(line)
    return "\n".join(lines) + "\n"


def _severities(one: dict[str, Any]) -> str:
    """For every severity and method: the median over corruptions and the quartiles, as the boxes of Ovadia et al."""
    rows = []
    levels = sorted({int(key.split()[-1]) for key in one["cells"]})
    for level in levels:
        cells = [cell for key, cell in one["cells"].items() if int(key.split()[-1]) == level]
        for method in cells[0]:
            texts = []
            for score, (_, unit, digits) in SCORES.items():
                values = [unit * cell[method][score] for cell in cells]
                low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
                box = f" [{low:.{digits}f}, {high:.{digits}f}]" if len(values) > 1 else ""
                texts.append(f"{middle:.{digits}f}{box}")
            rows.append([str(level) if level else "clean", method, *texts])
    return table(["severity", "method", *(title for title, _, _ in SCORES.values())], rows)


def _unknown(one: dict[str, Any]) -> str:
    rows = []
    for other in one["models"][0]["outside"]:
        for method, scores in one["models"][0]["outside"][other].items():
            for score in scores:
                found = [model["outside"][other][method][score] for model in one["models"]]
                texts = [_cell([each[measure] for each in found], measure == "auroc") for measure in ("auroc", "fpr95")]
                rows.append([other, method, score, *texts])
    heads = ["unknown images", "method", "score", "AUROC", "FPR95 %"]
    count = f", {len(one['models'])} networks" if len(one["models"]) > 1 else ""
    return f"### {title_of(one['network'])}{count}\n\n" + table(heads, rows)


def _cell(found: list[dict[str, Any]], larger_is_better: bool) -> str:
    unit, digits = (1, 3) if larger_is_better else (100, 1)
    low, high, _ = _interval(found, "difference", "difference interval")
    mark = "" if low <= 0 <= high else " ✓" if (low > 0) == larger_is_better else " ✗"
    lower, upper, value = np.clip(_interval(found, "value", "interval"), 0, 1)
    return f"{unit * value:.{digits}f} [{unit * lower:.{digits}f}, {unit * upper:.{digits}f}]{mark}"


def _interval(found: list[dict[str, Any]], key: str, interval: str) -> tuple[float, float, float]:
    """Lower end, upper end and mean, over images for one network and over networks for several."""
    values = np.array([one[key] for one in found])
    if len(values) == 1:
        return found[0][interval][0], found[0][interval][1], float(values[0])
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return float(values.mean()) - half, float(values.mean()) + half, float(values.mean())


def _made(one: dict[str, Any]) -> str:
    made = one["provenance"]
    count = f"{one['items']:,} images per corruption and severity. " if "items" in one else ""
    note = f" {one['note']}" if one.get("note") else ""
    return f"{count}Made by `{made['command']}` at {made.get('commit') or 'an unknown commit'}.{note}"
