"""How many validation items a method needs: `python -m benchmarks.validation_items`.

NLL of the demo network on test images after tuning on N others, over random draws; each as its difference from a
temperature tuned on the most items of the same draw. The log-probabilities of the network, and of a few members
at each sigma of a grid, are computed once, so a draw costs no pass. PEP with T takes the sigma and the T that are best
together on the N items.
"""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm
from benchmarks.timing import RESULTS, table_section, where, write_result

ITEMS = (100, 200, 500, 1_000, 2_000, 5_000)
SIGMAS = (0.0, 0.004, 0.008, 0.012, 0.016)
SIZE, DRAWS, TEST_ITEMS = 6, 20, 5_000
METHODS = ("network", "temperature", "vector", "PEP with T")
PICTURE = RESULTS.parents[1] / "docs" / "pictures" / "validation-items.png"


def main() -> None:
    validation, test = pm.demo.data()
    images, labels = (torch.cat(both)[: ITEMS[-1] + TEST_ITEMS] for both in zip(validation, test, strict=True))
    members = {sigma: log_probs_at(sigma, images, labels) for sigma in SIGMAS}
    found: dict[str, list[list[float]]] = {name: [[] for _ in ITEMS] for name in METHODS}
    for draw in range(DRAWS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(draw))
        testing = order[-TEST_ITEMS:]
        for row, count in enumerate(ITEMS):
            for name in METHODS:
                found[name][row].append(test_nll(name, members, labels, order[:count], testing))
    result = {"items": ITEMS, "draws": DRAWS, "test_items": TEST_ITEMS, "sigmas": SIGMAS, "size": SIZE, "nll": found}
    write_result("validation_items", result)
    draw_curves(result)


def log_probs_at(sigma: float, images: Tensor, labels: Tensor) -> Tensor:
    """Averaged log-probabilities [N, K] of the members, or of the network alone."""
    network = pm.demo.network()
    predictor = pm.PepEnsemble.at_sigma(network, sigma, size=SIZE) if sigma else network
    return pm.predict(predictor, (images, labels)).log_probs


def test_nll(name: str, members: dict[float, Tensor], labels: Tensor, tuning: Tensor, testing: Tensor) -> float:
    """NLL on the test items of a method that was tuned on some items."""
    plain = members[0.0]
    if name == "network":
        return pm.metrics.nll(plain[testing], labels[testing])
    if name != "PEP with T":
        return nll_of(fitted(plain[tuning], labels[tuning], name), plain[testing], labels[testing])
    tempered = {sigma: fitted(at[tuning], labels[tuning], "temperature") for sigma, at in members.items()}
    best = min(tempered, key=lambda sigma: nll_of(tempered[sigma], members[sigma][tuning], labels[tuning]))
    return nll_of(tempered[best], members[best][testing], labels[testing])


def fitted(log_probs: Tensor, labels: Tensor, name: str) -> Any:
    return pm.fit_calibrator(nn.Identity().eval(), (log_probs, labels), name)


def nll_of(predictor: Any, log_probs: Tensor, labels: Tensor) -> float:
    predictions = pm.predict(predictor, (log_probs, labels))
    return pm.metrics.nll(predictions.log_probs, predictions.labels)


def losses(found: dict[str, Any], name: str, row: int) -> list[float]:
    """For each draw, the NLL minus that of the temperature of most items."""
    best = found["nll"]["temperature"][-1]
    return [nll - other for nll, other in zip(found["nll"][name][row], best, strict=True)]


def draw_curves(found: dict[str, Any]) -> None:
    """Mean and standard deviation over draws against N; the network, far above, is in the legend only."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name, marker, shift in zip(METHODS[1:], "osD", (0.97, 1.0, 1.03), strict=True):
        rows = [losses(found, name, row) for row in range(len(ITEMS))]
        counts = [count * shift for count in ITEMS]  # so that the bars stand side by side
        axis.errorbar(counts, [*map(mean, rows)], [*map(stdev, rows)], marker=marker, capsize=2, label=name)
    axis.plot([], [], " ", label=f"network: {mean(losses(found, 'network', -1)):+.3f}")
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set(xscale="log", xlabel="validation items", ylabel=f"test NLL, from that of T with {ITEMS[-1]:,} items")
    axis.set_xticks(ITEMS, [f"{count:,}" for count in ITEMS])
    axis.minorticks_off()
    axis.legend(frameon=False)
    figure.savefig(PICTURE, dpi=150)


def section(found: dict[str, Any]) -> str:
    rows = []
    for row, count in enumerate(found["items"]):
        both = [losses(found, name, row) for name in METHODS]
        rows.append((f"{count:,}", *(f"{mean(values):+.4f} ± {stdev(values):.4f}" for values in both)))
    return table_section(
        "How many validation items?",
        f"NLL on {found['test_items']:,} test images of the demo network after tuning on N others, minus the NLL with "
        f"a temperature tuned on {found['items'][-1]:,}: mean ± standard deviation over {found['draws']} draws, "
        f"m = {found['size']}. `python -m benchmarks.validation_items`; {where(found)}.",
        ("N", *METHODS),
        rows,
    )


if __name__ == "__main__":
    main()
