"""What low precision changes in NLL, on the demo network: `python -m benchmarks.precision`.

Sigma is fitted in float32 and in low precision, each is tested in both, and the network alone is the measure.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import peppermill as pm
from benchmarks.timing import table_section, where, write_result

SIZE, SEED = 10, 0
PRECISIONS = ("bfloat16", "float16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=5000, help="validation and test items, each")
    items = parser.parse_args().items
    model = pm.demo.network()
    validation, test = ((images[:items], labels[:items]) for images, labels in pm.demo.data())
    plain = pm.predict(model, test)
    exact = pm.fit(model, validation, size=SIZE, noise=pm.Noise(seed=SEED))
    found = {name or "float32": measured(exact, validation, test, name) for name in (None, *PRECISIONS)}
    for row in found.values():
        row["nll_change"] = row["nll"] - found["float32"]["nll"]
    write_result(
        "precision",
        {"size": SIZE, "items": items, "network_nll": float(-plain.log_likelihoods.mean()), "precisions": found},
        SEED,
    )


@torch.no_grad()
def measured(exact: pm.PepEnsemble, validation: Any, test: Any, precision: str | None) -> dict[str, float]:
    """sigma* of a fit in this precision, its test NLL, and the NLL of the float32 fit run in this precision."""
    pep = exact
    if precision is not None:
        pep = pm.fit(exact.model, validation, size=SIZE, noise=pm.Noise(seed=SEED), engine=f"auto:{precision}")
    same_sigma = pm.predict(exact.with_engine("auto", precision), test)
    return {
        "sigma": pep.sigma,
        "nll": float(-pm.predict(pep, test).log_likelihoods.mean()),
        "nll_at_float32_sigma": float(-same_sigma.log_likelihoods.mean()),
        "gain": pep.search.gain,
    }


def section(found: dict[str, Any]) -> str:
    return table_section(
        "Low precision",
        f"PEP on the demo network, m = {found['size']}, with {found['items']:,} items to tune and as many to test; "
        f"the network alone has NLL {found['network_nll']:.5f}. `python -m benchmarks.precision`; {where(found)}.",
        ("network computes in", "σ* of a fit in this type", "test NLL", "change", "NLL with the σ* of float32"),
        [
            (
                name,
                f"{row['sigma']:.4f}",
                f"{row['nll']:.5f}",
                f"{row['nll_change']:+.5f}",
                f"{row['nll_at_float32_sigma']:.5f}",
            )
            for name, row in found["precisions"].items()
        ],
    )


if __name__ == "__main__":
    main()
