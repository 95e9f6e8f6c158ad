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


def tuning_section(found: dict[str, Any]) -> str:
    ways = ("quick", "quick_with_temperature", "golden", "authors")
    table = [
        f"| {NETWORKS[name]} | {row['items']:,} | {row['effect']:.4f} | {' | '.join(_paid(row[way]) for way in ways)} |"
        for name, row in sorted(found["networks"].items(), key=lambda item: list(NETWORKS).index(item[0]))
    ]
    return "\n".join(
        [
            "## Finding sigma",
            "",
            f"Passes of all m = {found['size']} members over all validation items, and what the sigma that was found "
            "misses of the PEP effect L(σ*) − L(0), against the best of a fine grid and of all that was tried. The aim "
            "is at most 5 passes and at most 1 %. *quick* is `fit`, also with `temperature=True` (there of the best "
            'L(σ, T)); *golden* is `fit(search="golden")`; *authors* are ten iterations in 0 to 0.1 with '
            "both inner points computed in each. "
            "The networks of Table 2 are one seed each, trained for 15 epochs on part of the images "
            f"(`benchmarks/trained.py`). `python -m benchmarks.tuning`; {_where(found)}.",
            "",
            "| network | items | effect | quick | quick, with T | golden | authors |",
            "|---|---|---|---|---|---|---|",
            *table,
            "",
        ]
    )


NETWORKS = {
    "demo": "the demo's",
    "mnist-mlp": "MNIST MLP",
    "mnist-cnn": "MNIST CNN",
    "fashion-mnist": "Fashion-MNIST CNN",
    "cifar10": "CIFAR-10 CNN",
    "cifar100": "CIFAR-100 CNN",
    "resnet56": "ResNet-56, CIFAR-10",
}

SECTIONS = {
    "core": core_section,
    "tuning": tuning_section,
    "antithetic": antithetic_section,
    "training_together": training_section,
}


def _paid(way: dict[str, float]) -> str:
    return f"**{way['passes']:.1f}**, {100 * way['missed']:.2f} %"


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
