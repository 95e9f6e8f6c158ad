"""How training ended: networks that are still falling, and networks that have just jumped.

Where the training loss comes near zero it jumps now and then. Which networks have jumped when training stops moves the
mean over 25 of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from peppermill.paper.printed import printed

COLUMNS = {"baseline": "Baseline", "pep": "PEP", "temperature": "Temp. scaling"}
SCORES = {"nll": ("NLL", 1, 4), "brier": ("Brier", 1, 4), "error": ("Error %", 100, 3)}


def falling(row: Mapping[str, Any]) -> np.ndarray:
    """Which networks had their lowest training loss in the last epoch, [S]."""
    losses = np.asarray(row["training"]["training"])
    found: np.ndarray = losses[-1] <= losses.min(axis=0)
    return found


def endings(name: str, row: Mapping[str, Any]) -> list[str]:
    """The scores of both kinds of networks beside the printed mean of all."""
    calm = falling(row)
    losses = np.asarray(row["training"]["training"])
    lines = [
        f"{row['title']}: {int(calm.sum())} of {len(calm)} networks had their lowest training loss in the last epoch "
        f"(mean {losses[-1][calm].mean():.4f}), the others had jumped since then ({losses[-1][~calm].mean():.4f}).",
        "",
        "| score | column | still falling | jumped | all ± standard error | printed |",
        "|---|---|---|---|---|---|",
    ]
    for score, (title, scale, digits) in SCORES.items():
        for column, shown in COLUMNS.items():
            values = scale * np.asarray(row["columns"][column]["scores"][score])
            error = values.std(ddof=1) / np.sqrt(len(values))
            numbers = [f"{values[kind].mean():.{digits}f}" for kind in (calm, ~calm)]
            both = f"{values.mean():.{digits}f} ± {error:.{digits}f}"
            theirs = printed(score, name, column)[0]
            lines.append(f"| {title} | {shown} | {' | '.join(numbers)} | {both} | {theirs:.3f} |")
    return lines
