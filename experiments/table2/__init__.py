"""Table 2: MNIST, Fashion MNIST, CIFAR-10 and CIFAR-100; the paper's six columns, and ours beside them.

For each row 25 networks are trained, and 25 more with dropout; every method is then scored on the test images. Each
stage of a row is kept when it is done, so that a run that was killed continues with the first stage that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.resume import read_result, write_result
from experiments.settings import Settings, arithmetic
from experiments.table2.methods import METHODS, TESTED_AGAINST, column, item_tests
from experiments.table2.weight_averaging import swa_from
from experiments.table2.work import Work

KIND = "peppermill table 2"


def main(settings: Settings) -> dict[str, Any]:
    """Every row of the table: computed, continued, read if it is done, or given the columns that it does not have."""
    swa_from(settings.swa, 1.0)  # a wrong schedule fails now, not after an hour of training
    found = {}
    for name in settings.rows:
        path, work = settings.out / f"table2-{name}.json", Work(name, settings)
        made_of = {"settings": settings.identity(), "row_settings": asdict(work.row), "data": work.data.digest}
        known = read_result(path, KIND) or {}
        if any(known.get(key) != value for key, value in made_of.items()):
            known = {}
        there = known.get("columns", {})
        missing = [method for method in METHODS if method not in there]
        if not missing:
            settings.say(f"{work.row.title}: done, in {path}")
            found[name] = known
            continue
        columns: dict[str, dict[str, Any]] = {}
        with arithmetic(settings.precision):
            for method in dict.fromkeys((*TESTED_AGAINST, *missing) if there else METHODS):
                unused = () if method == "swa" else ("swa",)  # another schedule changes only its own column
                columns[method] = work.stage(method, partial(column, work, method), unused)
                if there and method == "baseline":
                    refuse_other_networks(columns[method], there[method], path)
        shown = {
            method: {key: part for key, part in one.items() if key != "nll_by_item"} for method, one in columns.items()
        }
        content = {
            "row": name,
            "title": work.row.title,
            **made_of,
            "machine": {"device": settings.device, "precision": settings.precision},
            "items": {split: len(getattr(work.data, split)[1]) for split in ("train", "validation", "test")},
            "columns": {method: there.get(method) or shown[method] for method in METHODS},
            "tests_over_items": item_tests(columns) | known.get("tests_over_items", {}),
            "training": {stage: work.losses[stage] for stage in sorted(work.losses)} | known.get("training", {}),
            "seconds": work.seconds | known.get("seconds", {}),
        }
        if there:
            content["earlier"] = [*known.get("earlier", []), known["provenance"]]  # of the other columns
        content |= {"note": known["note"]} if "note" in known else {}
        found[name] = write_result(path, KIND, content, settings.seeds[0])
        settings.say(f"{work.row.title}: wrote {path}")
    return found


def refuse_other_networks(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: Path) -> None:
    """Columns of one row are about the same networks: their NLL says whether they were trained to the same weights."""
    if not np.allclose(ours["scores"]["nll"], theirs["scores"]["nll"], rtol=1e-3):
        raise ValueError(
            f"the networks of {path} had other test NLLs than those that were trained here, so their columns cannot "
            "stand in one row: make the whole row, with another folder as `--out`."
        )
