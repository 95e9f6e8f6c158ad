"""docs/paper.md: the numbers of `results/paper/*.json` beside the printed ones, with figures; nothing is computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

import peppermill as pm
from experiments import (
    figure1,
    figure2,
    figure3,
    gap,
    learning_rate,
    noise_laws,
    out_of_distribution,
    swa_schedules,
    table1,
    table2,
)
from experiments.image_sets import read_image_set
from experiments.page import drawings, table1_tables, table2_tables
from experiments.page.markdown import table
from experiments.printed import printed, printed_score
from experiments.resume import read_result, write_atomically
from experiments.settings import ROWS, Machine
from experiments.table1.imagenet_networks import NETWORKS
from experiments.table1.packages import PACKAGES

TEMPLATE = Path(__file__).with_name("paper.md.j2")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

#: The experiments with one result each: the file's name and the module that wrote it.
SINGLE_RESULTS: dict[str, Any] = {
    "swa": swa_schedules,
    "figure1": figure1,
    "figure2": figure2,
    "figure3": figure3,
    "noise": noise_laws,
    "ood": out_of_distribution,
    "learning_rate": learning_rate,
    "gap-ResNet50": gap,
}

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Settings(Machine):
    """The folder of the results, and where the page and its figures go."""

    results: Path = Path("results/paper")
    page: Path = Path("docs/paper.md")
    pictures: bool = True  # draw the figures; Figure 2 shows the images with `--data`, and stays as it is without


def main(settings: Settings) -> str:
    """Write the page; a section without results says which command makes them."""
    if not settings.results.is_dir():  # a misspelled folder must not replace the page by an empty one
        raise FileNotFoundError(f"there is no folder {settings.results}: name the folder with `--results`.")
    rows = read_table2(settings.results)
    networks = {name: read_result(settings.results / f"table1-{name}.json", table1.KIND) for name in NETWORKS}
    found: dict[str, Result | None] = {
        name: read_result(settings.results / f"{name}.json", one.KIND) for name, one in SINGLE_RESULTS.items()
    }
    overfitting = settings.results.parent / "curvature" / "overfitting.json"
    figures = {
        f"{name}_on_networks": {
            network: read_result(settings.results / f"{name}-{network}.json", SINGLE_RESULTS[name].KIND)
            for network in NETWORKS
        }
        for name in ("figure1", "figure2")
    }
    context: dict[str, Any] = {
        "gap": found.pop("gap-ResNet50"),
        **{name: {key: row for key, row in rows.items() if row} for name, rows in figures.items()},
        "overfitting": json.loads(overfitting.read_text())["overfitting"] if overfitting.is_file() else None,
        "table1": {name: row for name, row in networks.items() if row},
        "table2": rows,
        "commands": {name: command(row) for name, row in found.items() if row},
        **found,
        **{f"{name}_rows": FURTHER[name](row) for name, row in found.items() if row and name in FURTHER},
    }
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["command"] = command
    helpers = {"t1": table1_tables, "t2": table2_tables, "titles": ROWS, "panels": figure3.PANELS}
    helpers |= {"place": place, "command": command, "packages": PACKAGES, "networks": NETWORKS}
    helpers |= {"printed": printed, "printed_score": printed_score, "estimate": estimate, "quantile": np.quantile}
    page = environment.from_string(TEMPLATE.read_text()).render(**context, **helpers)
    if settings.pictures:
        for name, draw in _figures(context, settings).items():
            pm.plots.save_figure(draw(), settings.page.parent / "figures" / f"paper-{name}.svg")
    write_atomically(settings.page, page)
    settings.say(f"wrote {settings.page}")
    return page


def read_table2(results: Path) -> dict[str, Result]:
    """The rows of Table 2 that have results, in the order of the table."""
    found = {name: read_result(results / f"table2-{name}.json", table2.KIND) for name in ROWS}
    return {name: row for name, row in found.items() if row}


def command(result: Result) -> str:
    """The command that made a result, as it was run."""
    return str(result["provenance"]["command"])


def place(*results: Result) -> str:
    """Hardware, versions and date of results."""
    found = []
    for result in results:
        made, hardware = result["provenance"], result["provenance"]["hardware"]
        machine = hardware.get("gpu") or f"{hardware['processor']}, {hardware['cores']} cores"
        found.append(f"({machine}; torch {made['versions']['torch']}; {made['time'][:10]}.)")
    return " ".join(dict.fromkeys(found))


def _figures(context: Mapping[str, Any], settings: Settings) -> dict[str, Callable[[], Any]]:
    """How to draw each figure that the page shows."""
    found: dict[str, Callable[[], Any]] = {}
    for name, row in context["table1"].items():
        found[f"table1-{name}"] = lambda row=row: drawings.table1_reliability(row)  # type: ignore[misc]
    for name in ("figure1", "figure3"):
        if context[name]:
            found[name] = lambda name=name: getattr(drawings, name)(context[name])  # type: ignore[misc]
    for name, row in context["figure1_on_networks"].items():
        found[f"figure1-{name}"] = lambda row=row: drawings.figure1(row)  # type: ignore[misc]
    for name, row in context["figure2_on_networks"].items():
        found[f"figure2-reliability-{name}"] = lambda row=row: drawings.reliability(row["reliability"])  # type: ignore[misc]
        if row["corrected"]:
            classes = CIFAR10_CLASSES if NETWORKS[name].data == "cifar10" else ()
            found[f"figure2-corrected-{name}"] = partial(drawings.corrected, row, None, classes)
    if context["figure2"]:
        data = ROWS[context["figure2"]["pictures"]["row"]].data
        pixels = read_image_set(data, settings.data).test[0] if settings.data else None
        names = CIFAR10_CLASSES if data == "cifar10" else tuple(map(str, range(100)))
        found["figure2-reliability"] = lambda: drawings.reliability(context["figure2"]["reliability"])
        there = (settings.page.parent / "figures" / "paper-figure2-corrected.svg").is_file()
        if context["figure2"]["corrected"] and (pixels is not None or not there):
            found["figure2-corrected"] = lambda: drawings.corrected(context["figure2"], pixels, names)
    return found


def _swa_rows(found: Result) -> str:
    heads = ["Experiment", "schedule", *table2_tables.SCORES.values(), "distance"]
    rows = []
    for row, schedules in found["rows"].items():
        target = [f"{printed(score, row, 'swa')[0]:.3f}" for score in table2_tables.SCORES]
        rows.append([ROWS[row].title, "*printed*", *target, ""])
        for name, one in sorted(schedules.items(), key=lambda pair: float(pair[1]["distance"])):
            means = [np.mean(one["scores"][score]) * table2_tables.UNITS[score] for score in table2_tables.SCORES]
            rows.append([ROWS[row].title, name, *(f"{mean:.3f}" for mean in means), f"{one['distance']:.3f}"])
    return table(heads, rows)


def _figure3_rows(found: Result) -> str:
    pairs = ("overfitting and effect", "overfitting and sigma")
    rows = [
        [
            experiment["title"],
            choice,
            str(len(one["points"])),
            *(figure3.interval(one["correlations"][pair]) for pair in pairs),
        ]
        for experiment in found["experiments"].values()
        for choice, one in figure3.layer_choices(experiment).items()
    ]
    return table(["Experiment", "perturbed", "points", "overfitting and PEP effect", "overfitting and σ*"], rows)


def _noise_rows(found: Result) -> str:
    rows = [
        [law, f"{np.mean(one['nll']):.5f} ± {np.std(one['nll']):.5f}", f"{np.mean(one['sigma']):.4f}"]
        for law, one in found["laws"].items()
    ]
    return table(["law", "NLL", "σ*"], rows)


def _ood_rows(found: Result) -> str:
    """One table for each method's means, and one for every score."""
    heads = ["method", "KL", "printed", "NLL, known", "error %, known"]
    means = [
        [
            name,
            f"{one['kl']:.3f}",
            str(found["printed"].get(name, "")),
            f"{one['nll']:.4f}",
            f"{100 * one['error']:.2f}",
        ]
        for name, one in found["methods"].items()
    ]
    rows = []
    for name, one in found["methods"].items():
        for score, auroc in one["auroc"].items():
            itself = (name, score) == ("network", "entropy")
            change = "" if itself else estimate(one["difference"][score], "+.4f")
            rows.append([name, score, estimate(auroc, ".4f"), change, estimate(one["fpr95"][score], ".2f", 100)])
    return table(heads, means) + "\n\n" + table(["method", "score", "AUROC", "AUROC − network's", "FPR95 %"], rows)


def estimate(found: Mapping[str, Any], form: str, unit: float = 1) -> str:
    """A mean and, over several networks, its interval."""
    mean = f"{unit * found['mean']:{form}}"
    if found["lower"] is None:
        return mean
    return f"{mean} [{unit * found['lower']:{form}}, {unit * found['upper']:{form}}]"


#: The tables of the experiments with one result.
FURTHER: dict[str, Callable[[Result], str]] = {
    "swa": _swa_rows,
    "figure3": _figure3_rows,
    "noise": _noise_rows,
    "ood": _ood_rows,
}
