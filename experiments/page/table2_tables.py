"""The tables of Table 2's section: our number beside the printed one, what differs, our columns, and the times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from experiments.page.markdown import holm, p_text, table
from experiments.printed import COLUMNS, NOTEBOOKS, UNROUNDED, WITHOUT_SWA, inside, inside_before_rounding, printed
from experiments.settings import ROWS, Settings

TITLES = {
    "baseline": "Baseline",
    "pep": "PEP",
    "temperature": "Temp. scaling",
    "mc_dropout": "MCD",
    "swa": "SWA",
    "deep_ensembles": "Deep ensembles",
    "pep_temperature": "PEP with T",
    "pep_kernels_temperature": "PEP with T, all kernels",
    "pep_antithetic": "PEP, antithetic",
    "pep_kernels": "PEP, all kernels",
    "pep_default": "the library's default with T",
    "race": "the race's choice",
}
SCORES = {"nll": "NLL", "brier": "Brier", "ece": "ECE %", "error": "Error %"}
UNITS = {"nll": 1, "brier": 1, "ece": 100, "error": 100}
DIGITS = {"nll": 4, "brier": 4, "ece": 3, "error": 3}


REPETITIONS, SEED = 4000, 0  # of a table whose networks are drawn again

#: A row of results by its name, as `table2-NAME.json` holds it.
Rows = Mapping[str, Mapping[str, Any]]


def cell(row: Mapping[str, Any], column: str, score: str) -> tuple[float, float]:
    """Mean and population standard deviation over models (or draws), in the units of the printed table."""
    values = np.asarray(row["columns"][column]["scores"][score]) * UNITS[score]
    return float(values.mean()), float(values.std())


def agreement(rows: Rows, columns: Sequence[str] = WITHOUT_SWA) -> dict[str, Any]:
    """The cells (score, row, column) outside, and how many agree: as printed, in the notebooks, before rounding."""
    every = [(score, row, column) for score in SCORES for row in rows for column in columns]
    means = {one: cell(rows[one[1]], one[2], one[0])[0] for one in every}
    outside = [one for one in every if not inside(means[one], printed(*one))]
    rounded = [one for one in outside if not inside_before_rounding(means[one], printed(*one))]
    unlike = [one for one in outside if one not in UNROUNDED or not inside(means[one], UNROUNDED[one])]
    return {
        "outside": outside,
        "all": len(every),
        "agreeing": len(every) - len(outside),
        "notebooks": len(every) - len(unlike),
        "before_rounding": len(every) - len(rounded),
    }


def agreement_of_equals(rows: Rows) -> np.ndarray:
    """How many cells agree if the printed networks and ours come from one distribution, [REPETITIONS].

    Our networks are drawn anew twice, with replacement; the second table is rounded as the paper's. Columns that share
    networks are drawn together. A deep ensemble is drawn from its spread over draws of k of n networks: the mean over
    the draws then varies by sqrt(k / (n - k)) of that spread, as it does for a mean over networks.
    """
    generator, share = np.random.default_rng(SEED), Settings.ensemble_size / Settings.models
    agreeing = np.zeros(REPETITIONS, int)
    for row in rows.values():
        models = len(row["columns"]["baseline"]["scores"]["nll"])
        for columns in (("baseline", "pep", "temperature"), ("mc_dropout",), ("deep_ensembles",)):
            drawn = generator.integers(models, size=(2, REPETITIONS, models))
            for score, unit in UNITS.items():
                for column in columns:
                    values = np.asarray(row["columns"][column]["scores"][score]) * unit
                    if column == "deep_ensembles":
                        between = values.std() * np.sqrt(share / (1 - share))
                        ours, theirs = values.mean() + between * generator.standard_normal((2, REPETITIONS))
                        spread = np.full(REPETITIONS, values.std())
                    else:
                        ours, theirs = values[drawn].mean(axis=-1)
                        spread = values[drawn[1]].std(axis=-1)
                    rounded, spread = theirs.round(3), spread.round(2)  # the digits of the printed table
                    agreeing += abs(ours - rounded) <= np.maximum(spread, 0.03 * rounded) + 1e-12  # as in `inside`
    return agreeing


def other_settings(rows: Rows) -> list[str]:
    """Rows that were run with other settings than the table's own."""
    changed = {
        f"{row['title']} ({name}={value})"
        for key, row in rows.items()
        for name, value in row["row_settings"].items()
        if hasattr(ROWS[key], name) and value != getattr(ROWS[key], name)
    }
    return sorted(changed)


def swa_schedules(rows: Rows) -> str:
    """The schedule of SWA in each row."""
    found: dict[str, list[str]] = {}
    for row in rows.values():
        found.setdefault(row["settings"]["swa"], []).append(row["title"])
    return "; ".join(f"`{schedule}` in {', '.join(titles)}" for schedule, titles in found.items())


def paper_table(rows: Rows, score: str) -> str:
    """The six columns of the paper: ours above, the printed number below; a cross where they do not agree."""
    lines = []
    for name, row in rows.items():
        cells = []
        for column in COLUMNS:
            (mean, spread), theirs = cell(row, column, score), printed(score, name, column)
            ours = f"**{mean:.{DIGITS[score]}f}** ± {spread:.{DIGITS[score]}f}{'' if inside(mean, theirs) else ' ✗'}"
            cells.append(f"{ours}<br>{theirs[0]:.3f} ± {theirs[1]:.2f}")
        lines.append([row["title"], *cells])
    return table(["Experiment", *(TITLES[column] for column in COLUMNS)], lines)


def our_table(rows: Rows, score: str) -> str:
    """PEP and temperature scaling again, and our columns; the smallest mean of a row in bold."""
    present = {name for row in rows.values() for name in row["columns"]}
    columns = ("pep", "temperature", *(name for name in TITLES if name not in COLUMNS and name in present))
    lines, digits = [], DIGITS[score]
    for row in rows.values():
        found = [cell(row, column, score) if column in row["columns"] else None for column in columns]
        best, cells = min(one[0] for one in found if one), []
        for one in found:
            mark = "**" if one and one[0] == best else ""
            cells.append(f"{mark}{one[0]:.{digits}f}{mark} ± {one[1]:.{digits}f}" if one else "not run")
        lines.append([row["title"], *cells])
    return table(["Experiment", *(TITLES[column] for column in columns)], lines)


def higher_ece(rows: Rows) -> list[str]:
    """The rows on which the race's choice has a lower NLL than temperature scaling, and a larger ECE."""
    means = {
        row["title"]: [cell(row, "race", score)[0] - cell(row, "temperature", score)[0] for score in ("nll", "ece")]
        for row in rows.values()
        if "race" in row["columns"]
    }
    return [title for title, (nll, ece) in means.items() if nll < 0 < ece]


def outside(rows: Rows) -> str:
    """The cells that differ from the printed ones, with what is known about each."""
    lines = []
    for score, row, column in agreement(rows, COLUMNS)["outside"]:
        ours, theirs = cell(rows[row], column, score)[0], printed(score, row, column)
        why = [hidden_by_rounding(ours, (score, row, column)), "see SWA below" if column == "swa" else ""]
        names = [SCORES[score], rows[row]["title"], TITLES[column]]
        lines.append([*names, f"{ours:.4f}", f"{theirs[0]:.3f} ± {theirs[1]:.2f}", "; ".join(filter(None, why))])
    return table(["score", "row", "column", "ours", "printed", "why"], lines) if lines else "None."


def hidden_by_rounding(ours: float, place: tuple[str, str, str]) -> str:
    """What the rounding of a printed cell hides."""
    if place in UNROUNDED:
        mean, spread = UNROUNDED[place]
        agrees = "and ours agrees" if inside(ours, (mean, spread)) else "and ours differs"
        return f"before rounding the printed cell is {mean:.4f} ± {spread:.4f} (the authors' notebook), {agrees}"
    agrees_before = inside_before_rounding(ours, printed(*place))
    return "it may agree with the printed numbers before they were rounded" if agrees_before else ""


def orderings(rows: Rows) -> str:
    """What the paper says about every row, checked on ours."""
    lines = []
    for row in rows.values():
        below = cell(row, "pep", "nll")[0] < cell(row, "baseline", "nll")[0]
        answers = ["yes" if below else "**no**"]
        for score in ("nll", "error"):
            means = {column: cell(row, column, score)[0] for column in COLUMNS}
            best = min(means, key=means.__getitem__)
            answers.append("yes" if best == "deep_ensembles" else f"**no**: {TITLES[best]}")
        lines.append([row["title"], *answers])
    return table(["Experiment", "PEP below baseline on NLL", "deep ensembles best on NLL", "... on error"], lines)


def joint_differences(rows: Rows) -> str:
    """The joint method against temperature scaling and against PEP on test NLL, paired over models."""
    pairs = [
        (ours, theirs) for ours in ("pep_temperature", "pep_kernels_temperature") for theirs in ("temperature", "pep")
    ]
    lines = []
    for row in rows.values():
        cells = []
        for ours, theirs in pairs:
            first, second = (np.asarray(row["columns"][name]["scores"]["nll"]) for name in (theirs, ours))
            mean, lower, upper = paired_difference(first, second)
            cells.append(f"{mean:+.5f} [{lower:+.5f}, {upper:+.5f}]{' ✗' if mean > 0 else ''}")
        lines.append([row["title"], *cells])
    return table(["Experiment", *(f"{TITLES[ours]} − {TITLES[theirs]}" for ours, theirs in pairs)], lines)


def paired_difference(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """The mean of second - first, model by model, and its 95 % interval by Student's t; one model has none."""
    differences = second - first
    mean, count = float(differences.mean()), len(differences)
    if count < 2:
        return mean, -np.inf, np.inf
    half = float(stats.t.ppf(0.975, count - 1) * differences.std(ddof=1) / np.sqrt(count))
    return mean, mean - half, mean + half


def tests(rows: Rows) -> str:
    """NLL of pairs of methods, paired over models and paired over test images; each p after Holm over the rows."""
    pairs = [("pep", "baseline"), ("pep", "temperature"), ("pep_temperature", "temperature")]
    pairs += [(name, "temperature") for name in ("pep_kernels_temperature", "pep_default", "race")]
    lines = []
    for second, first in pairs:
        pair = f"{second} - {first}"
        differences, items = {}, {}
        for name, row in rows.items():
            if second in row["columns"]:
                scores = [np.asarray(row["columns"][method]["scores"]["nll"]) for method in (second, first)]
                differences[name] = scores[0] - scores[1]
            if pair in row.get("tests_over_items", {}):
                items[name] = row["tests_over_items"][pair]
        several = {name: values for name, values in differences.items() if len(values) > 1}
        over_models = holm({name: paired_p_value(values) for name, values in several.items()})
        over_items = holm({name: test["p"] for name, test in items.items()})
        for name, values in differences.items():
            image = f"± {items[name]['standard_error']:.5f}, {p_text(over_items[name])}" if name in items else "not run"
            model = p_text(over_models[name]) if name in several else "one model"
            cells = [f"{values.mean():+.5f}", model, image]
            lines.append([f"{TITLES[second]} − {TITLES[first]}", rows[name]["title"], *cells])
    return table(["second − first", "Experiment", "NLL", "over models", "over images"], lines)


def beside_notebooks(rows: Rows) -> str:
    """T and sigma* of the rows that the authors' notebooks show, beside ours; a cross where their means differ."""
    lines = []
    for name, theirs in NOTEBOOKS.items():
        for key, column, label in (("temperature", "temperature", "T"), ("sigma", "pep", "σ*")):
            mean, limits = theirs[key]
            if name in rows and (mean or limits):
                text = " ".join([f"{mean:.4g}" if mean else "", "({:.4g} to {:.4g})".format(*limits) if limits else ""])
                ours, difference = np.asarray(rows[name]["columns"][column].get(key, [])), ""
                if mean and len(ours) > 1:
                    half = stats.t.ppf(0.975, 2 * len(ours) - 2) * ours.std(ddof=1) * np.sqrt(2 / len(ours))
                    apart, mark = ours.mean() - mean, " ✗" if abs(ours.mean() - mean) > half else ""
                    difference = f"{apart:+.2g} [{apart - half:+.2g}, {apart + half:+.2g}]{mark}"
                lines.append([rows[name]["title"], label, text.strip(), _spread(ours.tolist()), difference])
    return table(["Experiment", "", "their notebook", "ours", "ours − theirs"], lines)


def swa_elsewhere(rows: Rows, chosen_on: Iterable[str]) -> dict[str, Any]:
    """The agreement of the SWA column on the rows that had no part in the choice of its schedule."""
    return agreement({name: row for name, row in rows.items() if name not in chosen_on}, ("swa",))


def paired_p_value(differences: np.ndarray) -> float:
    """Of Student's t test that the mean difference is 0."""
    error = float(differences.std(ddof=1) / np.sqrt(len(differences)))
    return 2 * float(stats.t.sf(abs(differences.mean()) / max(error, 1e-300), len(differences) - 1))


def fitted(rows: Rows) -> str:
    """sigma* and T of every method that fits one: mean, smallest and largest over models."""
    lines = [
        [row["title"], TITLES[column], _spread(content.get("sigma")), _spread(content.get("temperature"))]
        for row in rows.values()
        for column, content in row["columns"].items()
        if "sigma" in content or "temperature" in content
    ]
    return table(["Experiment", "method", "σ*", "T"], lines)


def times(rows: Rows) -> str:
    """Seconds of training and of the methods."""
    lines = []
    for row in rows.values():
        seconds = row["seconds"]
        trained = [seconds.get(stage, 0.0) for stage in ("training", "training with dropout")]
        averaged = sum(value for stage, value in seconds.items() if stage.startswith("training SWA"))
        rest = sum(value for stage, value in seconds.items() if not stage.startswith("training"))
        parts = [*trained, averaged, rest, sum(trained) + averaged + rest]
        lines.append([row["title"], *(f"{part:.0f} s" for part in parts)])
    return table(["Experiment", "training", "with dropout", "SWA", "methods", "all"], lines)


def time_notes(rows: Rows) -> str:
    """What the rows' files say about how they were made, each remark once, with the rows it holds for."""
    notes: dict[str, list[str]] = {}
    for row in rows.values():
        if "note" in row:
            notes.setdefault(row["note"], []).append(row["title"])
    return " ".join(f"{', '.join(titles)}: {note}" for note, titles in notes.items())


def learning_rates(row: Mapping[str, Any], figure: Mapping[str, Any], slow: Mapping[str, Any]) -> str:
    """What the authors' notebook shows of MNIST (CNN), beside our row, our Figure 3, and another learning rate.

    The notebook shows the temperatures and sigmas of its networks and, in a figure, their test NLL after every epoch.
    """
    points = figure["experiments"][row["row"]]["points"]
    first = [point["test_nll"] for point in points if point["epoch"] == 1]
    other = {key: [one[key] for one in slow["networks"]] for key in slow["networks"][0]}
    lines = [
        ["networks", "25 and 5", f"{len(row['columns']['pep']['sigma'])} and {len(first)}", str(len(slow["networks"]))],
        [
            "T of temperature scaling, mean (range)",
            "1.497 (1.381 to 1.604)",
            *map(_spread, (row["columns"]["temperature"]["temperature"], other["temperature"])),
        ],
        [
            "σ* of PEP, mean (range)",
            "0.01517 (0.004102 to 0.02082)",
            *map(_spread, (row["columns"]["pep"]["sigma"], other["sigma"])),
        ],
        [
            "test NLL after one epoch",
            "0.050 to 0.057",
            *(f"{min(values):.3f} to {max(values):.3f}" for values in (first, other["first_epoch_nll"])),
        ],
    ]
    rates = [row["row_settings"]["learning_rate"], slow["learning_rate"]]
    return table(["", "their notebook", *(f"learning rate {rate:g}" for rate in rates)], lines)


def _spread(values: Sequence[float] | None) -> str:
    """Mean, smallest and largest over models."""
    return "" if not values else f"{np.mean(values):.4g} ({min(values):.4g} to {max(values):.4g})"
