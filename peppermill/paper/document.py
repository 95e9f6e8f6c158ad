"""docs/paper.md: every number of `results/paper/*.json` beside the printed one, with figures; nothing is computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import peppermill as pm
from peppermill.paper import drawings, figure1, figure2, figure3, noise_laws, ood, swa, table2, tables, texts
from peppermill.paper.printed import printed
from peppermill.paper.rates import ROW, SLOW
from peppermill.paper.result import typed, where
from peppermill.paper.rows import ROWS
from peppermill.paper.table1_page import COMMAND, table1_section
from peppermill.paper.table2_page import table2_section
from peppermill.plumbing.files import read_json, write_atomically
from peppermill.sources.small_images import images

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")  # of CIFAR-10


@dataclass(frozen=True)
class Settings:
    """Where the results are, and where the page and its figures go."""

    results: Path = Path("results/paper")
    page: Path = Path("docs/paper.md")
    data: Path | None = None  # with the data at hand, Figure 2 shows the images themselves
    pictures: bool = True
    say: Callable[[str], None] = print

    @property
    def figures(self) -> Path:
        return self.page.parent / "figures"


def main(settings: Settings) -> str:
    """Write the page; sections whose results are absent say which command makes them."""
    if not settings.results.is_dir():  # or a wrong name would replace the page by an empty one
        raise FileNotFoundError(f"there is no folder {settings.results}: name that of the results with `--results`.")
    sections = [
        texts.OPENING,
        _section("Table 1", table1_section(settings.results, partial(_picture, settings)), COMMAND),
        _section("Table 2", _table2(settings), _table2_command(settings)),
        _section("SWA", _swa(settings), _command(settings, "swa", swa)),
        _section("Figure 1", _figure1(settings), _command(settings, "figure1", figure1)),
        _section("Figure 2", _figure2(settings), _command(settings, "figure2", figure2)),
        _section("Figure 3", _figure3(settings), _of_all_rows(_command(settings, "figure3", figure3))),
        _section("Other noise", _noise(settings), _command(settings, "noise", noise_laws)),
        _section("Out of distribution", _ood(settings), _command(settings, "ood", ood)),
        texts.SETTINGS,
    ]
    page = "\n\n".join(sections) + "\n"
    write_atomically(settings.page, page)
    settings.say(f"wrote {settings.page}")
    return page


def _command(settings: Settings, name: str, module: Any) -> str:
    """The command that made a result, or would make it."""
    found = _read(settings, name, module)
    return typed(found) if found else f"peppermill paper {name} --device cuda"


def _table2_command(settings: Settings) -> str:
    """The command that made the rows: theirs, should they differ."""
    made = [_of_all_rows(typed(row)) for row in _table2_rows(settings).values()]
    return "`, `".join(dict.fromkeys(made)) or "peppermill paper table2 --models 25 --device cuda --compiled"


def _of_all_rows(command: str) -> str:
    """The command without its rows: they may be made in several runs."""
    return re.sub(r" --rows \S+", "", command)


def _section(title: str, body: list[str] | None, command: str) -> str:
    absent = [f"No results yet: `{command}`."]
    return "\n".join([f"## {title}", "", *(absent if body is None else [f"Made by `{command}`.", "", *body])])


def _table2(settings: Settings) -> list[str] | None:
    rows = _table2_rows(settings)
    folders = (settings, replace(settings, results=settings.results / SLOW))
    rates = [(_read(one, f"table2-{ROW}", table2), _read(one, "figure3", figure3)) for one in folders]
    both = [(row, figure) for row, figure in rates if row and figure and ROW in figure["experiments"]]
    return table2_section(rows, both if len(both) == 2 else ()) if rows else None


def _table2_rows(settings: Settings) -> dict[str, Mapping[str, Any]]:
    found = {name: _read(settings, f"table2-{name}", table2) for name in ROWS}
    return {name: row for name, row in found.items() if row is not None}


def _swa(settings: Settings) -> list[str] | None:
    found = _read(settings, "swa", swa)
    if found is None:
        return None
    lines = [
        texts.SWA,
        "",
        "| Experiment | schedule | NLL | Brier | ECE % | Error % | distance |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, candidates in found["rows"].items():
        target = " | ".join(f"{printed(score, row, 'swa')[0]:.3f}" for score in tables.SCORES)
        lines.append(f"| {ROWS[row].title} | *printed* | {target} | |")
        for name, one in sorted(candidates.items(), key=lambda pair: float(pair[1]["distance"])):
            means = [np.mean(one["scores"][score]) * (100 if score in tables.PERCENT else 1) for score in tables.SCORES]
            numbers = " | ".join(f"{mean:.3f}" for mean in means)
            lines.append(f"| {ROWS[row].title} | {name} | {numbers} | {one['distance']:.3f} |")
    named = {row: name for row, name in found["nearest"].items() if row in ROWS or len(found["rows"]) > 1}
    nearest = ", ".join(f"{ROWS[row].title if row in ROWS else row}: {name}" for row, name in named.items())
    return [*lines, "", f"Nearest: {nearest}. {len(found['settings']['seeds'])} models each. {where(found)}"]


def _figure1(settings: Settings) -> list[str] | None:
    found = _read(settings, "figure1", figure1)
    if found is None:
        return None
    best = max(found["sweep"]["points"], key=lambda point: float(point["log_likelihood"]))
    network = ROWS[found["curve"]["network"]].title if found["curve"]["network"] in ROWS else "the embedded network"
    said = (
        f"{network}, {found['curve']['size']} members, {found['sweep']['items']:,} validation images. The ensemble's "
        f"log-likelihood is largest at σ = {best['sigma']:.4g}. {where(found)}"
    )
    return [*_picture(settings, "figure1", lambda: drawings.figure1(found)), said]


def _figure2(settings: Settings) -> list[str] | None:
    found = _read(settings, "figure2", figure2)
    if found is None:
        return None
    count = found["mistakes"]
    row = ROWS[found["pictures"]["row"]]
    pixels = images(row.data, settings.data).test[0] if settings.data else None
    names = list(NAMES) if row.data == "cifar10" else [str(number) for number in range(100)]
    said = (
        f"{row.title}, PEP with {found['pictures']['size']} members at σ = {found['sigma']:.4g}. It corrects "
        f"{count['corrected']} mistakes of the network and makes {count['made']} of its own. {where(found)}"
    )
    lines = [*_picture(settings, "figure2-reliability", lambda: drawings.figure2_reliability(found)), said, ""]
    if not found["corrected"]:
        return lines
    return [
        *lines,
        *_picture(settings, "figure2-corrected", lambda: drawings.figure2_corrected(found, pixels, names)),
        "The corrected mistakes for which the probability of the true class rises most.",
    ]


def _figure3(settings: Settings) -> list[str] | None:
    found = _read(settings, "figure3", figure3)
    if found is None:
        return None
    lines = [*_picture(settings, "figure3", lambda: drawings.figure3(found)), texts.FIGURE3, ""]
    lines += ["| Experiment | points | overfitting and PEP effect | overfitting and σ* |", "|---|---|---|---|"]
    for one in found["experiments"].values():
        pairs = [one["correlations"][name] for name in ("overfitting and effect", "overfitting and sigma")]
        numbers = " | ".join(map(figure3.interval, pairs))
        lines.append(f"| {one['title']} | {len(one['points'])} | {numbers} |")
    absent = [ROWS[name].title for name in figure3.EXPERIMENTS if name not in found["experiments"]]
    return [*lines, "", *([f"Not run to its end: {', '.join(absent)}.", ""] if absent else []), where(found)]


def _noise(settings: Settings) -> list[str] | None:
    found = _read(settings, "noise", noise_laws)
    if found is None:
        return None
    lines = ["| law | NLL | σ* |", "|---|---|---|"]
    for law, one in found["laws"].items():
        lines.append(f"| {law} | {np.mean(one['nll']):.5f} ± {np.std(one['nll']):.5f} | {np.mean(one['sigma']):.4f} |")
    difference, over = found["difference"], found["over_items"]
    interval = (  # one model alone has none
        f" [{difference['lower']:+.5f}, {difference['upper']:+.5f}], p = {found['p_value']:.2g}"
        if difference["models"] > 1
        else ""
    )
    said = (
        f"Uniform less Gaussian, paired over {difference['models']} models: {difference['mean']:+.5f}{interval}; "
        f"paired over test items (their mean over models): {over['mean']:+.5f}, p = {over['p_value']:.2g}. "
        "The paper: similar performance."
    )
    return [*lines, "", said, "", where(found)]


def _ood(settings: Settings) -> list[str] | None:
    found = _read(settings, "ood", ood)
    if found is None:
        return None
    lines = [
        "| method | KL | printed | AUROC | FPR95 % | NLL, known | error %, known |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in found["methods"].items():
        theirs = found["printed"].get(name, "")
        numbers = f"{one['auroc']:.4f} | {100 * one['fpr95']:.2f} | {one['nll']:.4f} | {100 * one['error']:.2f}"
        lines.append(f"| {name} | {one['kl']:.3f} | {theirs} | {numbers} |")
    return [*lines, "", f"{texts.OOD} In words: {found['definition']} {where(found)}"]


def _picture(settings: Settings, name: str, draw: Callable[[], Any]) -> list[str]:
    if settings.pictures:
        pm.plots.save_figure(draw(), settings.figures / f"paper-{name}.svg")
    return [f"![{name}](figures/paper-{name}.svg)", ""]


def _read(settings: Settings, name: str, module: Any) -> Mapping[str, Any] | None:
    path = settings.results / f"{name}.json"
    return read_json(path, module.KIND, module.VERSION) if path.is_file() else None
