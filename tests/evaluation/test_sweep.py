from __future__ import annotations

import math
from itertools import pairwise

import networks
import pytest

import peppermill as pm
from peppermill import metrics


def test_a_point_holds_the_scores_of_the_ensemble_at_that_sigma(overfitted):
    """The same members as those of `fit` with the same seed, scored by the metrics themselves."""
    model, validation, _ = overfitted
    pep = pm.fit(model, validation, noise=pm.Noise(seed=3), size=4)
    sweep = pm.sweep_sigma(model, validation, [pep.sigma], seed=3, size=4, bins=15)
    found, predictions = sweep.points[1], pm.predict(pep, validation)
    assert found.log_likelihood == pytest.approx(float(predictions.log_likelihoods.mean()), rel=1e-12)
    members = pep.member_pass(validation).member_log_likelihoods.mean(dim=1).tolist()
    assert found.member_log_likelihoods == pytest.approx(members)
    assert found.mean_member_log_likelihood == pytest.approx(sum(members) / 4)
    said = predictions.log_probs, predictions.labels
    assert found.nll == pytest.approx(-found.log_likelihood, rel=1e-12)
    assert found.brier == pytest.approx(metrics.brier_score(*said), rel=1e-12)
    assert found.ece == pytest.approx(metrics.expected_calibration_error(*said, 15), rel=1e-9)
    assert found.error == metrics.error_rate(*said)
    with pytest.raises(AttributeError, match="there is no score `auroc` here, only nll, brier, ece, error"):
        _ = found.auroc
    warm = pm.fit_temperature(pep, validation)
    assert found.temperature == warm.temperature
    tempered = float(pm.predict(warm, validation).log_likelihoods.mean())
    assert found.tempered_log_likelihood == pytest.approx(tempered, rel=1e-12)
    assert (sweep.items, sweep.bins, len(found.reliability.count)) == (300, 15, 15)


def test_the_ensemble_lies_above_the_average_of_its_members(overfitted):
    """Jensen, for every sigma; at sigma = 0 they are one."""
    model, validation, _ = overfitted
    sweep = pm.sweep_sigma(model, validation, [0.1, 0.3, 1.0], size=4)
    assert sweep.points[0].log_likelihood == pytest.approx(sweep.points[0].mean_member_log_likelihood, rel=1e-12)
    assert all(p.log_likelihood > p.mean_member_log_likelihood for p in sweep.points[1:])


def test_the_grid_is_sorted_and_holds_zero_once(mlp, data):
    sweep = pm.sweep_sigma(mlp, data, [0.3, 0.0, 0.1, 0.3], size=2)
    assert [point.sigma for point in sweep.points] == [0.0, 0.1, 0.3]


def test_without_a_grid_twenty_steps_cross_the_peak(overfitted):
    model, validation, _ = overfitted
    sweep = pm.sweep_sigma(model, validation, size=2)
    sigmas = [point.sigma for point in sweep.points]
    assert len(sigmas) == 21
    assert [b - a for a, b in pairwise(sigmas)] == pytest.approx([sigmas[-1] / 20] * 20)
    assert 0 < sweep.best.sigma < sigmas[-1]
    assert sweep.best.log_likelihood == max(point.log_likelihood for point in sweep.points)


@pytest.mark.parametrize("bad", [-0.1, math.nan])
def test_a_sigma_that_is_no_size_of_noise_is_refused(mlp, data, bad):
    with pytest.raises(ValueError, match=r"`sigmas=\[0.1, .*\]` must be sizes of noise, zero or positive"):
        pm.sweep_sigma(mlp, data, [0.1, bad])


def test_a_regression_is_refused(data):
    with pytest.raises(ValueError, match="`sweep_sigma` scores classifiers"):
        pm.sweep_sigma(networks.mlp(classes=2), data, likelihood="gaussian")


def test_the_network_is_untouched(cnn, images):
    before = networks.snapshot(cnn)
    pm.sweep_sigma(cnn, images, [0.5], parameters="all", size=2)
    networks.assert_untouched(cnn, before)
