"""Statistics by example: pixels of an image, tokens of a sentence and labels of an item are not independent draws."""

import math

import networks
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import peppermill as pm
from peppermill.evaluation.scores import item_scores


def images_of_pixels(generator, images=60, rho=0.1):
    """Pixels that say 70 %; the share of an image that is right is drawn around 70 %, so its pixels are alike."""
    counts = torch.randint(20, 100, (images,), generator=generator)
    alpha, beta = 0.7 * (1 - rho) / rho, 0.3 * (1 - rho) / rho
    rates = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator))).beta(alpha, beta, images)
    examples = torch.repeat_interleave(torch.arange(images), counts)
    right = torch.rand(len(examples), generator=generator) < torch.from_numpy(rates)[examples]
    log_probs = torch.tensor([0.7, 0.3], dtype=torch.float64).log().expand(len(examples), 2)
    labels = (~right).long()
    return log_probs, labels, log_probs.gather(1, labels[:, None]).squeeze(1), examples


@pytest.mark.slow
@pytest.mark.parametrize("images", [20, 60])
def test_intervals_of_95_percent_hold_the_truth_95_times_of_100_for_pixels_that_are_alike(images, monkeypatch):
    """The truth: NLL -0.7 ln 0.7 - 0.3 ln 0.3, Brier score 0.7 * 0.18 + 0.3 * 0.98, error 0.3.

    A share of 1,500 has a standard deviation of 0.0056. As if pixels were independent, every other interval misses.
    """
    monkeypatch.setattr("peppermill.evaluation.scores.RESAMPLES", 1000)
    truth = {"nll": -0.7 * math.log(0.7) - 0.3 * math.log(0.3), "brier": 0.42, "error": 0.3}
    generator = torch.Generator().manual_seed(images)
    held, by_pixel = dict.fromkeys(truth, 0), 0
    for repetition in range(1500):
        *columns, examples = images_of_pixels(generator, images)
        scores = pm.evaluate(pm.Predictions(*columns, pm.Categorical(), examples), seed=repetition)
        for name, value in truth.items():
            held[name] += scores.estimates[name].lower <= value <= scores.estimates[name].upper
        error = stats.sem(-columns[2].numpy())
        by_pixel += abs(scores.nll.value - truth["nll"]) < 1.96 * error
    assert by_pixel / 1500 < 0.6
    for name in truth:
        assert 0.93 <= held[name] / 1500 <= 0.97, name


def test_the_tests_are_those_of_scipy_on_the_sums_of_each_image():
    """With as many pixels in each image, these are the images' means."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 24 * 50, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (24 * 50,), generator=generator)
    log_probs = logits.log_softmax(dim=2)
    rows = log_probs.gather(2, labels.expand(2, -1)[..., None]).squeeze(2)
    images = torch.arange(24).repeat_interleave(50)
    one, other = (pm.Predictions(log_probs[k], labels, rows[k], pm.Categorical(), images) for k in range(2))
    found = pm.compare(one, other)
    differences = {
        "nll": rows[0] - rows[1],
        "brier": pm.metrics.item_brier(log_probs[1], labels) - pm.metrics.item_brier(log_probs[0], labels),
        "error": pm.metrics.item_errors(log_probs[1], labels) - pm.metrics.item_errors(log_probs[0], labels),
    }
    for name, difference in differences.items():
        means = difference.view(24, 50).mean(dim=1).numpy()
        assert found.differences[name].value == pytest.approx(means.mean()), name
        assert found.differences[name].p_value == pytest.approx(stats.ttest_1samp(means, 0).pvalue), name
        assert found.differences[name].test == "paired t"
    again = pm.compare(one, pm.Predictions(log_probs[1], labels, rows[1], pm.Categorical()))
    assert again == found


def test_images_of_different_sizes_count_with_their_pixels():
    """The score is the mean over all pixels, and its spread that of whole images: the bootstrap by a loop."""
    generator = torch.Generator().manual_seed(1)
    log_probs, labels, rows, examples = images_of_pixels(generator, images=15)
    found = pm.evaluate(pm.Predictions(log_probs, labels, rows, pm.Categorical(), examples), bins=5)
    assert (found.items, found.examples) == (len(labels), 15)
    assert found.nll.value == pytest.approx(-float(rows.mean()))
    assert found.ece.value == pytest.approx(pm.metrics.expected_calibration_error(log_probs, labels, 5))
    drawn, means = np.random.default_rng(0), []
    for _ in range(4000):
        chosen = [rows[examples == image] for image in drawn.integers(15, size=15)]
        means.append(-float(torch.cat(chosen).mean()))
    spread = np.std(means) * math.sqrt(15 / 14) * stats.t.ppf(0.975, 14)
    assert found.nll.upper - found.nll.lower == pytest.approx(2 * spread, rel=0.08)


def test_one_image_shows_no_spread_so_its_interval_has_no_ends():
    found = pm.evaluate(nn.Conv2d(1, 2, 1).eval(), (torch.randn(1, 1, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long)))
    assert (found.items, found.examples) == (16, 1)
    assert (found.nll.lower, found.nll.upper) == (0, math.inf)


def segmentation():
    """Images of four shapes, a third of their pixels ignored, and one image without any that counts."""
    generator = torch.Generator().manual_seed(2)
    batches = []
    for side in (3, 4, 5, 6):
        labels = torch.randint(3, (3, side, side), generator=generator)
        labels[torch.rand(labels.shape, generator=generator) < 1 / 3] = 255
        batches.append((torch.randn(3, 1, side, side, generator=generator), labels))
    batches[1][1][0] = 255
    return networks.seeded(lambda: nn.Conv2d(1, 3, 3, padding=1)).eval(), batches, pm.Categorical(ignored_label=255)


def multi_label():
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(40, 6, generator=generator), torch.randint(2, (40, 4), generator=generator)
    return networks.seeded(lambda: nn.Linear(6, 4)).eval(), data, pm.Bernoulli()


def regression():
    generator = torch.Generator().manual_seed(4)
    data = torch.randn(40, 6, generator=generator), torch.randn(40, generator=generator)
    return networks.seeded(lambda: nn.Linear(6, 2)).eval(), data, pm.Gaussian()


def test_every_item_knows_its_example():
    """By a loop; in whole batches or in batches of one, from the network and from an ensemble."""
    model, batches, likelihood = segmentation()
    images = [(x[None], y[None]) for inputs, labels in batches for x, y in zip(inputs, labels, strict=True)]
    counts = [int((labels != 255).sum()) for _, labels in images]
    expected = [k for k, count in enumerate(filter(None, counts)) for _ in range(count)]
    pep = pm.PepEnsemble.at_sigma(model, 0.1, size=2, likelihood=likelihood)
    for predictor, data in ((model, batches), (model, images), (pep, batches), (pep, images)):
        assert pm.predict(predictor, data, likelihood=likelihood).examples.tolist() == expected
    assert pm.evaluate(pep, images).examples == 11
    model, data, likelihood = multi_label()
    assert pm.predict(model, data, likelihood=likelihood).examples.tolist() == [k for k in range(40) for _ in range(4)]


@pytest.mark.parametrize("case", [segmentation, multi_label, regression])
def test_the_likelihood_comes_from_whichever_predictor_has_one(case):
    model, data, likelihood = case()
    pep = pm.PepEnsemble.at_sigma(model, 0.1, size=2, likelihood=likelihood)
    expected = pm.compare(pm.predict(model, data, likelihood=likelihood), pep, data)
    assert pm.compare(model, pep, data) == expected
    assert pm.compare(pep, model, data).nll.value == pytest.approx(-expected.nll.value)
    assert pm.compare_all(model, {"PEP": pep, "again": model}, data)["again"].nll.value == 0
    run = pm.record_run({"network": model, "PEP": pep}, data, title="a run")
    assert run.methods[1].comparison.nll.value == pytest.approx(expected.nll.value)


def test_curves_over_the_number_of_members_are_by_example_too():
    model, batches, likelihood = segmentation()
    pep = pm.PepEnsemble.at_sigma(model, 0.5, size=4, likelihood=likelihood)
    alone, warm = pm.size_curve(pep, batches), pm.size_curve(pep.with_temperature(1.0000001), batches)
    score = pm.evaluate(pep, batches)
    for curve in (alone, warm):
        assert (curve.nll[-1].lower, curve.nll[-1].upper) == pytest.approx((score.nll.lower, score.nll.upper), rel=1e-5)


def test_the_scores_of_many_pixels_are_kept_by_image_and_bin():
    """A million pixels would need 160 MB for each bin of each pixel."""
    images = torch.arange(4).repeat_interleave(2500)
    log_probs = torch.randn(10_000, 3, generator=torch.Generator().manual_seed(0)).log_softmax(dim=1)
    labels = torch.zeros(10_000, dtype=torch.long)
    scores = item_scores(pm.Predictions(log_probs, labels, log_probs[:, 0], pm.Categorical(), images), bins=20)
    assert {name: score.totals.shape for name, score in scores.items()} == {
        "nll": (4,), "brier": (4,), "ece": (4, 20), "error": (4,), "aurc": (4,)
    }  # fmt: skip
