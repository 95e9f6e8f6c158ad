"""Abstaining: what is promised holds, and what cannot be promised is not."""

from __future__ import annotations

import json
import warnings

import networks
import numpy as np
import pytest
import torch
from scipy import stats

import peppermill as pm


def spoken(log_odds):
    """A predictor of two classes: the input is its log-odds of class 1."""
    return torch.stack([torch.zeros_like(log_odds), log_odds], dim=1)


def draw(items, seed, flat):
    """Log-odds, and labels that are wrong more often than they say; beyond 4 the error rate no longer falls."""
    generator = torch.Generator().manual_seed(seed)
    log_odds = 4 * torch.randn(items, generator=generator, dtype=torch.float64)
    believed = (log_odds.abs() / 2).clamp(max=4.0) * log_odds.sign() if flat else log_odds / 2
    labels = (torch.rand(items, generator=generator) < believed.sigmoid()).long()
    return log_odds, labels


@pytest.mark.parametrize("flat", [False, True])
def test_in_200_data_sets_the_promise_is_broken_in_at_most_5_percent(flat):
    """The true error rate above each threshold comes from half a million items."""
    truth, labels = draw(500_000, 10_000, flat)
    sure, order = truth.abs().sort(descending=True)
    wrong = ((truth > 0).long() != labels)[order].cumsum(0) / torch.arange(1, 500_001)
    broken, coverage = 0, []
    for seed in range(200):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.PepWarning)  # some of them keep nothing
            rule = pm.abstain(spoken, draw(600, seed, flat), risk=0.15)
        coverage.append(rule.coverage)
        kept = int((sure.sigmoid() > rule.threshold).sum())
        broken += kept > 0 and float(wrong[kept - 1]) > 0.15
    assert stats.binomtest(broken, 200, 0.05, alternative="greater").pvalue > 0.01
    assert np.mean(coverage) > 0.2, "a rule that keeps nothing promises nothing"


def test_the_threshold_is_that_of_the_last_test_of_twenty_that_passes():
    """By scipy's exact binomial test; a test that passes hands its share of 0.1 on to the next."""
    log_odds, labels = draw(1000, 1, flat=False)
    rule = pm.abstain(spoken, (log_odds, labels), risk=0.15, confidence=0.9)
    order = log_odds.abs().argsort(descending=True)
    wrong = ((log_odds > 0).long() != labels)[order].numpy()
    level, passed, bounds = 0.0, [], []
    for count in range(50, 1001, 50):
        test = stats.binomtest(int(wrong[:count].sum()), count, 0.15, alternative="less")
        bounds.append(test.proportion_ci(1 - 0.1 / 20, method="exact").high)
        level = level + 0.1 / 20 if test.pvalue <= level + 0.1 / 20 else 0.0
        passed += [count] if level else []
    assert round(1000 * rule.coverage) == max(passed) < 1000
    assert rule.smallest_risk == pytest.approx(min(bounds), rel=1e-9)
    predicted, kept = rule(log_odds)
    assert int(kept.sum()) == max(passed)
    assert torch.equal(predicted, (log_odds > 0).long())


def test_a_predictor_without_errors_keeps_everything():
    log_odds, _ = draw(1000, 1, flat=False)
    rule = pm.abstain(spoken, (log_odds, (log_odds > 0).long()), risk=0.01)
    assert (rule.coverage, rule.threshold) == (1.0, 0.0)
    assert bool(rule(log_odds)[1].all())


def test_ten_items_promise_nothing():
    """Without an error among ten, the bound at 0.05 / 20 is 1 - 0.0025^(1/10) = 0.451."""
    log_odds = draw(10, 1, flat=False)[0]
    with pytest.warns(pm.PepWarning, match="below 0.01 with 95 % confidence on 10 items, .* promised is 0.451"):
        rule = pm.abstain(spoken, (log_odds, (log_odds > 0).long()), risk=0.01)
    assert rule.coverage == 0
    assert not rule(1000 * log_odds)[1].any()
    assert rule.smallest_risk == pytest.approx(1 - 0.0025**0.1)


def test_equal_confidences_are_kept_together_or_not_at_all():
    """600 items at one confidence, all right, and 400 at a lower one, half of them wrong."""
    log_odds = torch.cat([torch.full((600,), 3.0), torch.ones(400)])
    labels = torch.cat([torch.ones(600), torch.arange(400) % 2]).long()
    rule = pm.abstain(spoken, (log_odds, labels), risk=0.02)
    assert rule.coverage == 0.6
    assert rule(torch.tensor([3.0, 1.0, -3.0]))[1].tolist() == [True, False, True]


# Files


@pytest.fixture
def saved(tmp_path):
    model, _, test = networks.overfitted()
    pep = pm.PepEnsemble.at_sigma(model, 0.3, size=3).with_temperature(2.0)
    rule = pm.abstain(pep, test, risk=0.4)
    rule.save(tmp_path / "rule.json")
    assert rule.coverage > 0
    return pep, rule, test[0], tmp_path / "rule.json"


def test_a_rule_is_saved_and_loaded(saved):
    pep, rule, inputs, path = saved
    again = pm.load_abstention(path, pep)
    for one, other in zip(again(inputs), rule(inputs), strict=True):
        assert torch.equal(one, other)
    assert (again.risk, again.confidence, again.coverage) == (0.4, 0.95, rule.coverage)
    assert path.stat().st_size < 1000


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda pep: pep.model, "another architecture"),
        (lambda pep: pep.with_sigma(0.2), "sigma=0.2"),
        (lambda pep: pep.with_temperature(2.0), "temperature=4"),
        (lambda pep: pm.PepEnsemble(networks.overfitted(1)[0], pep.recipe), "its parameters have other values"),
    ],
)
def test_another_predictor_is_refused(saved, other, words):
    pep, _, _, path = saved
    with pytest.raises(ValueError, match=f"rule.json holds a rule for another predictor: .*{words}"):
        pm.load_abstention(path, other(pep))


@pytest.mark.parametrize("change", [{"threshold": None}, {"risk": 2}, {"coverage": "all"}])
def test_a_damaged_file_is_refused(saved, change):
    pep, _, _, path = saved
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"rule\.json is damaged: find the rule again"):
        pm.load_abstention(path, pep)


# Misuse


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"risk": 0}, "`risk=0` must lie between 0 and 1"),
        ({"risk": 1.0}, "`risk=1.0` must lie between 0 and 1"),
        ({"confidence": 95}, "`confidence=95` must lie between 0 and 1"),
        ({"likelihood": "gaussian"}, "a regression has no classes"),
    ],
)
def test_what_cannot_be_promised_is_refused(mlp, data, options, match):
    with pytest.raises(ValueError, match=match):
        pm.abstain(mlp, data, **options)


def test_labels_are_needed(mlp, data):
    with pytest.raises((TypeError, ValueError), match="labels"):
        pm.abstain(mlp, data[0])


def test_pixels_of_one_image_are_refused():
    network = networks.seeded(lambda: torch.nn.Conv2d(1, 3, 1))
    images = (networks.items(4, (1, 5, 2))[0], torch.zeros(4, 5, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="belong to one example and err together"):
        pm.abstain(network, images)


def test_a_function_has_no_fingerprint(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rule = pm.abstain(spoken, draw(100, 1, flat=False), risk=0.3)
    with pytest.raises(TypeError, match=r"a rule for a function has no file: only a torch\.nn\.Module"):
        rule.save(tmp_path / "rule.json")
