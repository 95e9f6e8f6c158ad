from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import networks
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import peppermill as pm
from peppermill.calibrators.temperature import Temperature
from peppermill.ensemble import PepEnsemble
from peppermill.evaluation.scores import Estimate
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.recipe import Recipe, fingerprint
from peppermill.tuning.result import Evaluation, SigmaSearch


@pytest.fixture(scope="module")
def fitted():
    """An ensemble of 6 members, pairs of them, with its test items."""
    model, validation, test = networks.overfitted()
    return pm.fit(model, validation, size=6), test


def of(pep, size, *, antithetic=True, seed=0, temperature=1.0):
    """The same sigma with other members."""
    noise = replace(pep.recipe.noise, antithetic=antithetic, seed=seed)
    return PepEnsemble(pep.model, replace(pep.recipe, size=size, noise=noise, calibrator=Temperature(temperature)))


def made(model, sigma, likelihood):
    """An ensemble of four members that nobody tuned."""
    search = SigmaSearch((Evaluation(0.0, -1.0, 1.0, -1.0),), 0.0, 1.0, 1, joint=False)
    selected = tuple(select(model, "kernels"))
    return PepEnsemble(
        model, Recipe(sigma, 4, Noise(), "kernels", selected, likelihood, Temperature(1.0), search, fingerprint(model))
    )


@torch.no_grad()
def nll_of(pep, data, members):
    """By hand: the members' probabilities, averaged, tempered, and the logarithm of the label's."""
    probabilities = pep.member_log_probs(data[0]).double().exp()[list(members)].mean(dim=0)
    tempered = probabilities ** (1 / pep.temperature)
    of_label = (tempered / tempered.sum(dim=1, keepdim=True))[torch.arange(len(data[1])), data[1]]
    return -float(of_label.log().mean())


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_independent_members_are_averaged_over_all_subsets(fitted, temperature):
    pep, test = of(fitted[0], 5, antithetic=False, temperature=temperature), fitted[1]
    curve = pm.size_curve(pep, test)
    assert curve.sizes == (1, 2, 3, 4, 5)
    for size, found in zip(curve.sizes, curve.nll, strict=True):
        expected = np.mean([nll_of(pep, test, chosen) for chosen in combinations(range(5), size)])
        assert found.value == pytest.approx(expected, rel=1e-6)


PAIRS = {
    1: [(0,), (1,), (2,), (3,), (4,)],
    2: [(0, 1), (2, 3)],
    3: [(0, 1, 2), (0, 1, 3), (0, 1, 4), (2, 3, 0), (2, 3, 1), (2, 3, 4)],
    4: [(0, 1, 2, 3)],
    5: [(0, 1, 2, 3, 4)],
}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_pairs_stay_together_and_the_odd_one_is_any_other(fitted, temperature):
    pep, test = of(fitted[0], 5, temperature=temperature), fitted[1]
    for size, found in zip(range(1, 6), pm.size_curve(pep, test).nll, strict=True):
        expected = np.mean([nll_of(pep, test, chosen) for chosen in PAIRS[size]])
        assert found.value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 1.4])
def test_all_members_have_the_score_of_the_ensemble_with_its_interval(fitted, temperature):
    pep, test = of(fitted[0], 6, temperature=temperature), fitted[1]
    curve, score = pm.size_curve(pep, test, seed=3), pm.evaluate(pep, test, seed=3).nll
    last = curve.nll[-1]
    assert (last.value, last.lower, last.upper) == pytest.approx((score.value, score.lower, score.upper), rel=1e-9)
    assert curve.loss[-1] == Estimate(0.0, 0.0, 0.0)
    assert (curve.items, curve.level) == (300, 0.95)


def test_what_is_lost_is_a_paired_difference(fitted):
    curve = pm.size_curve(*fitted)
    for nll, lost in zip(curve.nll, curve.loss, strict=True):
        assert lost.value == pytest.approx(nll.value - curve.nll[-1].value)
    lost, nll, last = curve.loss[-2], curve.nll[-2], curve.nll[-1]
    unpaired = np.hypot(nll.upper - nll.lower, last.upper - last.lower)
    assert 0 < lost.upper - lost.lower < 0.8 * unpaired


def test_the_estimate_is_that_of_members_drawn_anew(fitted):
    """Three of twenty members, against forty fresh ensembles of three: within four standard errors of both."""
    pep, test = fitted
    fresh = [pm.evaluate(of(pep, 3, antithetic=False, seed=seed), test).nll.value for seed in range(1, 41)]
    curves = [
        pm.size_curve(of(pep, 20, antithetic=False, seed=seed), test, sizes=[3]).nll[0].value for seed in range(50, 54)
    ]
    error = np.hypot(np.std(fresh, ddof=1) / np.sqrt(40), np.std(curves, ddof=1) / np.sqrt(4))
    assert abs(np.mean(fresh) - np.mean(curves)) < 4 * error


def test_many_members_have_a_dozen_sizes_and_random_subsets(fitted):
    pep, test = of(fitted[0], 30), fitted[1]
    curve = pm.size_curve(pep, test)
    assert curve.sizes[0] == 1
    assert curve.sizes[-1] == 30
    assert len(curve.sizes) <= 12
    assert curve == pm.size_curve(pep, test)
    assert curve.nll[0].value > curve.nll[-1].value
    assert pm.size_curve(pep, test, sizes=[4, 2, 4]).sizes == (2, 4, 30)


def test_the_smallest_size_is_within_the_loss_at_the_upper_end():
    numbers = [(0.2, 0.3), (0.01, 0.05), (0.004, 0.009), (0.0, 0.0)]
    losses = tuple(Estimate(value, value, upper) for value, upper in numbers)
    curve = pm.SizeCurve((1, 2, 4, 8), losses, losses, 100, 0.95)
    assert [curve.smallest(loss) for loss in (0.3, 0.05, 0.02, 0.009, 0.005, 0)] == [1, 2, 4, 4, 8, 8]
    with pytest.raises(ValueError, match=r"`loss=-0\.1` must be a loss of NLL, zero or positive"):
        curve.smallest(-0.1)


def test_an_ensemble_without_noise_needs_one_member(fitted):
    pep, test = fitted
    still = PepEnsemble(pep.model, replace(pep.recipe, sigma=0.0))
    for ensemble in (still, still.with_temperature(1.5)):
        curve = pm.size_curve(ensemble, test)
        assert curve.smallest(1e-12) == 1
        assert curve.nll[0].value == pytest.approx(pm.evaluate(ensemble, test).nll.value)


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_it_costs_one_prediction_of_the_ensemble(fitted, temperature):
    pep, test = fitted[0].with_engine("loop").with_temperature(temperature), fitted[1]
    flops = []
    for job in (pm.predict, pm.predict, pm.size_curve):  # the first call also prepares the network
        with FlopCounterMode(display=False) as counter:
            job(pep, test)
        flops.append(counter.get_total_flops())
    assert flops[2] == flops[1] > 0


def test_pixels_that_are_ignored_do_not_count():
    model = networks.seeded(lambda: nn.Conv2d(1, 3, 3, padding=1))
    images = torch.randn(10, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(3, (10, 5, 5), generator=torch.Generator().manual_seed(1))
    labels[:, 0] = -100
    pep = made(model, 0.1, pm.Categorical())
    for ensemble in (pep, pep.with_temperature(2.0)):
        curve = pm.size_curve(ensemble, (images, labels))
        assert curve.items == 200
        assert curve.nll[-1].value == pytest.approx(pm.evaluate(ensemble, (images, labels)).nll.value)


def test_a_regression_has_a_curve():
    model = networks.seeded(lambda: nn.Linear(4, 2))
    data = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(50)
    pep = made(model, 0.1, pm.Gaussian())
    curve = pm.size_curve(pep, data)
    assert curve.nll[-1].value == pytest.approx(pm.evaluate(pep, data).nll.value)


@pytest.mark.parametrize("sizes", [[0], [-2, 3], [7]])
def test_sizes_that_the_ensemble_does_not_have_are_refused(fitted, sizes):
    with pytest.raises(ValueError, match=r"`sizes=\[.*\]` must lie in 1\.\.6, the members that the ensemble has"):
        pm.size_curve(*fitted, sizes=sizes)


def test_a_pass_of_members_is_not_enough_for_a_temperature(fitted):
    pep, test = fitted
    with pytest.raises(ValueError, match=r"every class, not the label's alone: give `size_curve` the data"):
        pm.size_curve(pep.with_temperature(1.5), pep.member_pass(test))


def test_a_run_has_the_curve_of_its_ensemble_without_temperature(fitted):
    pep, test = fitted
    methods = {"network": pep.model, "tempered": pep.with_temperature(1.3), "pep!": pep}
    run = pm.record_run(methods, test, title="a run", seed=5)
    assert run.sizes == replace(pm.size_curve(pep, test, seed=5), method="pep!")
    del methods["pep!"]
    assert pm.record_run(methods, test, title="a run").sizes is None
