"""Antithetic pairs or independent members, at equal m: `python -m benchmarks.antithetic`.

For each of ten seeds, sigma (and T, in the joint method) is chosen on the demo's validation half from a grid, and the
ensemble is scored on the test half. The paired differences over seeds decide the default of `fit`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

import peppermill as pm
from benchmarks.networks import ensemble_at
from benchmarks.timing import table_section, where, write_result

SEEDS = range(10)
GRID = (0.004, 0.008, 0.012, 0.018, 0.024, 0.030)
SIZE = 10
LAWS = {"antithetic": True, "independent": False}


def main() -> None:
    rows = {name: [test_nll(pm.Noise(antithetic=pairs, seed=seed)) for seed in SEEDS] for name, pairs in LAWS.items()}
    columns = {kind: {name: [row[kind] for row in rows[name]] for name in LAWS} for kind in ("pep", "joint")}
    summary = {kind: paired(**both) for kind, both in columns.items()}
    write_result(
        "antithetic", {"size": SIZE, "grid": GRID, "seeds": len(SEEDS), "summary": summary, "test_nll": columns}
    )


def test_nll(noise: pm.Noise) -> dict[str, float]:
    """Test NLL at what is best on the validation half: sigma for PEP, sigma and T for the joint method."""
    validation, test = pm.demo.data()
    base = ensemble_at(pm.demo.network(), validation, GRID[0], SIZE, noise=noise)
    plain = [base.with_sigma(sigma) for sigma in GRID]
    tempered = [pm.fit_temperature(pep, validation) for pep in plain]
    best = {
        kind: min(found, key=lambda pep: nll(pep, validation)) for kind, found in (("pep", plain), ("joint", tempered))
    }
    return {kind: nll(pep, test) for kind, pep in best.items()}


def nll(pep: pm.PepEnsemble, data: Any) -> float:
    predictions = pm.predict(pep, data)
    return pm.metrics.nll(predictions.log_probs, predictions.labels)


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

    def spread(summary: dict[str, float], name: str) -> str:
        return f"{summary[f'{name}_mean']:.4f} ± {summary[f'{name}_deviation']:.4f}"

    return table_section(
        "Antithetic pairs or independent members?",
        f"Test NLL of the demo network with m = {found['size']}, mean ± standard deviation over {found['seeds']} "
        f"seeds, and the paired difference. `python -m benchmarks.antithetic`; {where(found)}.",
        ("method", "antithetic", "independent", "difference", "p"),
        [
            (
                names[kind],
                spread(summary, "antithetic"),
                spread(summary, "independent"),
                f"{summary['difference']:+.4f}",
                f"{summary['p_value']:.2g}",
            )
            for kind, summary in found["summary"].items()
        ],
    )


if __name__ == "__main__":
    main()
