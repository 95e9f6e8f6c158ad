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
        "Members against real copies of the network",
        "Random networks with every kind of layer, input and output, and networks with hostile code (which reads "
        "values, writes to its inputs or weights, or keeps what it computed). Every CPU engine runs them, with noise "
        "on the kernels and with noise on all parameters. Each member is compared with a real copy of the network to "
        "whose weights the noise was added (`stress/reference.py`). Afterwards the network and the inputs must be "
        "unchanged.",
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
        "network (tensors, objects, modes) and the data must be unchanged, and the next prediction must be right. An "
        "interrupt while `torch.no_grad` itself is entered or left can leave gradients switched off; that is a "
        "limitation of torch, and these cases are counted separately.",
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
        "Eight threads make the first calls of one or two ensembles that share a network, while other threads call "
        "the network itself.",
        {
            "cases": "first calls",
            "wrong": "**wrong numbers**",
            "hang": "**hanging**",
            "changed": "**changed networks**",
        },
    ),
    "fuzz": Part(
        10000,
        "The command line with damaged files and wrong options",
        "Valid command lines with up to three mutations: a damaged file of any format, a changed option value, an "
        "extra or a missing word. A command that takes more than 60 seconds counts as a hang.",
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
        "Kill and resume",
        "A process that fits, saves and records in stages is killed (SIGKILL) at a random moment. Every file must be "
        "complete or absent, and the resumed process must end with the same results as one that was never killed.",
        {"cases": "kills", "torn": "**damaged files**", "different": "**different results after resuming**"},
    ),
    "stream_kills": Part(
        100,
        "Kill and resume `write_predictions`",
        "`write_predictions` writes 400,000 rows of 100 classes into a folder, as Parquet and as npz. It is killed "
        "(SIGKILL) at random moments and resumed until it finishes. A part must be complete or absent, no finished "
        "part may be written again, and in the end every file must be byte-identical to that of an undisturbed run.",
        {
            "cases": "kills",
            "jobs": "jobs that finished",
            "torn": "**damaged parts**",
            "twice": "**parts written twice**",
            "different": "**different files in the end**",
        },
    ),
    "ranks": Part(
        12,
        "Failing processes under torchrun",
        "One of two processes exits, raises an exception, or is killed before or during `fit`. The other must end "
        "within the time limit, with an error.",
        {
            "cases": "runs",
            "ended": "ended with an error",
            "hang": "**hanging**",
            "silent": "**ended without an error**",
        },
    ),
}
OPENING = """# Reliability

How does the code behave when things go wrong? These stress tests try to break it; every row in bold must be zero. `make
stress` runs all of them (an hour or more) and writes this page from `results/reliability/*.json`, so do not edit it by
hand. `python -m stress --only zoo,threads --seed 1 --count 500` runs some of them, `make test` a short version of each.
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
