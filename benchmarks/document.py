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


def engines_cpu_section(found: dict[str, Any]) -> str:
    names = {"mnist_mlp": "MNIST MLP", "demo_cnn": "demo CNN", "resnet20": "ResNet-20"}
    table = [
        f"| {names[row['network']]} | {row['batch']} | {row['loop']:.2f} | {row['vmap']:.2f} | **{row['auto']:.2f}** "
        f"| {row['auto_to_best']:.2f} |"
        for row in found["rows"]
    ]
    return "\n".join(
        [
            "## Engines on a CPU",
            "",
            f"A prediction of m = {found['size']} members, in units of ten plain passes; and `auto` over the best of "
            f"the others, at most 1.05 ([engines.md](engines.md)). `python -m benchmarks.engines`; {_where(found)}.",
            "",
            "| network | batch | loop | vmap | auto | auto / best |",
            "|---|---|---|---|---|---|",
            *table,
            "",
        ]
    )


def engines_gpu_section(found: dict[str, Any]) -> str:
    large, small = ([row for row in found["rows"] if (row["batch"] == 1) == one] for one in (False, True))
    return "\n".join(
        [
            "## Engines on a GPU",
            "",
            f"m = {found['size']}; `python -m benchmarks.engines --device cuda`; {_where(found)}.",
            "",
            "| network | precision | batch 256, auto over ten plain passes, aim at most 1.03 |",
            "|---|---|---|",
            *(f"| {row['network']} | {row['precision'] or 'float32'} | **{row['auto']:.3f}** |" for row in large),
            "",
            "| network | batch 1, graphs over one eager pass, aim at most 1.0 | over one graphed pass, at most 2.2 |",
            "|---|---|---|",
            *(
                f"| {row['network']} | **{row['graphs_to_eager']:.2f}** | **{row['graphs_to_graphed']:.2f}** |"
                for row in small
            ),
            "",
        ]
    )


def precision_section(found: dict[str, Any]) -> str:
    table = [
        f"| {name} | {row['sigma']:.4f} | {row['nll']:.5f} | {row['nll_change']:+.5f} "
        f"| {row['nll_at_float32_sigma']:.5f} |"
        for name, row in found["precisions"].items()
    ]
    return "\n".join(
        [
            "## Low precision",
            "",
            f"PEP on the demo network, m = {found['size']}, {found['items']:,} items to tune on and to test on; the "
            f"network alone has NLL {found['network_nll']:.5f}. `python -m benchmarks.precision`; {_where(found)}.",
            "",
            "| network computes in | σ* found so | test NLL | change | NLL with σ* found in float32 |",
            "|---|---|---|---|---|",
            *table,
            "",
        ]
    )


SECTIONS = {
    "core": core_section,
    "engines-cpu": engines_cpu_section,
    "engines-gpu": engines_gpu_section,
    "precision": precision_section,
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
