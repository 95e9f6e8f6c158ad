"""Scores with intervals and paired comparisons, against scipy, scikit-learn and numbers worked by hand."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import log_loss
from torch import nn

import peppermill as pm
from peppermill import metrics
from peppermill.evaluation import comparison
from peppermill.evaluation.comparison import holm
from peppermill.evaluation.scores import RESAMPLES, bootstrap, item_scores

SCORES = ("nll", "brier", "ece", "error")


def predictions_of(logits, labels):
    log_probs = logits.double().log_softmax(dim=1)
    return pm.Predictions(log_probs, labels, log_probs.gather(1, labels[:, None]).squeeze(1), pm.Categorical())


def drawn(seed, items=200, classes=4, overconfidence=1.0):
    """Logits, and labels drawn from the probabilities that logits / overconfidence stand for."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(items, classes, generator=generator, dtype=torch.float64)
    gumbel = -(-torch.rand(items, classes, generator=generator, dtype=torch.float64).log()).log()
    return logits, (logits / overconfidence + gumbel).argmax(dim=1)


def shaken(logits, seed, size=0.7):
    generator = torch.Generator().manual_seed(seed)
    return logits + size * torch.randn(logits.shape, generator=generator, dtype=logits.dtype)


def test_values_are_those_of_scikit_learn_and_of_a_loop():
    logits, labels = drawn(0, items=137)
    scores = pm.evaluate(predictions_of(logits, labels), bins=7)
    probabilities = logits.softmax(dim=1).numpy()
    pairs = zip(probabilities, labels, strict=True)
    squares = [sum((float(k == y) - p) ** 2 for k, p in enumerate(row)) for row, y in pairs]
    assert scores.nll.value == pytest.approx(log_loss(labels, probabilities, labels=range(4)))
    assert scores.brier.value == pytest.approx(np.mean(squares))
    assert scores.error.value == pytest.approx(np.mean(probabilities.argmax(axis=1) != labels.numpy()))
    assert scores.ece.value == pytest.approx(metrics.expected_calibration_error(logits.log_softmax(1), labels, 7))
    assert (scores.items, scores.bins, scores.level) == (137, 7, 0.95)


def test_a_network_and_its_predictions_score_the_same():
    torch.manual_seed(0)
    network = nn.Linear(3, 4).eval()
    inputs, labels = torch.randn(50, 3), torch.randint(4, (50,))
    assert pm.evaluate(network, (inputs, labels)) == pm.evaluate(pm.predict(network, (inputs, labels)))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_of_nll_is_the_percentile_interval_of_scipy(level):
    """A quantile at 2.5 % of 2,000 normal resamples has a standard error of 0.060 of their spread, centering adds
    0.022, scipy's own 20,000 resamples 0.019; four times their root sum of squares is 0.27."""
    logits, labels = drawn(1)
    found = pm.evaluate(predictions_of(logits, labels), level=level).nll
    values = -logits.log_softmax(dim=1).gather(1, labels[:, None]).squeeze(1).numpy()
    peer = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=level,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(0),
    )
    tolerance = 0.27 * peer.standard_error
    assert found.lower == pytest.approx(peer.confidence_interval.low, abs=tolerance)
    assert found.upper == pytest.approx(peer.confidence_interval.high, abs=tolerance)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_of_a_difference_of_means_is_that_of_scipys_paired_t_test(level):
    """Interval and p-value then agree: 0 lies in the interval if, and only if, p is at least 1 - level."""
    labels = torch.zeros(20, dtype=torch.long)
    first = torch.zeros(20, 2, dtype=torch.float64)
    second = torch.stack([-20 * torch.linspace(0, 1, 20).double() ** 12, torch.zeros(20).double()], dim=1)
    one, other = predictions_of(first, labels), predictions_of(second, labels)
    found = pm.compare(one, other, level=level).nll
    peer = stats.ttest_rel(-other.log_likelihoods.numpy(), -one.log_likelihoods.numpy())
    low, high = peer.confidence_interval(level)
    assert (found.lower, found.upper, found.p_value) == pytest.approx((low, high, peer.pvalue))
    assert (found.lower < 0 < found.upper) is (found.p_value >= 1 - level)


def test_a_comparison_reads_as_a_sentence():
    """Of two classes, 0.25 for the label and then 0.5 in ten of eleven items: the NLL is ln 4 -> ln 4 - 10/11 ln 2."""
    labels = torch.zeros(11, dtype=torch.long)
    first = torch.tensor([[0.25, 0.75]]).log().repeat(11, 1)
    second = first.clone()
    second[:10] = torch.tensor([0.5, 0.5]).log()
    found = pm.compare(predictions_of(first, labels), predictions_of(second, labels))
    half = stats.t.ppf(0.975, 10) * np.log(2) * np.std([1] * 10 + [0], ddof=1) / np.sqrt(11)
    low, high = 10 / 11 * np.log(2) - half, 10 / 11 * np.log(2) + half
    assert str(found) == f"NLL 1.3863 -> 0.7562, better by 0.6301 [{low:.4f}, {high:.4f}], p < 0.001"
    back = pm.compare(predictions_of(second, labels), predictions_of(first, labels))
    assert str(back) == f"NLL 0.7562 -> 1.3863, worse by 0.6301 [{low:.4f}, {high:.4f}], p < 0.001"
    same = pm.compare(predictions_of(first, labels), predictions_of(first, labels))
    assert str(same) == "NLL 1.3863 for both"
    second[2:] = first[2:]  # two of eleven items differ: t = 1.49 at 10 degrees of freedom
    unclear = pm.compare(predictions_of(first, labels), predictions_of(second, labels))
    assert str(unclear).endswith("better by 0.1260 [-0.0623, 0.3144], p = 0.17, could be chance")
    assert {"nll", "ece", "table"} <= {*dir(found)} & {*dir(back)}


@pytest.mark.parametrize("bias", [0, 5])
def test_the_bias_of_a_resample_moves_neither_interval_nor_p_value(bias):
    """ECE's resamples lie above the estimate. Of normal ones, the interval of 95 % is 1.96 to either side, and the
    p-value of an estimate 1.5 away from zero is 0.134; standard errors 0.06 and 0.011, of which four are allowed."""
    resampled = iter(1.5 + np.random.default_rng(0).normal(size=RESAMPLES) + bias)

    def score(weights):
        return 1.5 if weights is None else np.array([next(resampled) for _ in weights])

    value, lower, upper, p_value = bootstrap({"any": score}, 1000, 0.95, seed=0)["any"]
    assert value == 1.5
    assert (lower, upper) == pytest.approx((1.5 - 1.96, 1.5 + 1.96), abs=4 * 0.06)
    assert p_value == pytest.approx(0.134, abs=4 * 0.011)


def test_intervals_hold_the_truth_as_often_as_they_claim(monkeypatch):
    """Two classes, confidence c uniform on (1/2, 1), right with probability c.

    The true NLL is then the integral of the entropy, 1/2; the true Brier score 1/3; the true error 1/4. The
    share of 300 intervals of 95 % that hold the truth has a standard deviation of 0.0126; four of them are allowed.
    """
    monkeypatch.setattr("peppermill.evaluation.scores.RESAMPLES", 500)
    truth = {"nll": 1 / 2, "brier": 1 / 3, "error": 1 / 4}
    generator = torch.Generator().manual_seed(0)
    held = dict.fromkeys(truth, 0)
    for repetition in range(300):
        confidence = 0.5 + 0.5 * torch.rand(150, generator=generator, dtype=torch.float64)
        labels = (torch.rand(150, generator=generator, dtype=torch.float64) > confidence).long()
        logits = torch.stack([confidence, 1 - confidence], dim=1).log()
        scores = pm.evaluate(predictions_of(logits, labels), seed=repetition)
        for name, value in truth.items():
            held[name] += scores.estimates[name].lower <= value <= scores.estimates[name].upper
    for name in truth:
        assert held[name] / 300 == pytest.approx(0.95, abs=4 * 0.0126), name


@pytest.mark.parametrize("overconfidence", [1.0, 3.0])
def test_every_interval_holds_its_estimate_and_none_is_negative(overconfidence):
    logits, labels = drawn(2, overconfidence=overconfidence)
    for name, estimate in pm.evaluate(predictions_of(logits, labels)).estimates.items():
        assert 0 <= estimate.lower < estimate.value < estimate.upper, name


def test_a_higher_level_gives_a_wider_interval():
    found = predictions_of(*drawn(3))
    narrow, wide = (pm.evaluate(found, level=level) for level in (0.5, 0.99))
    for name in SCORES:
        a, b = narrow.estimates[name], wide.estimates[name]
        assert b.lower < a.lower < a.upper < b.upper, name


def test_intervals_repeat_with_the_seed_and_hardly_depend_on_it():
    found = predictions_of(*drawn(4))
    one, again, other = (pm.evaluate(found, seed=seed).nll for seed in (0, 0, 1))
    assert one == again
    assert one != other
    assert one.lower == pytest.approx(other.lower, abs=4 * 0.085 * (one.upper - one.lower) / 3.92)


def test_the_size_of_the_chunks_in_which_resamples_are_drawn_changes_nothing(monkeypatch):
    found = predictions_of(*drawn(5, items=60))
    whole = pm.evaluate(found)
    monkeypatch.setattr("peppermill.evaluation.scores.CHUNK", 60 * 7)
    assert pm.evaluate(found).ece.lower == pytest.approx(whole.ece.lower, rel=1e-12)


def test_a_weighted_score_is_the_score_of_the_items_repeated():
    logits, labels = drawn(6, items=80)
    weights = np.random.default_rng(0).multinomial(80, np.full(80, 1 / 80))
    again = torch.from_numpy(np.repeat(np.arange(80), weights))
    whole = item_scores(predictions_of(logits, labels), bins=9)
    repeated = pm.evaluate(predictions_of(logits[again], labels[again]), bins=9)
    for name in SCORES:
        weighted = whole[name].value(weights[None].astype(float))
        assert weighted.shape == (1,)
        assert weighted[0] == pytest.approx(repeated.estimates[name].value), name


def test_a_resample_draws_as_many_items_as_there_are():
    counts = []

    def score(weights):
        if weights is None:
            return 13.0
        counts.append(weights)
        return weights.sum(axis=1)

    bootstrap({"any": score}, 13, 0.95, seed=0)
    assert np.concatenate(counts).shape == (RESAMPLES, 13)
    assert (np.concatenate(counts).sum(axis=1) == 13).all()
    assert np.concatenate(counts).mean() == 1


def test_a_regression_has_nll_and_rmse():
    """Standard deviation 0.01, so that the density exceeds one and the NLL is negative, as its interval must be."""
    generator = np.random.default_rng(0)
    mean, log_variance = generator.normal(size=90), np.full(90, 2 * np.log(0.01))
    labels = mean + 0.01 * generator.normal(size=90)
    outputs = torch.from_numpy(np.stack([mean, log_variance], axis=1))
    scores = pm.evaluate(nn.Identity().eval(), (outputs, torch.from_numpy(labels)), likelihood="gaussian")
    assert list(scores.estimates) == ["nll", "rmse"]
    assert scores.nll.value == pytest.approx(-stats.norm.logpdf(labels, mean, 0.01).mean())
    assert scores.nll.lower < scores.nll.value < scores.nll.upper < 0
    assert scores.rmse.value == pytest.approx(np.sqrt(np.mean((labels - mean) ** 2)))
    with pytest.raises(AttributeError, match="there is no score `brier` here, only nll, rmse"):
        _ = scores.brier


def test_every_answer_of_a_multi_label_network_is_an_item():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(40, 3, generator=generator), torch.randint(2, (40, 3), generator=generator)
    scores = pm.evaluate(nn.Identity().eval(), (logits, labels), likelihood="bernoulli")
    yes = logits.double().sigmoid().flatten().numpy()
    answers = labels.flatten().numpy()
    assert scores.items == 120
    assert scores.nll.value == pytest.approx(log_loss(answers, yes))
    assert scores.brier.value == pytest.approx(2 * np.mean((answers - yes) ** 2))
    assert scores.error.value == pytest.approx(np.mean((yes > 0.5) != answers))


@pytest.mark.parametrize("level", [0, 1, -0.1, 95])
def test_a_level_is_a_probability(level):
    found = predictions_of(*drawn(0, items=5))
    with pytest.raises(ValueError, match=r"`level=.*` must lie between 0 and 1: 0\.95 gives 95 % intervals"):
        pm.evaluate(found, level=level)
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        pm.compare(found, found, level=level)


def test_data_may_be_left_out_only_where_predictions_stand_in():
    with pytest.raises(TypeError, match=r"`data` is missing: give labelled data, or the result of `predict\("):
        pm.evaluate(nn.Identity())
    with pytest.raises(TypeError, match="`data` is missing"):
        pm.compare(predictions_of(*drawn(0, items=5)), nn.Identity())


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_the_t_test_is_the_paired_one_of_scipy(score):
    logits, labels = drawn(7)
    one, other = predictions_of(logits, labels), predictions_of(shaken(logits, 1), labels)
    found = pm.compare(one, other).differences[score]
    items = {"nll": metrics.item_nll, "brier": metrics.item_brier}[score]
    first, second = items(one.log_probs, labels).numpy(), items(other.log_probs, labels).numpy()
    assert found.test == "paired t"
    assert found.value == pytest.approx(second.mean() - first.mean())
    assert found.p_value == pytest.approx(stats.ttest_rel(second, first).pvalue)


def test_the_permutation_test_counts_sign_flips():
    """All 2^10 of them by a loop; 9,999 random ones have a standard error of sqrt(p(1 - p)/9,999)."""
    logits, labels = drawn(8, items=10)
    one, other = predictions_of(logits, labels), predictions_of(shaken(logits, 6, size=2), labels)
    differences = (one.log_likelihoods - other.log_likelihoods).numpy()
    means = [np.dot(signs, differences) / 10 for signs in product((-1, 1), repeat=10)]
    exact = np.mean(np.abs(means) >= abs(differences.mean()) - 1e-12)
    assert 0.05 < exact < 0.5
    found = pm.compare(one, other).nll.permutation_p_value
    assert found == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 9999) + 2 / 9999)


def test_permutation_and_t_agree_on_many_items():
    """The mean of 400 items is all but normal: the two differ by the 9,999 draws' own error, 4 sqrt(p(1 - p)/9,999),
    and by a hundredth for what is left of the items' skewness."""
    logits, labels = drawn(9, items=400)
    found = pm.compare(predictions_of(logits, labels), predictions_of(shaken(logits, 2, size=0.1), labels)).brier
    assert 0.01 < found.p_value < 0.99
    assert found.permutation_p_value == pytest.approx(found.p_value, abs=0.03)


def test_mcnemar_by_hand():
    """9 items that only the first gets right, 2 that only the second does: 2 (1 + 11 + 55) / 2^11."""
    labels = torch.zeros(30, dtype=torch.long)
    right, wrong = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    first = torch.stack([right] * 9 + [wrong] * 2 + [right] * 12 + [wrong] * 7)
    second = torch.stack([wrong] * 9 + [right] * 2 + [right] * 12 + [wrong] * 7)
    found = pm.compare(predictions_of(first, labels), predictions_of(second, labels)).error
    assert found.test == "McNemar"
    assert found.p_value == pytest.approx(134 / 2048)
    assert found.p_value == pytest.approx(stats.binomtest(2, 11).pvalue)
    assert found.value == pytest.approx(7 / 30)
    assert found.permutation_p_value is None


def test_a_predictor_does_not_differ_from_itself():
    found = predictions_of(*drawn(10))
    for name, difference in pm.compare(found, found).differences.items():
        assert difference.value == difference.lower == difference.upper == 0, name
        assert difference.p_value == 1, name


def test_swapping_two_predictors_flips_signs_and_nothing_else():
    logits, labels = drawn(11, overconfidence=2)
    one, other = predictions_of(logits, labels), predictions_of(logits / 1.3, labels)
    there, back = pm.compare(one, other), pm.compare(other, one)
    for name in SCORES:
        a, b = there.differences[name], back.differences[name]
        assert (a.value, a.lower, a.upper) == pytest.approx((-b.value, -b.upper, -b.lower)), name
        assert a.p_value == pytest.approx(b.p_value), name


def test_a_better_second_predictor_has_a_negative_difference_and_a_small_p_value():
    logits, labels = drawn(12, items=1000, overconfidence=3)
    found = pm.compare(predictions_of(logits, labels), predictions_of(logits / 3, labels))
    for name in ("nll", "brier", "ece"):
        difference = found.differences[name]
        assert difference.value < difference.upper < 0, name
        assert difference.p_value < 0.01, name
    assert found.error.value == 0


def test_false_alarms_are_as_rare_as_the_level_says(monkeypatch):
    """Two predictors that are the same one with noise of one law: p < 0.05 in one case of twenty.

    Of 250 trials the share has a standard deviation of 0.0138; four of them are allowed. ECE's bootstrap may be
    more careful than it claims, not less. The permutations, which nobody looks at here, are few.
    """
    monkeypatch.setattr(comparison, "PERMUTATIONS", 9)
    alarms = {"nll": 0, "ece": 0}
    for trial in range(250):
        logits, labels = drawn(trial, overconfidence=2.5)
        one, other = (predictions_of(shaken(logits, 1000 + 2 * trial + k), labels) for k in (0, 1))
        found = pm.compare(one, other, seed=trial)
        for name in alarms:
            alarms[name] += found.differences[name].p_value < 0.05
    assert alarms["nll"] / 250 == pytest.approx(0.05, abs=4 * 0.0138)
    assert 0 < alarms["ece"] / 250 <= 0.05 + 4 * 0.0138


def test_a_bootstrap_p_value_is_never_zero():
    """2,000 resamples cannot show more than 2 in 2,001."""
    logits, labels = drawn(17, items=400, overconfidence=20)
    assert pm.compare(predictions_of(logits, labels), predictions_of(logits / 20, labels)).ece.p_value == 2 / 2001


def test_one_item_decides_nothing():
    one, other = (predictions_of(torch.tensor([row]), torch.tensor([0])) for row in ([1.0, 0.0], [0.5, 0.0]))
    found = pm.compare(one, other)
    assert found.nll.value > 0
    assert (found.nll.p_value, found.nll.permutation_p_value, found.error.p_value) == (1, 1, 1)


def test_predictors_on_other_items_are_refused():
    logits, labels = drawn(13)
    with pytest.raises(ValueError, match="were not given the same items in the same order"):
        pm.compare(predictions_of(logits, labels), predictions_of(logits.flip(0), labels.flip(0)))
    with pytest.raises(ValueError, match="were not given the same items"):
        pm.compare(predictions_of(logits, labels), predictions_of(logits[:-1], labels[:-1]))


def test_an_unknown_difference_is_named():
    found = pm.compare(*[predictions_of(*drawn(14, items=9))] * 2)
    with pytest.raises(AttributeError, match="there is no score `auroc` here, only nll, brier, ece, error"):
        _ = found.auroc


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # 4 x 0.005, 3 x 0.01, 2 x 0.03, and no less than that
        ([0.6, 0.5], [1.0, 1.0]),
        ([0.02, 0.02], [0.04, 0.04]),
        ([0.2], [0.2]),
        ([], []),
    ],
)
def test_holm_by_hand(p_values, corrected):
    assert holm(p_values) == pytest.approx(corrected)


def test_several_methods_are_corrected_score_by_score():
    logits, labels = drawn(15, overconfidence=2)
    first = predictions_of(logits, labels)
    others = {f"T = {T}": predictions_of(logits / T, labels) for T in (1.02, 1.5, 0.97)}
    alone = {name: pm.compare(first, other) for name, other in others.items()}
    found = pm.compare_all(first, others)
    assert list(found) == list(others)
    for score in SCORES:
        expected = holm([comparison.differences[score].p_value for comparison in alone.values()])
        assert [comparison.differences[score].p_value for comparison in found.values()] == expected
        for name in others:
            assert found[name].differences[score].value == alone[name].differences[score].value


def test_the_first_of_several_predictors_runs_once():
    class Counting(nn.Module):
        calls = 0

        def forward(self, x):
            type(self).calls += 1
            return x

    inputs, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    found = pm.compare_all(Counting().eval(), {"a": nn.Identity().eval(), "b": nn.Identity().eval()}, (inputs, labels))
    assert Counting.calls == 1
    assert found["b"].nll.p_value == 1


def test_nothing_to_compare_with_is_no_comparison():
    assert pm.compare_all(predictions_of(*drawn(16, items=5)), {}) == {}
