"""Table 2: MNIST, Fashion MNIST, CIFAR-10 and CIFAR-100; the paper's six columns, and ours beside them.

For each row 25 networks are trained together, and 25 more with dropout; every method is then asked about the test
images. Each stage of a row is kept as it is done, so that a run killed at any moment continues where it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from peppermill.paper.columns import METHODS
from peppermill.paper.rows import Row, row_data
from peppermill.paper.work import Settings, Work, row_of
from peppermill.plumbing.files import read_json, write_atomically
from peppermill.report.provenance import provenance

KIND = "peppermill table 2"
VERSION = 1


def main(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every row of the table: computed, continued, or read where it is done."""
    rows = {name: row_of(name, settings) for name in settings.rows}
    found = {}
    for name, row in rows.items():
        path = settings.out / f"table2-{name}.json"
        known = read_json(path, KIND, VERSION) if path.is_file() else None
        if known and (known["settings"], known["row_settings"]) == (settings.identity(), asdict(row)):
            settings.say(f"{row.title}: done, in {path}")
        else:
            known = _run_row(name, row, settings)
            write_atomically(path, json.dumps(known, indent=1, allow_nan=False) + "\n")
            settings.say(f"{row.title}: wrote {path}")
        found[name] = known
    return found


def _run_row(name: str, row: Row, settings: Settings) -> dict[str, Any]:
    data = row_data(row, settings.data, settings.machine.device, settings.validation)
    work = Work(name, row, settings, data)
    columns = {method: work.stage(method, partial) for method, partial in METHODS.items()}
    return {
        "format": KIND,
        "version": VERSION,
        "row": name,
        "title": row.title,
        "settings": settings.identity(),
        "row_settings": asdict(row),
        "machine": asdict(settings.machine),
        "items": {split: len(getattr(data, split).labels) for split in ("train", "validation", "test")},
        "columns": columns,
        "training": {name: work.losses[name] for name in sorted(work.losses)},
        "seconds": work.seconds,
        "provenance": provenance(settings.seeds[0]),
    }
