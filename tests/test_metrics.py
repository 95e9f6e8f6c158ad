from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn_metrics
from torchmetrics.functional.classification import multiclass_calibration_error

from peppermill import metrics


def predictions(items=200, classes=4, seed=0, sharpness=2.0, missing=False):
    """Log-probabilities and labels; with `missing`, the last class never occurs."""
    generator = torch.Generator().manual_seed(seed)
    log_probs = (sharpness * torch.randn(items, classes, generator=generator, dtype=torch.float64)).log_softmax(dim=1)
    return log_probs, torch.randint(classes - missing, (items,), generator=generator)


def confidences(values, correct):
    """Two-class predictions with these confidences in class 0, right where `correct` is 1."""
    first = torch.tensor(values, dtype=torch.float64)
    return torch.stack([first, 1 - first], dim=1).log(), 1 - torch.tensor(correct)


def plain_calibration_error(confidence, correct, edges, norm="l1", minimum_count=1):
    """Bins (lower, upper] by a loop over items: the definition in Appendix B."""
    gaps, weights = [], []
    for k, (lower, upper) in enumerate(pairwise(edges)):
        inside = [i for i, c in enumerate(confidence) if lower < c <= upper or (k == 0 and c == lower)]
        if len(inside) >= minimum_count:
            accuracy = sum(correct[i] for i in inside) / len(inside)
            gaps.append(abs(accuracy - sum(confidence[i] for i in inside) / len(inside)))
            weights.append(len(inside) / len(confidence))
    if norm == "max":
        return max(gaps, default=0.0)
    return sum(gap * weight for gap, weight in zip(gaps, weights, strict=True))


CASES = [
    predictions(),
    predictions(items=37, classes=10, seed=1, missing=True),
    predictions(items=500, classes=2, seed=2, sharpness=0.3),
    predictions(items=1, seed=3),
    predictions(items=300, classes=3, seed=4, sharpness=2.5),
]
each_case = pytest.mark.parametrize(("log_probs", "labels"), CASES)


# Scores that are means over items


@each_case
def test_nll_is_the_log_loss_of_scikit_learn(log_probs, labels):
    theirs = sklearn_metrics.log_loss(labels, log_probs.exp(), labels=range(log_probs.shape[1]))
    assert metrics.nll(log_probs, labels) == pytest.approx(theirs, rel=1e-9)


def test_nll_does_not_underflow():
    """By hand: ln p = -1000, though p is 0 in float64."""
    assert metrics.nll(torch.tensor([[0.0, -1000.0]]), torch.tensor([1])) == 1000


@each_case
def test_brier_score_is_the_sum_over_classes(log_probs, labels):
    one_hot = np.eye(log_probs.shape[1])[labels.numpy()]
    plain = np.mean(np.sum((one_hot - log_probs.exp().numpy()) ** 2, axis=1))
    assert metrics.brier_score(log_probs, labels) == pytest.approx(plain, rel=1e-12)


def test_brier_score_of_two_classes_is_twice_that_of_scikit_learn():
    """scikit-learn counts the one class of a yes-or-no question, the paper both."""
    log_probs, labels = predictions(classes=2)
    theirs = sklearn_metrics.brier_score_loss(labels, log_probs[:, 1].exp())
    assert metrics.brier_score(log_probs, labels) == pytest.approx(2 * theirs, rel=1e-12)


def test_brier_score_by_hand():
    """(1 - 0.7)^2 + 0.2^2 + 0.1^2 = 0.14; the worst prediction scores 2."""
    assert metrics.brier_score(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0])) == pytest.approx(0.14)
    assert metrics.brier_score(torch.tensor([[0.0, 1.0]]).log(), torch.tensor([0])) == pytest.approx(2)


@each_case
def test_error_rate_is_one_minus_accuracy(log_probs, labels):
    accuracy = sklearn_metrics.accuracy_score(labels, log_probs.argmax(dim=1))
    assert metrics.error_rate(log_probs, labels) == pytest.approx(1 - accuracy)


@each_case
def test_top_k_error_is_that_of_scikit_learn(log_probs, labels):
    classes = log_probs.shape[1]
    for k in range(1, classes) if classes > 2 else ():
        theirs = 1 - sklearn_metrics.top_k_accuracy_score(labels, log_probs, k=k, labels=range(classes))
        assert metrics.top_k_error(log_probs, labels, k) == pytest.approx(theirs)
    assert metrics.top_k_error(log_probs, labels, 1) == metrics.error_rate(log_probs, labels)
    assert metrics.top_k_error(log_probs, labels, classes) == 0


@pytest.mark.parametrize("k", [0, 5])
def test_top_k_needs_k_classes(k):
    with pytest.raises(ValueError, match=rf"`k={k}` must lie in 1..4, the number of classes"):
        metrics.top_k_error(*CASES[0], k)


@each_case
def test_item_scores_average_to_the_score(log_probs, labels):
    for items, score in (
        (metrics.item_nll, metrics.nll),
        (metrics.item_brier, metrics.brier_score),
        (metrics.item_errors, metrics.error_rate),
    ):
        assert items(log_probs, labels).shape == labels.shape
        assert float(items(log_probs, labels).mean()) == pytest.approx(score(log_probs, labels))


SCORES = [
    metrics.nll,
    metrics.brier_score,
    metrics.error_rate,
    metrics.top_k_error,
    metrics.expected_calibration_error,
    metrics.maximum_calibration_error,
    metrics.classwise_calibration_error,
    metrics.reliability,
]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("shape", "labels"), [((4, 3), (5,)), ((4, 3), (1,)), ((4,), (4,)), ((0, 3), (0,)), ((2, 3, 4), (2, 4))]
)
def test_shapes_that_do_not_fit_are_refused(score, shape, labels):
    with pytest.raises(ValueError, match=r"`log_probs` of shape \[.*\] and `labels` of shape \[.*\] do not fit"):
        score(torch.zeros(shape), torch.zeros(labels, dtype=torch.long))


# Calibration


@each_case
@pytest.mark.parametrize("bins", [1, 10, 15, 20])
def test_calibration_errors_are_those_of_torchmetrics(log_probs, labels, bins):
    """Their bins are closed on the other side, and 1 has a bin of its own: no confidence here lies on an edge."""
    expected = {
        norm: float(multiclass_calibration_error(log_probs.exp(), labels, log_probs.shape[1], n_bins=bins, norm=norm))
        for norm in ("l1", "max")
    }
    assert metrics.expected_calibration_error(log_probs, labels, bins) == pytest.approx(expected["l1"], abs=1e-6)
    assert metrics.maximum_calibration_error(log_probs, labels, bins) == pytest.approx(expected["max"], abs=1e-6)


@given(
    tenths=st.lists(st.tuples(st.integers(10, 20), st.integers(0, 1)), min_size=1, max_size=40),
    minimum_count=st.integers(1, 4),
)
def test_a_confidence_on_an_edge_belongs_to_the_bin_below_it(tenths, minimum_count):
    """Confidences 0.5, 0.55, ..., 1 are the edges of 20 bins: the paper's bins are (lower, upper]."""
    values, correct = [t / 20 for t, _ in tenths], [c for _, c in tenths]
    log_probs, labels = confidences(values, correct)
    # log and exp may move a confidence off its edge by one rounding; the bin is that of what is left
    confidence, right = metrics.top_label(log_probs, labels)
    edges = [k / 20 for k in range(21)]
    for norm, found in (
        ("l1", metrics.expected_calibration_error(log_probs, labels, 20, minimum_count=minimum_count)),
        ("max", metrics.maximum_calibration_error(log_probs, labels, 20, minimum_count=minimum_count)),
    ):
        plain = plain_calibration_error(confidence.tolist(), right.tolist(), edges, norm, minimum_count)
        assert found == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize(
    ("confidence", "bins", "expected"),
    [
        (0.5, 2, 0),
        (0.5, 20, 9),
        (0.7, 10, 6),
        (0.6, 5, 2),
        (0.0, 10, 0),
        (1.0, 10, 9),
        (1e-9, 10, 0),
        (0.30000001, 10, 3),
    ],
)
def test_bins_are_closed_above(confidence, bins, expected):
    """By hand: 0.7 is the upper end of bin 6 of ten, (0.6, 0.7]; 0 has no bin below it."""
    edges = metrics.equal_width_edges(bins, torch.device("cpu"))
    assert int(metrics.bin_index(torch.tensor([confidence], dtype=torch.float64), edges)) == expected


def test_edges_are_the_numbers_that_people_write():
    assert metrics.equal_width_edges(10, torch.device("cpu")).tolist() == [
        0,
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.6,
        0.7,
        0.8,
        0.9,
        1,
    ]


def test_expected_calibration_error_by_hand():
    """Four items at 0.75, one right: gap 0.5, weight 4/5; one item at 0.95, right: gap 0.05, weight 1/5."""
    log_probs, labels = confidences([0.75, 0.75, 0.75, 0.75, 0.95], [1, 0, 0, 0, 1])
    assert metrics.expected_calibration_error(log_probs, labels, 20) == pytest.approx(0.8 * 0.5 + 0.2 * 0.05)
    assert metrics.maximum_calibration_error(log_probs, labels, 20) == pytest.approx(0.5)


def test_small_bins_are_left_out_but_their_items_stay_in_the_denominator():
    """Table 1's convention: of 5 items, the bin with one item is dropped and the other weighs 4/5."""
    log_probs, labels = confidences([0.75, 0.75, 0.75, 0.75, 0.95], [1, 0, 0, 0, 0])
    assert metrics.expected_calibration_error(log_probs, labels, 20, minimum_count=2) == pytest.approx(0.8 * 0.5)
    assert metrics.maximum_calibration_error(log_probs, labels, 20, minimum_count=2) == pytest.approx(0.5)
    assert metrics.maximum_calibration_error(log_probs, labels, 20) == pytest.approx(0.95)
    assert metrics.expected_calibration_error(log_probs, labels, 20, minimum_count=6) == 0


def test_a_calibrated_network_has_no_calibration_error():
    log_probs, labels = confidences([0.75] * 4 + [1.0], [1, 1, 1, 0, 1])
    assert metrics.expected_calibration_error(log_probs, labels) == pytest.approx(0, abs=1e-12)


@given(
    values=st.lists(st.sampled_from([0.5, 0.6, 0.75, 0.8, 0.9, 1.0]), min_size=1, max_size=40),
    bins=st.integers(1, 12),
    seed=st.integers(0, 9),
)
def test_bins_of_equal_mass_hold_as_many_items_as_ties_allow(values, bins, seed):
    correct = np.random.default_rng(seed).integers(2, size=len(values)).tolist()
    log_probs, labels = confidences(values, correct)
    table = metrics.reliability(log_probs, labels, bins, equal_mass=True)
    confidence, right = metrics.top_label(log_probs, labels)
    assert int(table.count.sum()) == len(values)
    ties = int(torch.unique(confidence, return_counts=True)[1].max())
    assert int(table.count.max()) <= len(values) / bins + ties
    assert sum(table.lower[1:] == table.upper[:-1]) == len(table.count) - 1
    edges = [*table.lower.tolist(), float(table.upper[-1])]
    plain = plain_calibration_error(confidence.tolist(), right.tolist(), edges)
    assert metrics.expected_calibration_error(log_probs, labels, bins, equal_mass=True) == pytest.approx(plain)


def test_bins_of_equal_mass_without_ties_are_the_sorted_items_in_groups():
    """By hand: 12 confidences in 4 bins are the 3 smallest, the next 3, and so on."""
    values = [0.5 + 0.04 * k for k in range(12)]
    order = [7, 0, 3, 11, 5, 1, 9, 2, 10, 4, 8, 6]
    log_probs, labels = confidences([values[k] for k in order], [1] * 12)
    table = metrics.reliability(log_probs, labels, 4, equal_mass=True)
    assert table.count.tolist() == [3, 3, 3, 3]
    assert table.confidence.tolist() == pytest.approx([np.mean(values[k : k + 3]) for k in (0, 3, 6, 9)])


@each_case
@pytest.mark.parametrize("bins", [5, 20])
def test_classwise_calibration_error_is_the_mean_over_classes(log_probs, labels, bins):
    edges = [k / bins for k in range(bins + 1)]
    plain = [
        plain_calibration_error(log_probs[:, k].exp().tolist(), (labels == k).tolist(), edges)
        for k in range(log_probs.shape[1])
    ]
    assert metrics.classwise_calibration_error(log_probs, labels, bins) == pytest.approx(np.mean(plain), abs=1e-12)


def test_the_reliability_table_by_hand():
    log_probs, labels = confidences([0.55, 0.65, 0.7, 0.95], [1, 0, 1, 1])
    table = metrics.reliability(log_probs, labels, 10)
    assert table.count.tolist() == [0, 0, 0, 0, 0, 1, 2, 0, 0, 1]
    assert table.confidence[[5, 6, 9]].tolist() == pytest.approx([0.55, 0.675, 0.95])
    assert table.accuracy[[5, 6, 9]].tolist() == [1, 0.5, 1]
    assert table.confidence[[0, 7]].isnan().all()
    assert table.accuracy[[0, 7]].isnan().all()
    assert table.gaps().tolist() == pytest.approx([0, 0, 0, 0, 0, 0.45, 0.175, 0, 0, 0.05])
    assert table.lower.tolist() == pytest.approx(np.arange(10) / 10)
    assert table.upper.tolist() == pytest.approx(np.arange(1, 11) / 10)


def test_a_confidence_that_rounds_above_one_stays_in_the_last_bin():
    log_probs = torch.tensor([[1e-7, -20.0]])
    assert int(metrics.reliability(log_probs, torch.tensor([0]), 10).count[-1]) == 1


@pytest.mark.parametrize("bins", [0, -1, 10_000_000])
def test_bins_have_a_range(bins):
    """Ten million of them took the memory of the machine."""
    with pytest.raises(ValueError, match=rf"`bins={bins}` must lie in 1\.\.1,000"):
        metrics.expected_calibration_error(*CASES[0], bins)


@each_case
def test_float32_and_labels_of_other_integers_give_the_same_scores(log_probs, labels):
    for score in SCORES[:3]:
        expected = pytest.approx(score(log_probs, labels), rel=1e-5)
        assert score(log_probs.float(), labels) == expected
        assert score(log_probs, labels.int()) == expected
        assert score(log_probs, labels.byte()) == expected


# Entropy, and telling two samples apart


@each_case
def test_entropy_is_that_of_scipy(log_probs, labels):
    np.testing.assert_allclose(
        metrics.entropy(log_probs), stats.entropy(log_probs.exp(), axis=1), rtol=1e-9, atol=1e-12
    )


def test_a_class_of_probability_zero_has_no_part_in_the_entropy():
    log_probs = torch.tensor([[0.0, -math.inf], [math.log(0.5), math.log(0.5)]])
    assert metrics.entropy(log_probs).tolist() == pytest.approx([0, math.log(2)])


def samples(ties, seed=0):
    generator = np.random.default_rng(seed)
    inside, outside = generator.normal(0, 1, 80), generator.normal(1, 1.5, 50)
    round_off = (lambda x: np.round(x)) if ties else (lambda x: x)
    return torch.tensor(round_off(inside)), torch.tensor(round_off(outside))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_auroc_is_that_of_scikit_learn(ties, seed):
    inside, outside = samples(ties, seed)
    truth = [0] * len(inside) + [1] * len(outside)
    assert metrics.auroc(inside, outside) == pytest.approx(
        sklearn_metrics.roc_auc_score(truth, torch.cat([inside, outside])), rel=1e-12
    )


@pytest.mark.parametrize(
    ("inside", "outside", "expected"),
    [([0, 1], [2, 3], 1), ([2, 3], [0, 1], 0), ([1, 1], [1], 0.5), ([0, 2], [1], 0.5), ([0, 1], [1], 0.75)],
)
def test_auroc_by_hand(inside, outside, expected):
    assert metrics.auroc(torch.tensor(inside), torch.tensor(outside)) == expected


@pytest.mark.parametrize(
    ("inside", "outside", "recall", "expected"),
    [
        ([0.0, 0.1, 0.5, 0.9], [0.3, 0.8], 0.95, 0.5),  # both must be caught: threshold 0.3, above it 0.5 and 0.9
        ([0.0, 0.1, 0.5, 0.9], [0.3, 0.8], 0.5, 0.25),  # one is enough: threshold 0.8
        ([0.0, 0.1, 0.3, 0.9], [0.3, 0.8], 0.95, 0.5),  # a tie with the threshold is a false alarm
        ([0.0], [1.0], 0.95, 0.0),
        ([1.0], [0.0], 0.95, 1.0),
        (list(range(100)), list(range(100)), 0.95, 0.95),  # 95 of 100: the threshold is 5
        (list(range(20)), list(range(0, 40, 2)), 0.95, 0.9),  # 19 of 20, no rounding up to 20
    ],
)
def test_false_positive_rate_by_hand(inside, outside, recall, expected):
    found = metrics.false_positive_rate(torch.tensor(inside), torch.tensor(outside), recall)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ties", [False, True])
def test_false_positive_rate_is_the_best_point_of_scikit_learns_curve_with_that_recall(seed, ties):
    inside, outside = samples(ties, seed)
    truth = [0] * len(inside) + [1] * len(outside)
    false, true, _ = sklearn_metrics.roc_curve(truth, torch.cat([inside, outside]), drop_intermediate=False)
    assert metrics.false_positive_rate(inside, outside) == pytest.approx(false[true >= 0.95].min())


@pytest.mark.parametrize("bins", [5, 50])
def test_symmetrized_kl_is_that_of_the_histograms(bins):
    first, second = samples(ties=False)
    both = torch.cat([first, second]).numpy()
    counts = [np.histogram(s, bins, (both.min(), both.max()))[0] + 0.5 for s in (first.numpy(), second.numpy())]
    p, q = (count / count.sum() for count in counts)
    expected = stats.entropy(p, q) + stats.entropy(q, p)
    assert metrics.symmetrized_kl(first, second, bins) == pytest.approx(expected, rel=1e-10)
    assert metrics.symmetrized_kl(second, first, bins) == pytest.approx(expected, rel=1e-10)


def test_a_sample_cannot_be_told_from_itself():
    first, _ = samples(ties=False)
    assert metrics.symmetrized_kl(first, first) == 0
    assert metrics.symmetrized_kl(torch.ones(5), torch.ones(5)) == 0
    assert metrics.auroc(first, first) == 0.5


def test_symmetrized_kl_of_samples_apart_is_finite():
    """By hand, 2 bins: p = (10.5, 0.5)/11, q = (0.5, 10.5)/11, so 2 * (10/11) * ln 21."""
    found = metrics.symmetrized_kl(torch.zeros(10), torch.ones(10), bins=2)
    assert found == pytest.approx(2 * 10 / 11 * math.log(21))


# Abstaining


def sure_and_unsure(count=400, classes=5, seed=0):
    """Log-probabilities that differ in their confidence, and labels drawn from a flatter version of them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 2).softmax(dim=1), 1, generator=generator).squeeze(1)
    return logits.log_softmax(dim=1), labels


def test_the_risk_coverage_curve_is_that_of_torch_uncertainty():
    library = pytest.importorskip("torch_uncertainty.metrics.classification")
    log_probs, labels = sure_and_unsure()
    known = library.AURC()
    known.update(log_probs.exp(), labels)
    coverage, risk = metrics.risk_coverage_curve(log_probs, labels)
    torch.testing.assert_close(risk, known.partial_compute().double(), rtol=1e-6, atol=1e-7)
    assert coverage.tolist() == [k / 400 for k in range(1, 401)]
    # Theirs is the trapezoid between coverages 1/N and 1, ours the mean of all N risks.
    trapezoid = float((risk.sum() - (risk[0] + risk[-1]) / 2) / 399)
    assert trapezoid == pytest.approx(float(known.compute()), rel=1e-6)
    assert metrics.aurc(log_probs, labels) == pytest.approx(float(risk.mean()), rel=1e-12)


def test_aurc_is_a_mean_over_items():
    log_probs, labels = sure_and_unsure()
    assert float(metrics.item_aurc(log_probs, labels).mean()) == pytest.approx(metrics.aurc(log_probs, labels))


def test_equal_confidences_count_as_in_random_order():
    """One certain item that is right, then three equal ones with one error: risks 0, 1/6, 2/9, 1/4."""
    probabilities = torch.tensor([[0.7, 0.3], [0.7, 0.3], [1.0, 0.0], [0.3, 0.7]])
    labels = torch.tensor([1, 0, 0, 1])
    _, risk = metrics.risk_coverage_curve(probabilities.log(), labels)
    torch.testing.assert_close(risk, torch.tensor([0, 1 / 6, 2 / 9, 1 / 4], dtype=torch.float64))


def test_a_perfect_ranking_has_no_excess_and_another_confidence_may_rank():
    log_probs, labels = sure_and_unsure()
    wrong = metrics.item_errors(log_probs, labels)
    assert metrics.excess_aurc(log_probs, labels, -wrong) == 0
    assert 0 < metrics.excess_aurc(log_probs, labels) < metrics.excess_aurc(log_probs, labels, wrong)
    assert metrics.excess_aurc(*sure_and_unsure(), 0 * wrong) == pytest.approx(
        float(wrong.mean()) - metrics.aurc(log_probs, labels, -wrong)
    )
    with pytest.raises(ValueError, match=r"`confidence` of shape \[3\] must be \[400\]"):
        metrics.aurc(log_probs, labels, torch.zeros(3))


def test_fpr_at_95_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(500, generator=generator), torch.randn(300, generator=generator) + 1
    truth = np.r_[np.zeros(500), np.ones(300)]
    rates, recalls, _ = sklearn_metrics.roc_curve(truth, torch.cat([inside, outside]), drop_intermediate=False)
    assert metrics.fpr_at_95(inside, outside) == pytest.approx(rates[np.argmax(recalls >= 0.95)])
