"""Section 2.3 against exact Hessians, by hand, by quadrature and by another library."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from curvlinops import EFLinearOperator, HessianLinearOperator
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev, vmap

import peppermill as pm
from peppermill.curvature.analysis import estimate


@dataclass(frozen=True)
class Truth:
    """Exact derivatives at theta*, [N] each."""

    laplacians_of_likelihood: Tensor  # Laplacian(L_i) / L_i
    laplacians_of_log: Tensor
    squared_gradients: Tensor


def exact(model: nn.Module, inputs: Tensor, labels: Tensor, pattern: str) -> Truth:
    """Every Hessian in full, by `torch.func.hessian`, one for each item."""
    chosen = {name: value.detach() for name, value in model.named_parameters() if pattern in name}
    sizes = [value.numel() for value in chosen.values()]

    def log_likelihood(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = theta.split(sizes)
        params = {name: part.view(value.shape) for part, (name, value) in zip(parts, chosen.items(), strict=True)}
        return functional_call(model, params, (x[None],))[0].log_softmax(0).gather(0, y[None])[0]

    theta = torch.cat([value.flatten() for value in chosen.values()])
    trace = vmap(torch.trace)
    of_log = vmap(hessian(log_likelihood), (None, 0, 0))(theta, inputs, labels)
    of_likelihood = vmap(hessian(lambda *given: log_likelihood(*given).exp()), (None, 0, 0))(theta, inputs, labels)
    gradients = vmap(jacrev(log_likelihood), (None, 0, 0))(theta, inputs, labels)
    likelihoods = vmap(log_likelihood, (None, 0, 0))(theta, inputs, labels).exp()
    found = trace(of_likelihood) / likelihoods, trace(of_log), gradients.square().sum(dim=1)
    return Truth(*(values.detach() for values in found))


def smooth_network(seed: int = 0, steps: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A tanh network in float64 and 30 random items, fitted to them for some steps."""
    torch.manual_seed(seed)
    layers = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    model, inputs, labels = nn.Sequential(*layers).double(), torch.randn(30, 6).double(), torch.randint(3, (30,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model.eval(), inputs, labels


@pytest.mark.parametrize("steps", [0, 10, 40])
def test_eq_20_equals_eq_15_and_eq_34_joins_them(steps: int) -> None:
    """Laplacian + Tr F and sum_i Laplacian(L_i)/L_i are one quantity; so are the items' own."""
    truth = exact(*smooth_network(steps=steps), "weight")
    both = truth.laplacians_of_log.sum() + truth.squared_gradients.sum()
    assert float(both) == pytest.approx(float(truth.laplacians_of_likelihood.sum()), rel=1e-10)
    torch.testing.assert_close(
        truth.laplacians_of_log, truth.laplacians_of_likelihood - truth.squared_gradients, rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("steps", [0, 10, 40])
def test_with_a_probe_for_every_parameter_the_analysis_is_exact(steps: int) -> None:
    model, inputs, labels = smooth_network(steps=steps)
    found = pm.local_analysis(model, (inputs, labels), probes=136, batch_size=13)
    truth = exact(model, inputs, labels, "weight")
    assert found.dimensions == found.probes == 6 * 8 + 8 * 8 + 8 * 3
    assert found.laplacian == pytest.approx(float(truth.laplacians_of_log.sum()), rel=1e-10)
    assert found.fisher_trace == pytest.approx(float(truth.squared_gradients.sum()), rel=1e-10)
    scale = float(truth.laplacians_of_likelihood.abs().sum())
    assert found.effect_rate == pytest.approx(float(truth.laplacians_of_likelihood.sum()), abs=1e-7 * scale)
    assert (found.laplacian_error, found.fisher_trace_error, found.effect_rate_error) == (0, 0, 0)


def test_the_direct_estimate_converges_to_the_exact_rates_of_all_items_with_the_fourth_power_of_its_step() -> None:
    model, inputs, labels = smooth_network(steps=10)
    truth = exact(model, inputs, labels, "weight").laplacians_of_likelihood
    steps = [0.004, 0.002, 0.001]
    errors = [
        float((pm.local_analysis(model, (inputs, labels), probes=136, step=step).item_rates - truth).abs().max())
        for step in steps
    ]
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert errors[-1] < 1e-5 * float(truth.abs().max())
    assert slope == pytest.approx(4, abs=0.3)


def test_a_coin_with_one_weight_is_analysed_as_by_hand() -> None:
    """L = p = 1/(1 + exp(-w x)): p''/p = x^2 (1-p)(1-2p), (ln p)'^2 = x^2 (1-p)^2, (ln p)'' = -x^2 p (1-p)."""
    model = nn.Linear(1, 1, bias=False).double().eval()
    with torch.no_grad():
        model.weight.fill_(0.7)
    inputs, labels = torch.tensor([[1.0], [2.0], [-3.0]]).double(), torch.tensor([1, 1, 0])
    found = pm.local_analysis(model, (inputs, labels), probes=3, likelihood="bernoulli")
    x = [1.0, 2.0, -3.0]
    p = [1 / (1 + math.exp(-0.7 * 1)), 1 / (1 + math.exp(-0.7 * 2)), 1 - 1 / (1 + math.exp(0.7 * 3))]
    assert found.laplacian == pytest.approx(-sum(x * x * p * (1 - p) for x, p in zip(x, p, strict=True)), rel=1e-10)
    assert found.fisher_trace == pytest.approx(sum(x * x * (1 - p) ** 2 for x, p in zip(x, p, strict=True)), rel=1e-10)
    rates = [x * x * (1 - p) * (1 - 2 * p) for x, p in zip(x, p, strict=True)]
    assert found.item_rates.tolist() == pytest.approx(rates, rel=2e-3)
    assert found.predicted_effect(0.1) == pytest.approx(0.005 * sum(rates), rel=2e-3)


def test_a_gaussian_mean_is_analysed_as_by_hand() -> None:
    """ln L = const - (y - w x)^2 / 2 at variance 1: (ln L)'' = -x^2 and L''/L = x^2 ((y - w x)^2 - 1)."""

    class Regression(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.tensor([[2.0]]).double())

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x @ self.slope, torch.zeros_like(x)], dim=1)

    x, y = torch.tensor([[1.0], [0.5], [2.0]]).double(), torch.tensor([2.5, 1.0, 3.0]).double()
    found = pm.local_analysis(Regression().eval(), (x, y), probes=4, likelihood="gaussian")
    assert found.laplacian == pytest.approx(-(1 + 0.25 + 4), rel=1e-10)
    assert found.fisher_trace == pytest.approx(0.5**2 + 0 + (2 * 1) ** 2, rel=1e-10)
    assert found.item_rates.tolist() == pytest.approx([0.25 - 1, -0.25, 4 * (1 - 1)], abs=2e-3)


def by_quadrature(model: nn.Module, inputs: Tensor, labels: Tensor, name: str, sigma: float, nodes: int = 14) -> float:
    """L(sigma) - L(0) of an infinite ensemble that perturbs one small array: Gauss-Hermite in every dimension."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    center = dict(model.named_parameters())[name].detach()
    grid = torch.tensor(list(itertools.product(points, repeat=center.numel())))
    mass = torch.tensor([math.prod(w) for w in itertools.product(weights, repeat=center.numel())])
    mass = mass / mass.sum()

    def likelihoods(theta: Tensor) -> Tensor:
        outputs = functional_call(model, {name: theta.view(center.shape)}, (inputs,))
        return outputs.softmax(1).gather(1, labels[:, None])[:, 0]

    with torch.no_grad():
        averaged = mass @ vmap(likelihoods, chunk_size=4096)(center.flatten() + sigma * grid)
        return float((averaged.log() - likelihoods(center).log()).sum())


def small_network(seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 3)).double().eval()
    return model, 2 * torch.randn(12, 2).double(), torch.randint(3, (12,))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_residual_of_the_prediction_shrinks_as_the_fourth_power_of_sigma(seed: int) -> None:
    """Appendix A.1.1: the third moment vanishes, so the next term is of order 4."""
    model, inputs, labels = small_network(seed)
    found = pm.local_analysis(model, (inputs, labels), parameters=r"0\.weight", probes=4)
    sigmas = np.geomspace(0.02, 0.08, 6)
    measured = [by_quadrature(model, inputs, labels, "0.weight", sigma) for sigma in sigmas]
    residuals = [abs(b - found.predicted_effect(sigma)) for b, sigma in zip(measured, sigmas, strict=True)]
    assert np.polyfit(np.log(sigmas), np.log(residuals), 1)[0] == pytest.approx(4, abs=0.3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_within_the_believable_range_the_prediction_is_right_to_a_tenth(seed: int) -> None:
    model, inputs, labels = small_network(seed)
    found = pm.local_analysis(model, (inputs, labels), parameters=r"0\.weight", probes=400)
    lower, upper = found.believable_range
    assert lower == 0
    for sigma in (upper, upper / 2):
        truth = by_quadrature(model, inputs, labels, "0.weight", sigma)
        assert truth == pytest.approx(found.predicted_effect(sigma), rel=0.15)  # and order 6 may have a say
    assert (
        abs(by_quadrature(model, inputs, labels, "0.weight", 4 * upper) / found.predicted_effect(4 * upper) - 1) > 0.2
    )


def test_estimates_agree_with_curvlinops_on_a_convolutional_network() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)
    model = nn.Sequential(*layers).double()
    model(torch.randn(64, 1, 8, 8).double())  # statistics of batch norm
    model.eval()
    inputs, labels = torch.randn(40, 1, 8, 8).double(), torch.randint(4, (40,))
    given = (model, nn.CrossEntropyLoss(reduction="sum"), [model[0].weight, model[5].weight], [(inputs, labels)])
    eye = torch.eye(3 * 9 + 27 * 4).double()
    laplacian = -float((HessianLinearOperator(*given) @ eye).trace())
    fisher_trace = float((EFLinearOperator(*given) @ eye).trace())
    found = pm.local_analysis(model, (inputs, labels), probes=64, batch_size=16)
    assert found.fisher_trace == pytest.approx(fisher_trace, rel=1e-10)
    assert abs(found.laplacian - laplacian) < 2 * found.laplacian_error < 0.2 * abs(laplacian)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "fresh"), [(15, False), (40, True)])
def test_two_stated_errors_hold_the_truth_95_times_in_100(steps: int, fresh: bool) -> None:
    """Over 200 seeds; the truth by exact Hessians; near the optimum, and overfitted on fresh items."""
    model, inputs, labels = smooth_network(seed=1, steps=steps)
    if fresh:
        _, inputs, labels = smooth_network(seed=2)
    truth = exact(model, inputs, labels, "weight")
    found = [pm.local_analysis(model, (inputs, labels), probes=8, seed=seed) for seed in range(200)]
    assert 0.93 <= _share(found, "laplacian", float(truth.laplacians_of_log.sum())) <= 0.97
    assert 0.93 <= _share(found, "effect_rate", float(truth.laplacians_of_likelihood.sum())) <= 0.97


def _share(found: list[pm.LocalAnalysis], name: str, truth: float) -> float:
    return sum(abs(getattr(f, name) - truth) < 2 * getattr(f, f"{name}_error") for f in found) / len(found)


@pytest.mark.parametrize("count", [4, 8, 30])
def test_an_estimate_from_normal_probes_is_covered_95_times_in_100(count: int) -> None:
    """5,000 draws of y = 3 + 2 (x - 1) + noise, the mean of x known; 0.9 % are three deviations of such a count."""
    generator = torch.Generator().manual_seed(0)
    x = 1 + torch.randn(5_000, count, generator=generator, dtype=torch.float64)
    y = 3 + 2 * (x - 1) + torch.randn(x.shape, generator=generator, dtype=torch.float64)
    found = [estimate(wanted, values, 1.0) for values, wanted in zip(x, y, strict=True)]
    assert sum(abs(value - 3) < 2 * error for value, error in found) / len(found) == pytest.approx(0.9545, abs=0.009)
