"""What a second process brings: `python -m benchmarks.processes`.

The fit of the demo's sigma and T by two processes with one thread each, against one process with one thread (at least
1.7 times faster). Both take turns in the same two processes, whose start is measured apart.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import peppermill as pm
from benchmarks.timing import median_ratio, table_section, where, write_result

PROCESSES, SIZE, BATCH, ROUNDS = 2, 10, 250, 5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        multiprocessing.spawn(_measure, (folder, ROUNDS), PROCESSES)
        whole = time.perf_counter() - start
        found = json.loads((Path(folder) / "found.json").read_text())
    write_result(
        "processes",
        {
            "processes": PROCESSES,
            "size": SIZE,
            "batch": BATCH,
            "fit_demo": found["fit_demo"],
            "start_seconds": whole - found["seconds"],
        },
    )


def _measure(rank: int, folder: str, rounds: int) -> None:
    """One process: the first alone while the others wait, then all together."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    model, (validation, _) = pm.demo.network(), pm.demo.data()

    def fit() -> Any:
        return pm.fit(model, validation, size=SIZE, batch_size=BATCH, temperature=True)

    def by_one() -> None:
        if rank == 0:
            with pm.alone():
                fit()
        dist.barrier()

    start = time.perf_counter()
    ratios = median_ratio(by_one, fit, rounds)
    if rank == 0:
        found = {"fit_demo": ratios, "seconds": time.perf_counter() - start}
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def section(found: dict[str, Any]) -> str:
    fit = found["fit_demo"]
    return table_section(
        "A second process",
        f"`fit(temperature=True)` on the demo's 5,000 images, m = {found['size']}, batches of {found['batch']}: "
        f"one process with one thread, against {found['processes']} processes with one thread each; the median of "
        f"{fit['rounds']:.0f} rounds. Starting the processes took {found['start_seconds']:.1f} s more, once. "
        f"`python -m benchmarks.processes`; {where(found)}.",
        ("one process", "two processes", "times faster", "aim at least"),
        [(f"{fit['first_seconds']:.2f} s", f"{fit['second_seconds']:.2f} s", f"**{fit['ratio']:.2f}**", "1.7")],
    )


if __name__ == "__main__":
    main()
