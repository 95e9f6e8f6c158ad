"""What low precision changes in NLL, on the demo network: `python -m benchmarks.precision`.

Sigma is fitted in float32 and in low precision, each is tested in both, and the network alone is the measure.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import peppermill as pm
import peppermill.demo
from benchmarks.timing import where, write_result
from peppermill.engines.members import PRECISIONS

SIZE, SEED = 10, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=5000, help="validation and test items, each")
    items = parser.parse_args().items
    model = peppermill.demo.network()
    validation, test = ((images[:items], labels[:items]) for images, labels in peppermill.demo.data())
    plain = pm.predict(model, test)
    found = {"float32": measured(model, validation, test, None)}
    found |= {name: measured(model, validation, test, name) for name in PRECISIONS}
    exact = found["float32"]
    for row in found.values():
        row["nll_change"] = row["nll"] - exact["nll"]
        row["sigma_change"] = row["sigma"] / exact["sigma"] - 1
    write_result(
        "precision",
        {"size": SIZE, "items": items, "network_nll": float(-plain.log_likelihoods.mean()), "precisions": found},
        SEED,
    )
    for name, row in found.items():
        print(
            f"{name}: sigma {row['sigma']:.5f}, test NLL {row['nll']:.5f}, same sigma {row['nll_at_float32_sigma']:.5f}"
        )


@torch.no_grad()
def measured(model: Any, validation: Any, test: Any, precision: str | None) -> dict[str, float]:
    """sigma* of a fit in this precision, its test NLL, and the NLL of the float32 fit run in this precision."""
    pep = pm.fit(model, validation, size=SIZE, seed=SEED, precision=precision)
    exact = pm.fit(model, validation, size=SIZE, seed=SEED).with_engine("auto", precision)
    return {
        "sigma": pep.sigma,
        "nll": float(-pm.predict(pep, test).log_likelihoods.mean()),
        "nll_at_float32_sigma": float(-pm.predict(exact, test).log_likelihoods.mean()),
        "gain": float(pep.search.gain),
    }


def section(found: dict[str, Any]) -> str:
    """The words of the page."""
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
            f"network alone has NLL {found['network_nll']:.5f}. `python -m benchmarks.precision`; {where(found)}.",
            "",
            "| network computes in | σ* found so | test NLL | change | NLL with σ* found in float32 |",
            "|---|---|---|---|---|",
            *table,
            "",
        ]
    )


if __name__ == "__main__":
    main()
