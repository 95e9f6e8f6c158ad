"""What finding sigma costs, and what it misses: `python -m benchmarks.tuning [NAME ...]`.

For each network: the passes of all members that `fit` spends, and how far its L(sigma*) stays below the best of a fine
grid, as a share of the PEP effect; beside it the golden section, and the authors' procedure (ten iterations in 0..0.1,
both inner points computed in each, so 20 passes over data read again each time). The grid is a cubic spline through
thirteen values that are paid for, looked at in steps of 1 %; the two rivals walk on it, and what they choose is then
paid for. Needs PEPPERMILL_DATA for all but the demo.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from peppermill.engines.choose import engine_of
from scipy.interpolate import CubicSpline

import peppermill.demo
from benchmarks.timing import RESULTS, where, write_result
from benchmarks.trained import IMAGES, Trained, resnet56, table2
from peppermill.data import Batches
from peppermill.engines.loop import MemberPass, run_members
from peppermill.likelihood import Categorical
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.perturbation import Perturbation
from peppermill.tuning.golden import START, Evaluation, Evaluations, SigmaSearch
from peppermill.tuning.search import Paid, golden_section, grow_bracket
from peppermill.tuning.subsample import Sample, sample_of
from peppermill.tuning.two_stage import tune_quickly

SIZE, BATCH = 10, 250
GRID = np.geomspace(0.2, 2.0, 13)  # in units of sigma*
FINE = np.geomspace(0.2, 2.0, 232)
VALIDATION = {"mnist-mlp": 10_000, "mnist-cnn": 2_500, "fashion-mnist": 2_500, "cifar10": 2_500, "cifar100": 2_500}
ROUNDS, LAST = 10, 0.1  # the authors' scripts


TITLES = {
    "demo": "the demo's",
    "mnist-mlp": "MNIST MLP",
    "mnist-cnn": "MNIST CNN",
    "fashion-mnist": "Fashion-MNIST CNN",
    "cifar10": "CIFAR-10 CNN",
    "cifar100": "CIFAR-100 CNN",
    "resnet56": "ResNet-56, CIFAR-10",
}


def networks() -> dict[str, Callable[[], Trained]]:
    """The demo's network, those of Table 2 on the first of their validation images, and ResNet-56."""
    rows = {name: lambda name=name: _first(table2(name), VALIDATION[name]) for name in IMAGES}
    return {"demo": lambda: (peppermill.demo.network(), peppermill.demo.validation()), **rows, "resnet56": resnet56}


class Case:
    """One network: every pass on all items is paid for once, whoever asks."""

    def __init__(self, network: Any, data: Any) -> None:
        self.network, self.data = network, Batches(data, network, batch_size=BATCH)
        self.perturbation = Perturbation(select(network, "kernels"), Noise(), SIZE)
        self.engine, self.passes = engine_of("auto"), dict[float, MemberPass]()
        self.evaluations = Evaluations(self.run, joint=True)

    def run(self, sigma: float, sample: Sample | None = None) -> MemberPass:
        if sample:
            return self.paid(sigma, sample.data)
        if sigma not in self.passes:
            self.passes[sigma] = self.paid(sigma, self.data)
        return self.passes[sigma]

    def paid(self, sigma: float, data: Batches) -> MemberPass:
        given = (self.network, self.perturbation, sigma, data, Categorical(), lambda items: None, self.engine)
        return run_members(*given)

    def quick(self, joint: bool) -> SigmaSearch:
        choose = lambda network: sample_of(self.data, network, Categorical())  # noqa: E731
        return tune_quickly(self.run, choose, scale=self.perturbation.scale(), joint=joint)


def measure(case: Case) -> dict[str, Any]:
    """Passes of all members and the share of the effect that was missed, for each way of searching."""
    plain, both = case.quick(joint=False), case.quick(joint=True)
    grid = [case.evaluations(float(sigma)) for sigma in plain.best.sigma * GRID]
    curve = _on_the_grid(case, grid)
    golden, authors = _golden(curve, case.perturbation.scale()), _authors(curve)
    known = [*grid, *plain.evaluations, *both.evaluations, case.evaluations(golden[0]), case.evaluations(authors[0])]
    zero, sigmas = plain.baseline.log_likelihood, plain.best.sigma * FINE
    top = max(*(e.log_likelihood for e in known), *_spline(grid, "log_likelihood")(np.log(sigmas)))
    profile = max(
        *(e.tempered_log_likelihood for e in known), *_spline(grid, "tempered_log_likelihood")(np.log(sigmas))
    )

    def missed(value: float, best: float) -> float:
        return (best - value) / (best - zero)

    return {
        "items": plain.items,
        "effect": (top - zero) / plain.items,
        "sigma": plain.best.sigma,
        "quick": {"passes": (plain.passes or 0) / SIZE, "missed": missed(plain.best.log_likelihood, top)},
        "quick_with_temperature": {
            "passes": (both.passes or 0) / SIZE,
            "missed": missed(both.best.tempered_log_likelihood, profile),
            "sigma": both.best.sigma,
            "temperature": both.best.temperature,
        },
        **{
            name: {"passes": passes, "missed": missed(case.evaluations(sigma).log_likelihood, top)}
            for name, (sigma, passes) in {"golden": golden, "authors": authors}.items()
        },
    }


def _on_the_grid(case: Case, grid: list[Evaluation]) -> Callable[[float], float]:
    """L(sigma): interpolated inside the grid, paid for outside of it."""
    spline = _spline(grid, "log_likelihood")

    def curve(sigma: float) -> float:
        inside = grid[0].sigma <= sigma <= grid[-1].sigma
        return float(spline(np.log(sigma))) if inside else case.evaluations(sigma).log_likelihood

    return curve


def _spline(grid: list[Evaluation], value: str) -> CubicSpline:
    return CubicSpline(np.log([e.sigma for e in grid]), [getattr(e, value) for e in grid])


def _golden(curve: Callable[[float], float], scale: float) -> tuple[float, float]:
    """sigma* of `fit(search="golden")` and its passes."""
    paid = Paid(curve)
    found = golden_section(paid, 0.0, grow_bracket(paid, START * scale).upper, 7)
    return found.best[0], len(found.points) - 1 + 1 / SIZE


def _authors(curve: Callable[[float], float]) -> tuple[float, float]:
    found = golden_section(curve, 0.0, LAST, ROUNDS - 1)
    return (found.lower + found.upper) / 2, 2.0 * ROUNDS


def _first(trained: Trained, count: int) -> Trained:
    network, (inputs, labels) = trained
    return network, (inputs[:count], labels[:count])


def main(names: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(networks()), help="networks; others keep their results")
    for name in parser.parse_args().names if names is None else names:
        row = measure(Case(*networks()[name]()))
        print(name, json.dumps(row), flush=True)
        write_result("tuning", {"size": SIZE, "batch": BATCH, "networks": {**_kept(), name: row}})


def _kept() -> dict[str, Any]:
    """The results of other networks, read at the last moment: another process may have written some."""
    path = RESULTS / "tuning.json"
    rows: dict[str, Any] = json.loads(path.read_text())["networks"] if path.exists() else {}
    return rows


def section(found: dict[str, Any]) -> str:
    """The words of the page."""
    ways = ("quick", "quick_with_temperature", "golden", "authors")
    table = [
        f"| {TITLES[name]} | {row['items']:,} | {row['effect']:.4f} | {' | '.join(_paid(row[way]) for way in ways)} |"
        for name, row in sorted(found["networks"].items(), key=lambda item: list(TITLES).index(item[0]))
    ]
    return "\n".join(
        [
            "## Finding sigma",
            "",
            f"Passes of all m = {found['size']} members over all validation items, and what the sigma that was found "
            "misses of the PEP effect L(σ*) − L(0), against the best of a fine grid and of all that was tried. The aim "
            "is at most 5 passes and at most 1 %. *quick* is `fit`, also with `temperature=True` (there of the best "
            'L(σ, T)); *golden* is `fit(search="golden")`; *authors* are ten iterations in 0 to 0.1 with both inner '
            "points computed in each. "
            "The networks of Table 2 are one seed each, trained for 15 epochs on part of the images "
            f"(`benchmarks/trained.py`). `python -m benchmarks.tuning`; {where(found)}.",
            "",
            "| network | items | effect | quick | quick, with T | golden | authors |",
            "|---|---|---|---|---|---|---|",
            *table,
            "",
        ]
    )


def _paid(way: dict[str, float]) -> str:
    return f"**{way['passes']:.1f}**, {100 * way['missed']:.2f} %"


if __name__ == "__main__":
    main()
