"""docs/benchmarks.md from results/bench/*.json: `python -m benchmarks.document`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.timing import RESULTS
from peppermill.files import write_atomically

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"

OPENING = """# Benchmarks

What PEP costs, each figure a ratio within one run, because machines are noisy and ratios travel better than seconds.
`make bench` measures everything again and writes this page from `results/bench/*.json`; do not edit it by hand.
"""


def main() -> None:
    sections = [OPENING] + [
        write(_read(name)) for name, write in SECTIONS.items() if (RESULTS / f"{name}.json").exists()
    ]
    write_atomically(PAGE, "\n".join(sections))
    print("wrote docs/benchmarks.md")


def core_section(found: dict[str, Any]) -> str:
    rows = [
        ("m = 10 members over the demo's 5,000 images, against ten plain passes", "member_pass_demo_network", "1.05"),
        (
            "m = 10 members of a ResNet-20 over 500 images 32x32, against ten plain passes",
            "member_pass_resnet20",
            "1.05",
        ),
        ("`fit(temperature=True)` on the demo, against the time of its member passes", "fit_demo", "1.05"),
        ("peak memory beyond the bare network's, in copies of the selected weights (384 MiB)", "memory", "1"),
    ]
    table = [f"| {what} | **{found[key]['ratio']:.3f}** | {limit} |" for what, key, limit in rows]
    return "\n".join(
        [
            "## The price of an ensemble",
            "",
            f"`python -m benchmarks.core`; batches of {found['batch']}; {_where(found)}.",
            "",
            "| what | ratio | aim at most |",
            "|---|---|---|",
            *table,
            "",
        ]
    )


def antithetic_section(found: dict[str, Any]) -> str:
    names = {"pep": "PEP", "joint": "PEP with temperature, tuned jointly"}
    table = [
        f"| {names[kind]} | {_spread(s, 'antithetic')} | {_spread(s, 'independent')} | {s['difference']:+.4f} "
        f"| {s['p_value']:.2g} |"
        for kind, s in found["summary"].items()
    ]
    return "\n".join(
        [
            "## Antithetic pairs or independent members?",
            "",
            f"Test NLL of the demo network with m = {found['size']}, mean ± standard deviation over {found['seeds']} "
            f"seeds, and the paired difference. `python -m benchmarks.antithetic`; {_where(found)}.",
            "",
            "| method | antithetic | independent | difference | p |",
            "|---|---|---|---|---|",
            *table,
            "",
        ]
    )


def training_section(found: dict[str, Any]) -> str:
    table = []
    for row in found["rows"]:
        best = max((row[key] for key in row if isinstance(row[key], dict)), key=lambda one: one["ratio"])
        name = row["network"].replace("_", " ") + (" with dropout" if row["dropout"] else "")
        table.append(
            f"| {name} | {row['eager_ms_per_step']:.2f} ms | {best['ms_per_step']:.2f} ms | **{best['ratio']:.1f}** |"
        )
    return "\n".join(
        [
            "## Training 25 seeds together",
            "",
            "One step of one network in the usual eager loop, one step of 25 networks together, and the gain.",
            f"`python benchmarks/training_together.py --device cuda`; {_where(found)}.",
            "",
            "| network | eager, one | together, 25 | times faster |",
            "|---|---|---|---|",
            *table,
            "",
        ]
    )


def processes_section(found: dict[str, Any]) -> str:
    fit = found["fit_demo"]
    return "\n".join(
        [
            "## A second process",
            "",
            f"`fit(temperature=True)` on the demo's 5,000 images, m = {found['size']}, batches of {found['batch']}: "
            f"one process with one thread, against {found['processes']} processes with one thread each; the median of "
            f"{fit['rounds']:.0f} rounds. Starting the processes took {found['start_seconds']:.1f} s more, once. "
            f"`python -m benchmarks.processes`; {_where(found)}.",
            "",
            "| one process | two processes | times faster | aim at least |",
            "|---|---|---|---|",
            f"| {fit['first_seconds']:.2f} s | {fit['second_seconds']:.2f} s | **{fit['ratio']:.2f}** | 1.7 |",
            "",
        ]
    )


SECTIONS = {
    "core": core_section,
    "processes": processes_section,
    "antithetic": antithetic_section,
    "training_together": training_section,
}


def _spread(summary: dict[str, float], name: str) -> str:
    return f"{summary[f'{name}_mean']:.4f} ± {summary[f'{name}_deviation']:.4f}"


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def _where(found: dict[str, Any]) -> str:
    p = found["provenance"]
    hardware = p["hardware"].get("gpu") or f"{p['hardware']['processor']}, {p['hardware']['threads']} threads"
    return f"{hardware}, torch {p['versions']['torch']}, commit {p['commit']}"


if __name__ == "__main__":
    main()
