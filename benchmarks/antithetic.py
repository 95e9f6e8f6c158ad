"""Antithetic pairs or independent members, at equal m: `python -m benchmarks.antithetic`.

For each of ten seeds, sigma (and T, in the joint method) is chosen on the demo's validation half from a grid, and the
ensemble is scored on the test half. The paired differences over seeds decide the default of `fit`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

import peppermill.demo
from benchmarks.timing import where, write_result
from peppermill.calibrators.temperature import best_temperature
from peppermill.data import Batches
from peppermill.engines.loop import MemberPass, run_members
from peppermill.likelihood import Categorical, temper
from peppermill.metrics import nll
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.perturbation import Perturbation

SEEDS = range(10)
GRID = (0.004, 0.008, 0.012, 0.018, 0.024, 0.030)
SIZE = 10
LAWS = {"antithetic": True, "independent": False}


def main() -> None:
    rows = {name: [test_nll(Noise(antithetic=pairs, seed=seed)) for seed in SEEDS] for name, pairs in LAWS.items()}
    columns = {kind: {name: [row[kind] for row in rows[name]] for name in LAWS} for kind in ("pep", "joint")}
    summary = {kind: paired(**both) for kind, both in columns.items()}
    write_result(
        "antithetic", {"size": SIZE, "grid": GRID, "seeds": len(SEEDS), "summary": summary, "test_nll": columns}
    )


def test_nll(noise: Noise) -> dict[str, float]:
    """Test NLL at what is best on the validation half: sigma for PEP, sigma and T for the joint method."""
    network = peppermill.demo.network()
    perturbation = Perturbation(select(network, "kernels"), noise, SIZE)
    validation, test = (Batches(data, network) for data in peppermill.demo.data())

    def members(sigma: float, data: Batches) -> MemberPass:
        return run_members(network, perturbation, sigma, data, Categorical(), lambda items: None)

    tuned = {sigma: members(sigma, validation) for sigma in GRID}
    temperatures = {sigma: best_temperature(found.averaged, found.labels) for sigma, found in tuned.items()}
    pep = min(GRID, key=lambda sigma: nll(tuned[sigma].averaged, tuned[sigma].labels))
    joint = max(GRID, key=lambda sigma: temperatures[sigma][1])
    tested = {sigma: members(sigma, test) for sigma in {pep, joint}}
    tempered = temper(tested[joint].averaged, temperatures[joint][0])
    return {"pep": nll(tested[pep].averaged, tested[pep].labels), "joint": nll(tempered, tested[joint].labels)}


def paired(antithetic: list[float], independent: list[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds of both, the mean of their differences, and its p-value."""
    first, second = np.asarray(antithetic), np.asarray(independent)
    return {
        "antithetic_mean": float(first.mean()),
        "antithetic_deviation": float(first.std(ddof=1)),
        "independent_mean": float(second.mean()),
        "independent_deviation": float(second.std(ddof=1)),
        "difference": float((first - second).mean()),
        "p_value": float(stats.ttest_rel(first, second).pvalue),
    }


def section(found: dict[str, Any]) -> str:
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
            f"seeds, and the paired difference. `python -m benchmarks.antithetic`; {where(found)}.",
            "",
            "| method | antithetic | independent | difference | p |",
            "|---|---|---|---|---|",
            *table,
            "",
        ]
    )


def _spread(summary: dict[str, float], name: str) -> str:
    return f"{summary[f'{name}_mean']:.4f} ± {summary[f'{name}_deviation']:.4f}"


if __name__ == "__main__":
    main()
