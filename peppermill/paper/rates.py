"""At which learning rate the authors' MNIST CNN was trained: what their notebook shows, beside ours at two rates.

The notebook sets 2.5e-4 and skips the training, for its networks were there already. It shows their temperatures, their
sigmas and, in a figure, their test NLL after every epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from peppermill.paper import tables
from peppermill.paper.printed import WITHOUT_SWA, printed
from peppermill.paper.result import typed, where
from peppermill.paper.rows import ROWS

ROW, SLOW = "mnist-cnn", "rate-2.5e-4"  # the folder of the results at the rate that the notebook sets
TEMPERATURES, SIGMAS = "1.497 (1.381 to 1.604)", "0.01517 (0.004102 to 0.02082)"  # tables of the notebook
FIRST_EPOCH = "0.050 to 0.057"  # five networks, read off a figure of the notebook

#: Results at one rate: the row of Table 2 and Figure 3.
Results = tuple[Mapping[str, Any], Mapping[str, Any]]


def learning_rates(found: Sequence[Results], rows: tables.Rows) -> list[str]:
    """A table with a column for each rate, and the commands that made it; `rows` are all of Table 2."""
    ours = {f"learning rate {_rate(row):g}": _ours(row, figure, rows) for row, figure in found}
    columns = {"their notebook": _theirs()} | ours
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for title in _theirs():
        lines.append(f"| {title} | {' | '.join(values[title] for values in columns.values())} |")
    made = [f"`{_command(one, _rate(row))}`" for row, figure in found for one in (row, figure)]
    return [*lines, "", f"Made by {', '.join(made)}. {where(found[0][0])}"]


def _rate(row: Mapping[str, Any]) -> float:
    return float(row["row_settings"]["learning_rate"])


def _command(result: Mapping[str, Any], rate: float) -> str:
    """The command that makes this row: at another rate than the row's own, it names that rate and a folder apart."""
    command = re.sub(r"--rows \S+", f"--rows {ROW}", re.sub(r" --learning-rate \S+", "", typed(result)))
    own = rate == ROWS[ROW].learning_rate
    return command if own else f"{command} --learning-rate {rate:g} --out results/paper/{SLOW}"


def _theirs() -> dict[str, str]:
    nll, error = (printed(score, ROW, "deep_ensembles")[0] for score in ("nll", "error"))
    return {
        "T of temperature scaling, mean (range)": TEMPERATURES,
        "σ* of PEP, mean (range)": SIGMAS,
        "test NLL of five networks after one epoch": FIRST_EPOCH,
        "NLL of deep ensembles": f"{nll:.3f}",
        "error of deep ensembles, %": f"{error:.3f}",
        "cells of the row that agree (SWA apart)": "",
        "cells of the whole table": "",
    }


def _ours(row: Mapping[str, Any], figure: Mapping[str, Any], rows: tables.Rows) -> dict[str, str]:
    first = [point["test_nll"] for point in figure["experiments"][ROW]["points"] if point["epoch"] == 1]
    columns = row["columns"]
    values = [
        tables.spread(columns["temperature"]["temperature"]),
        tables.spread(columns["pep"]["sigma"]),
        f"{min(first):.3f} to {max(first):.3f}",
        f"{tables.cell(row, 'deep_ensembles', 'nll')[0]:.4f}",
        f"{tables.cell(row, 'deep_ensembles', 'error')[0]:.3f}",
        _agreeing({ROW: row}),
        _agreeing({**rows, ROW: row}),
    ]
    return dict(zip(_theirs(), values, strict=True))


def _agreeing(rows: tables.Rows) -> str:
    outside, every, _ = tables.agreement(rows, WITHOUT_SWA)
    return f"{every - len(outside)} of {every}"
