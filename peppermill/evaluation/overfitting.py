"""Figure 3: overfitting against the PEP effect, sigma* and the curvature, over checkpoints of one network."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from peppermill.curvature.analysis import local_analysis
from peppermill.data import Batches
from peppermill.fitting import fit
from peppermill.noise import Noise
from peppermill.parameters import Selection
from peppermill.plumbing.display import Table, shows_table
from peppermill.plumbing.progress import progress
from peppermill.predictions import predict
from peppermill.sources.weight_files import load_weights
from peppermill.types import Data, LikelihoodLike

#: The quantities that are compared with overfitting, in words.
NAMES = {
    "pep_effect": "PEP effect on test data",
    "sigma": "σ*",
    "effect_rate": "effect rate, per item",
    "laplacian": "Laplacian, per item",
    "fisher_trace": "Fisher trace, per item",
}

CURVATURE = ("laplacian", "laplacian_error", "fisher_trace", "effect_rate", "effect_rate_error")
MIN_CHECKPOINTS = 3


@dataclass(frozen=True)
class ProbedCheckpoint:
    """One checkpoint: mean NLL on training and test data, sigma* and the curvature from validation data, per item."""

    name: str
    train_nll: float
    test_nll: float
    pep_nll: float
    sigma: float
    laplacian: float
    laplacian_error: float
    fisher_trace: float
    effect_rate: float
    effect_rate_error: float

    @property
    def overfitting(self) -> float:
        """Test NLL - training NLL, as in Figure 3."""
        return self.test_nll - self.train_nll

    @property
    def pep_effect(self) -> float:
        """The mean gain in test log-likelihood."""
        return self.test_nll - self.pep_nll


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation, its 95 % interval and its p-value, which take checkpoints as independent."""

    rho: float
    lower: float
    upper: float
    p_value: float


@shows_table
@dataclass(frozen=True)
class OverfittingProbe:
    """All checkpoints, in the order given, and the rank correlation of overfitting with each quantity in `NAMES`."""

    points: tuple[ProbedCheckpoint, ...]
    correlations: Mapping[str, Correlation]

    def table(self) -> Table:
        """Every checkpoint, and the correlations below."""
        rows = []
        for p in self.points:
            scores = [f"{value:.4f}" for value in (p.train_nll, p.test_nll, p.overfitting)]
            rate = f"{p.effect_rate:.4g} ± {p.effect_rate_error:.2g}"
            rows.append([Path(p.name).name, *scores, f"{p.sigma:.4g}", f"{p.pep_effect:.4f}", rate])
        lines = ["rank correlation with overfitting, as if checkpoints were independent:"]
        for name, title in NAMES.items():
            rho = self.correlations.get(name)
            text = f"{rho.rho:+.2f}  [{rho.lower:+.2f}, {rho.upper:+.2f}]" if rho else "only one value"
            lines.append(f"  {title:<26} {text}")
        columns = ("checkpoint", "training NLL", "test NLL", "overfitting", "sigma*", "PEP effect", "effect rate")
        return Table(columns, rows, note="\n".join(lines))


def probe_overfitting(
    model: nn.Module,
    checkpoints: Sequence[str | Path] | Mapping[str, Mapping[str, Tensor]],
    *,
    train: Data,
    validation: Data,
    test: Data,
    parameters: Selection = "kernels",
    size: int = 10,
    probes: int = 8,
    seed: int = 0,
    likelihood: LikelihoodLike = "categorical",
    batch_size: int = 500,
) -> OverfittingProbe:
    """Overfitting, sigma*, PEP effect and curvature of each checkpoint of a network, and their rank correlations.

    - `checkpoints`: files of weights (safetensors, or torch files without code), or weights by name.
    - `train`, `test`: the data of the two NLLs whose difference is overfitting. `validation`: the data for sigma and
      the curvature.
    - `probes`: directions of the local analysis, which takes most of the time.

    The network is copied, never changed. All checkpoints are checked against it before anything is computed.
    """
    named = checkpoints if isinstance(checkpoints, Mapping) else {str(path): path for path in checkpoints}
    if len(named) < MIN_CHECKPOINTS:
        raise ValueError(
            f"`checkpoints` has {len(named)}: give at least {MIN_CHECKPOINTS} different ones, because fewer have no "
            "ranks to correlate."
        )
    scratch = copy.deepcopy(model)
    for name, source in named.items():  # the first that does not fit is refused before the work
        load_weights(scratch, source, name)
    parts = {"train": train, "validation": validation, "test": test}
    data = {name: Batches(part, model, argument=name, batch_size=batch_size) for name, part in parts.items()}
    options: dict[str, Any] = {"parameters": parameters, "likelihood": likelihood}

    def nll(predictor: Any, part: str) -> float:
        return -float(predict(predictor, data[part], likelihood=likelihood).log_likelihoods.mean())

    points = []
    with progress("checkpoints", len(named)) as tick:
        for name, source in named.items():
            network = copy.deepcopy(model)
            load_weights(network, source)
            pep = fit(network, data["validation"], size=size, noise=Noise(seed=seed), **options)
            local = local_analysis(network, data["validation"], probes=probes, seed=seed, **options)
            points.append(
                ProbedCheckpoint(
                    name=name,
                    train_nll=nll(network, "train"),
                    test_nll=nll(network, "test"),
                    pep_nll=nll(pep, "test"),
                    sigma=pep.sigma,
                    **{quantity: getattr(local, quantity) / local.items for quantity in CURVATURE},
                )
            )
            tick(1)
    return OverfittingProbe(tuple(points), correlations(points))


def correlations(points: Sequence[ProbedCheckpoint]) -> dict[str, Correlation]:
    """The rank correlation of overfitting with each quantity that is not constant."""
    columns = {name: [getattr(point, name) for point in points] for name in ("overfitting", *NAMES)}
    vary = {name: values for name, values in columns.items() if len(set(values)) > 1}
    overfitting = vary.pop("overfitting", None)
    return {name: rank_correlation(overfitting, values) for name, values in vary.items()} if overfitting else {}


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Correlation:
    """Spearman's rho with the interval of Bonett and Wright (2000): Fisher's z, variance (1 + rho^2/2) / (n - 3)."""
    from scipy import stats  # slow to import, so not at the top

    found = stats.spearmanr(first, second)
    rho, count = float(found.statistic), len(first)
    lower, upper = (-1.0, 1.0) if count < 4 else (rho, rho)
    if count > 3 and abs(rho) < 1:
        half = stats.norm.ppf(0.975) * math.sqrt((1 + rho**2 / 2) / (count - 3))
        lower, upper = (math.tanh(math.atanh(rho) + end) for end in (-half, half))
    return Correlation(rho, lower, upper, float(found.pvalue))
