"""docs/reliability.md from results/reliability/*.json: `python -m stress.document`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results" / "reliability", ROOT / "docs" / "reliability.md"


@dataclass(frozen=True)
class Part:
    """A hostile test: the number of its cases, what it does, and its figures by the names in its result."""

    count: int
    title: str
    text: str
    figures: dict[str, str]


#: The parts in the order of the page. A new one is one file with `run(seed, count)` and one row.
PARTS = {
    "zoo": Part(
        1000,
        "Networks against copies of them",
        "Networks of every kind of layer, input and output, and networks with hostile code (it reads values, writes to "
        "its inputs or weights, keeps what it computed) run by each engine of a CPU, perturbed in their kernels and in "
        "all parameters. Every member is compared with a new network to whose weights the noise is added "
        "(`stress/reference.py`); network and inputs must be the same afterwards.",
        {
            "networks": "networks",
            "cases": "networks x engines x rules",
            "right": "equal to the copies",
            "refused": "refused, as they should be",
            "warned": "random networks, noticed",
            "wrong": "**wrong**",
        },
    ),
    "interrupts": Part(
        5000,
        "Interrupts at random moments",
        "Ctrl-C in the middle of `fit`, `pep(x)`, `evaluate`, `McDropout`, `local_analysis` and `save`. Afterwards the "
        "network (tensors, their objects, modes) and the data must be the same, and the next prediction must be right. "
        "An interrupt inside of `torch.no_grad` itself, while it enters or leaves, can leave gradients switched off: "
        "that is torch's, and is counted.",
        {
            "cases": "random moments",
            "completed": "of these, after the end of the work",
            "gradients_off": "left gradients switched off",
            "changed": "**changed network or data**",
            "wrong": "**wrong afterwards**",
        },
    ),
    "threads": Part(
        10000,
        "First calls from threads",
        "Eight threads make the first calls of one or two ensembles around one network, while others call the network "
        "itself.",
        {
            "cases": "first calls",
            "wrong": "**wrong numbers**",
            "hang": "**hanging**",
            "changed": "**changed networks**",
        },
    ),
    "fuzz": Part(
        10000,
        "The command line with damaged files and nasty options",
        "Sane command lines with up to three mutations: a damaged file of any format, another value of an option, a "
        "word too many or too few. More than 60 seconds count as a hang.",
        {
            "cases": "command lines",
            "success": "succeeded",
            "refused": "refused with a message",
            "traceback": "**tracebacks**",
            "hang": "**hangs**",
            "memory": "**more than 4 GB**",
            "silent": "**silent**",
            "killed": "**crashes**",
        },
    ),
    "kills": Part(
        100,
        "Kills, and starting again",
        "A process that fits, saves and records in stages is killed (SIGKILL) at a random moment. Every file must be "
        "whole or absent, and the process that goes on must end with the results of one that was never killed.",
        {"cases": "kills", "torn": "**damaged files**", "different": "**other results after starting again**"},
    ),
    "stream_kills": Part(
        100,
        "Kills of a prediction in parts",
        "`write_predictions` writes 400,000 rows of 100 classes into a folder, as Parquet and as npz, and is killed "
        "(SIGKILL) at a random moment, again and again until it ends. A part is whole or absent, and once it is there "
        "it is not written again; in the end every file must be that of an undisturbed run, byte for byte.",
        {
            "cases": "kills",
            "jobs": "jobs that ended",
            "torn": "**damaged parts**",
            "twice": "**parts written twice**",
            "different": "**other files in the end**",
        },
    ),
    "ranks": Part(
        12,
        "Failing processes under torchrun",
        "One of two processes exits, raises, or is killed before or during `fit`. The other must end in time, with an "
        "error.",
        {
            "cases": "runs",
            "ended": "ended with an error",
            "hang": "**hanging**",
            "silent": "**ended as if all were well**",
        },
    ),
}
OPENING = """# Reliability

What hostile tests found in the present code. `make stress` runs them again (an hour or more; `python -m stress --only
zoo,threads --seed 1 --count 500` runs some) and writes this page from `results/reliability/*.json`; do not edit it by
hand. `make test` runs a short part of each. Rows in bold must be zero.
"""


def main() -> None:
    PAGE.write_text(page(RESULTS))
    print("wrote docs/reliability.md")


def page(results: Path) -> str:
    """The opening, and a section for each result."""
    paths = {name: results / f"{name}.json" for name in PARTS}
    return "\n".join([OPENING] + [section(name, json.loads(p.read_text())) for name, p in paths.items() if p.exists()])


def section(name: str, found: dict[str, Any]) -> str:
    """What a part does, its figures, and where they come from."""
    part, made = PARTS[name], found["provenance"]
    rows = [f"| {title} | {found.get(key, 0):,} |" for key, title in part.figures.items()]
    where = f"{made['hardware']['processor']}, torch {made['versions']['torch']}, commit {made['commit']}"
    origin = f"`{made['command']}`, seed {made['seed']}, {found['seconds']:,} s; {where}."
    faults = [f"- {fault}" for fault in found["faults"]]
    return "\n".join([f"## {part.title}", "", part.text, origin, "", "| | |", "|---|---:|", *rows, "", *faults])


if __name__ == "__main__":
    main()
