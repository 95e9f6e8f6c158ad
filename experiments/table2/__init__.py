"""Table 2: MNIST, Fashion MNIST, CIFAR-10 and CIFAR-100; the paper's six columns, and ours beside them.

For each row 25 networks are trained, and 25 more with dropout; every method is then scored on the test images. Each
stage of a row is kept when it is done, so that a run that was killed continues with the first stage that is missing.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from experiments.resume import read_result, write_result
from experiments.settings import Settings, arithmetic
from experiments.table2.methods import METHODS, column, item_tests
from experiments.table2.weight_averaging import swa_from
from experiments.table2.work import Work

KIND = "peppermill table 2"


def main(settings: Settings) -> dict[str, Any]:
    """Every row of the table: computed, continued, or read if it is done."""
    swa_from(settings.swa, 1.0)  # a wrong schedule fails now, not after an hour of training
    found = {}
    for name in settings.rows:
        path, work = settings.out / f"table2-{name}.json", Work(name, settings)
        made_of = {"settings": settings.identity(), "row_settings": asdict(work.row), "data": work.data.digest}
        known = read_result(path, KIND) or {}
        if all(known.get(key) == value for key, value in made_of.items()):
            settings.say(f"{work.row.title}: done, in {path}")
            found[name] = known
            continue
        columns: dict[str, dict[str, Any]] = {}
        with arithmetic(settings.precision):
            for method in METHODS:
                unused = () if method == "swa" else ("swa",)  # another schedule changes only its own column
                columns[method] = work.stage(method, partial(column, work, method), unused)
        content = {
            "row": name,
            "title": work.row.title,
            **made_of,
            "machine": {"device": settings.device, "precision": settings.precision},
            "items": {split: len(getattr(work.data, split)[1]) for split in ("train", "validation", "test")},
            "columns": {
                name: {key: part for key, part in one.items() if key != "nll_by_item"} for name, one in columns.items()
            },
            "tests_over_items": item_tests(columns),
            "training": {stage: work.losses[stage] for stage in sorted(work.losses)},
            "seconds": work.seconds,
        }
        found[name] = write_result(path, KIND, content, settings.seeds[0])
        settings.say(f"{work.row.title}: wrote {path}")
    return found
