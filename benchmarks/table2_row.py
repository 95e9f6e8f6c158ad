"""How long rows of Table 2 take, from data to numbers, on this machine: `python -m benchmarks.table2_row`.

Seconds, not a ratio: what a reader wants to know is whether there is time for it. A quarter of an hour on two cores,
so `make bench` leaves it out. Needs PEPPERMILL_DATA, or downloads.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.timing import RESULTS, where
from peppermill.paper import table2
from peppermill.paper.machine import Machine
from peppermill.paper.rows import SEEDS
from peppermill.paper.work import Settings
from peppermill.plumbing.files import write_atomically
from peppermill.report.provenance import provenance

STAGES = ("training", "training with dropout", "training SWA")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="mnist-mlp", help="separated by commas")
    parser.add_argument("--models", type=int, default=len(SEEDS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    machine = Machine(arguments.device, compiled=arguments.compiled)
    found = measure(tuple(arguments.rows.split(",")), arguments.models, machine)
    name = f"table2_row-{'gpu' if arguments.device.startswith('cuda') else 'cpu'}.json"
    write_atomically(arguments.out / name, json.dumps(found | {"provenance": provenance(SEEDS[0])}, indent=1) + "\n")
    print(f"{found['seconds'] / 60:.1f} minutes; wrote {name}")


def measure(rows: tuple[str, ...], models: int, machine: Machine) -> dict[str, Any]:
    """Rows from nothing: no checkpoint is there, and none is left."""
    data = os.environ.get("PEPPERMILL_DATA")
    with TemporaryDirectory() as folder:
        out = Path(folder)
        settings = Settings(
            rows, SEEDS[:models], data=Path(data) if data else None, out=out, checkpoints=out / "work", machine=machine
        )
        start = time.monotonic()
        table2.main(settings)
        seconds = time.monotonic() - start
        made = {row: json.loads((out / f"table2-{row}.json").read_text()) for row in rows}
    stages = {row: content["seconds"] for row, content in made.items()}
    titles = {row: content["title"] for row, content in made.items()}
    return {"models": models, "titles": titles, "seconds": seconds, "stages": stages}


def section(found: dict[str, Any]) -> str:
    """The words of the page."""
    gpu = "gpu" in found["provenance"]["hardware"]
    rows = ",".join(found["stages"])
    table = [
        f"| {found['titles'][row]} | {' | '.join(f'{_seconds(stages, stage):.0f} s' for stage in STAGES)} "
        f"| {sum(stages.values()) - sum(_seconds(stages, stage) for stage in STAGES):.0f} s |"
        for row, stages in found["stages"].items()
    ]
    return "\n".join(
        [
            f"## Table 2 on a {'GPU' if gpu else 'CPU'}",
            "",
            f"{found['models']} models and as many with dropout, from data to numbers: **{found['seconds'] / 60:.1f} "
            f"minutes**, aim at most 15. `python -m benchmarks.table2_row --rows {rows}{' --device cuda' * gpu}`; "
            f"{where(found)}.",
            "",
            "| row | training | with dropout | SWA | methods |",
            "|---|---|---|---|---|",
            *table,
            "",
        ]
    )


def _seconds(stages: dict[str, float], stage: str) -> float:
    """Of the stage of this name; SWA's has its schedule behind it."""
    return sum(value for name, value in stages.items() if name == stage or (stage in name and "SWA" in stage))


if __name__ == "__main__":
    main()
