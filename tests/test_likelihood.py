from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.nn import functional

import peppermill as pm
from peppermill.likelihood import (
    LIKELIHOODS,
    Bernoulli,
    Categorical,
    Gaussian,
    ensemble_log_likelihood,
    ensemble_log_likelihoods,
    likelihood_named,
    temper,
)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def classes(*shape, count=3, seed=0):
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


def item_log_likelihoods(likelihood, outputs, labels):
    return likelihood.log_likelihoods(*likelihood.items(likelihood.predict(outputs), labels))


def averaged(likelihood, members):
    """The ensemble's prediction, one member after another, as a pass builds it."""
    first, *others = (likelihood.predict(outputs) for outputs in members)
    for count, prediction in enumerate(others, start=1):
        first = likelihood.average(torch.stack([first, prediction]), (count, 1))
    return first


# Eq. 6


@given(members=st.integers(1, 8), items=st.integers(1, 9), seed=st.integers(0, 99))
def test_eq_6_equals_a_loop_over_plain_probabilities(members, items, seed):
    matrix = -normal(members, items, seed=seed).abs()
    plain = 0.0
    for i in range(items):
        plain += math.log(sum(math.exp(float(matrix[j, i])) for j in range(members)) / members)
    assert float(ensemble_log_likelihood(matrix)) == pytest.approx(plain, rel=1e-12)
    assert float(ensemble_log_likelihoods(matrix).sum()) == pytest.approx(plain, rel=1e-12)


def test_eq_6_does_not_underflow():
    """exp(-10^4) is 0 in every floating-point type; by hand, ln (e^-10000 + e^-20000)/2 = -10000 - ln 2."""
    matrix = torch.tensor([[-1e4, -1e4], [-2e4, -1e4]], dtype=torch.float64)
    expected = [-1e4 - math.log(2), -1e4]
    assert ensemble_log_likelihoods(matrix).tolist() == pytest.approx(expected, rel=1e-15)
    assert float(ensemble_log_likelihood(matrix)) == pytest.approx(sum(expected), rel=1e-15)


def test_eq_6_where_members_are_sure_that_it_cannot_be():
    """ln 0 is -inf, and the mean of 0 and 0 is 0; what is not a number stays so. As `logsumexp` has it."""
    matrix = torch.tensor([[-math.inf, -1.0, math.nan, -math.inf, 0.0], [-math.inf, -math.inf, -1.0, -2.0, 0.0]])
    expected = matrix.logsumexp(dim=0) - math.log(2)
    torch.testing.assert_close(ensemble_log_likelihoods(matrix), expected, equal_nan=True)
    assert float(ensemble_log_likelihoods(matrix)[0]) == -math.inf


@given(members=st.integers(1, 8), seed=st.integers(0, 99))
def test_eq_6_has_the_slope_of_logsumexp(members, seed):
    matrix, other = (normal(members, 5, seed=seed).mul(3).requires_grad_() for _ in range(2))
    ensemble_log_likelihoods(matrix).sum().backward()
    other.logsumexp(dim=0).sum().backward()
    torch.testing.assert_close(matrix.grad, other.grad)


def test_the_log_of_the_mean_is_not_the_mean_of_the_logs():
    """Jensen: the ensemble's log-likelihood is at least the members' average, and above it where they disagree."""
    matrix = torch.tensor([[-1.0, -3.0], [-2.0, -0.5]], dtype=torch.float64)
    gain = float(ensemble_log_likelihood(matrix)) - float(matrix.mean(dim=0).sum())
    assert gain == pytest.approx(math.log(math.cosh(0.5)) + math.log(math.cosh(1.25)))  # half of each difference
    assert float(ensemble_log_likelihood(matrix[:1].expand(2, -1))) == pytest.approx(-4, rel=1e-15)


# Categorical


@pytest.mark.parametrize(
    ("shape", "label_shape", "dimension"),
    [((7, 3), (7,), 1), ((2, 3, 4, 5), (2, 4, 5), 1), ((2, 5, 3), (2, 5), -1), ((1, 3), (1,), 1)],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_categorical_equals_cross_entropy(shape, label_shape, dimension, dtype):
    outputs, labels = normal(*shape, dtype=dtype), classes(*label_shape)
    likelihood = Categorical(class_dimension=dimension)
    likelihood.check(outputs, labels)
    found = item_log_likelihoods(likelihood, outputs, labels)
    expected = -functional.cross_entropy(outputs.movedim(dimension, 1), labels, reduction="none").flatten()
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-7)


def test_items_with_the_ignored_label_do_not_count():
    outputs, labels = normal(2, 3, 4, 5), classes(2, 4, 5)
    labels[0, :2] = 255
    likelihood = Categorical(ignored_label=255)
    likelihood.check(outputs, labels)
    found = item_log_likelihoods(likelihood, outputs, labels)
    assert len(found) == 40 - 10
    expected = functional.cross_entropy(outputs, labels, ignore_index=255, reduction="sum")
    assert -float(found.sum()) == pytest.approx(float(expected), rel=1e-12)


def test_the_default_ignored_label_is_that_of_torch():
    outputs, labels = normal(4, 3), torch.tensor([0, -100, 2, -100])
    found = item_log_likelihoods(Categorical(), outputs, labels)
    assert -float(found.sum()) == pytest.approx(float(functional.cross_entropy(outputs, labels, reduction="sum")))


def test_log_probabilities_are_read_as_well_as_logits():
    outputs = normal(5, 3)
    assert torch.allclose(Categorical().predict(outputs.log_softmax(dim=1)), Categorical().predict(outputs), atol=1e-15)


def test_logits_of_ten_thousand_do_not_underflow():
    """By hand: against a logit of 10^4, a logit of 0 has ln p = -10^4."""
    outputs = torch.tensor([[1e4, 0.0, -1e4]])
    assert item_log_likelihoods(Categorical(), outputs, torch.tensor([1])).tolist() == [-1e4]
    two = averaged(Categorical(), [outputs, torch.tensor([[1e4, -1e4, 0.0]])])
    assert two[0].tolist() == pytest.approx([0.0, -1e4 - math.log(2), -1e4 - math.log(2)], rel=1e-6)


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize(("shape", "dimension"), [((4, 3), 1), ((2, 3, 2, 2), 1), ((2, 5, 3), -1)])
def test_the_averaged_prediction_is_the_mean_probability(members, shape, dimension):
    outputs = [normal(*shape, seed=seed) for seed in range(members)]
    likelihood = Categorical(class_dimension=dimension)
    found = likelihood.outputs(averaged(likelihood, outputs)).exp()
    expected = torch.stack([output.softmax(dim=dimension) for output in outputs]).mean(dim=0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_one_member_is_its_own_average_bit_for_bit():
    outputs = normal(6, 3, dtype=torch.float32)
    assert torch.equal(averaged(Categorical(), [outputs]), Categorical().predict(outputs))
    assert torch.equal(averaged(Bernoulli(), [outputs]), Bernoulli().predict(outputs))
    pair = normal(6, 2, dtype=torch.float32)
    assert torch.equal(averaged(Gaussian(), [pair]), pair)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli(), Gaussian()])
def test_half_precision_outputs_are_read_in_float32(dtype, likelihood):
    outputs = normal(4, 2).to(dtype)
    assert likelihood.predict(outputs).dtype == torch.float32
    assert torch.equal(likelihood.predict(outputs), likelihood.predict(outputs.float()))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int32, torch.int64])
def test_class_numbers_may_be_any_integers(dtype):
    outputs, labels = normal(4, 3), torch.tensor([0, 1, 2, 1])
    Categorical().check(outputs, labels.to(dtype))
    assert torch.equal(
        item_log_likelihoods(Categorical(), outputs, labels.to(dtype)),
        item_log_likelihoods(Categorical(), outputs, labels),
    )


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([0, 3, 1], r"labels run from 0 to 3, but the network has 3 classes: labels must lie in 0\.\.2"),
        ([-1, 2, 1], r"labels run from -1 to 2, but the network has 3 classes"),
        ([-1, -100, 1], r"from -1 to 1, .* \(or be -100, which is ignored\)"),
    ],
)
def test_labels_out_of_range_are_refused(labels, text):
    with pytest.raises(ValueError, match=text):
        Categorical().check(normal(3, 3), torch.tensor(labels))


def test_a_byte_of_156_is_a_label_and_not_minus_100():
    with pytest.raises(ValueError, match="labels run from 0 to 156"):
        Categorical().check(normal(2, 3), torch.tensor([0, 156], dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_labels_that_are_not_integers_are_refused(dtype):
    with pytest.raises(
        TypeError, match=rf"labels have type {dtype}, but class numbers are integers: pass `labels.long"
    ):
        Categorical().check(normal(3, 3), torch.ones(3, dtype=dtype))


@pytest.mark.parametrize(("outputs", "labels"), [((4, 3), (4, 3)), ((2, 5, 3), (2, 5)), ((4, 3), (4, 1))])
def test_labels_of_another_shape_are_refused_with_the_cure(outputs, labels):
    with pytest.raises(ValueError) as error:
        Categorical().check(normal(*outputs), torch.zeros(labels, dtype=torch.long))
    text = str(error.value)
    assert f"labels of shape {list(labels)} do not fit outputs of shape {list(outputs)}" in text
    assert "class_dimension=-1" in text
    assert "labels.argmax(dim=1)" in text


@pytest.mark.parametrize(("inputs", "labels"), [(4, 5), (5, 4), (4, 1)])
def test_more_inputs_than_labels_or_fewer_are_counted(inputs, labels):
    with pytest.raises(ValueError, match=rf"a batch of {inputs} inputs needs {inputs} labels, and has {labels}\.$"):
        Categorical().check(normal(inputs, 3), torch.zeros(labels, dtype=torch.long))


@pytest.mark.parametrize("shape", [(4, 1), (4,)])
def test_a_single_output_is_sent_to_the_yes_or_no_likelihood(shape):
    with pytest.raises(ValueError, match=r'fewer than two classes in dimension 1. .*use `likelihood="bernoulli"`'):
        Categorical().check(normal(*shape), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize(("shape", "dimension"), [((5, 3), 1), ((2, 3, 2, 2), 1), ((2, 5, 3), -1)])
def test_probabilities_in_place_of_logits_are_refused(shape, dimension):
    likelihood = Categorical(class_dimension=dimension)
    probabilities = normal(*shape, dtype=torch.float32).softmax(dim=dimension)
    labels = torch.zeros(likelihood.predict(probabilities).shape[:-1], dtype=torch.long)
    with pytest.raises(ValueError, match=r"look like probabilities .* Remove the last softmax"):
        likelihood.check(probabilities, labels)
    likelihood.check(probabilities.log(), labels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_probabilities_are_recognized_in_half_precision(dtype):
    with pytest.raises(ValueError, match="look like probabilities"):
        Categorical().check(normal(50, 3).softmax(dim=1).to(dtype), torch.zeros(50, dtype=torch.long))


def test_logits_that_are_positive_are_not_taken_for_probabilities():
    Categorical().check(normal(5, 3).abs(), torch.zeros(5, dtype=torch.long))


def test_one_row_that_sums_to_one_is_no_evidence():
    Categorical().check(torch.tensor([[0.3, 0.7]]), torch.tensor([1]))


def test_logits_that_now_and_then_sum_to_one_are_no_alarm_in_batches_of_one():
    """About one item in fifty has logits above 0 that sum to 1 by less than 0.001, and so has any member."""
    torch.manual_seed(0)
    x = torch.rand(400, 1)
    model = torch.nn.Linear(1, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1], [-0.09]]))
        model.bias.copy_(torch.tensor([0.3, 0.697]))
    likely = ((model(x).sum(dim=1) - 1).abs() < 1e-3) & (model(x) >= 0).all(dim=1)
    assert 5 < int(likely.sum()) < 100
    data = [(row[None], torch.tensor([k % 2])) for k, row in enumerate(x)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)
        pep = pm.fit(model, data, size=4)
    assert pm.evaluate(model, data).items == pm.evaluate(pep.with_sigma(1e-4), data).items == 400


@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_probabilities_are_recognized_in_batches_of_one(sigma):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Softmax(dim=1)).eval()
    data = [(normal(1, 3, dtype=torch.float32), torch.zeros(1, dtype=torch.long)) for _ in range(12)]
    for predictor in (model, pm.PepEnsemble.at_sigma(model, sigma, size=2)):
        with pytest.raises(ValueError, match="look like probabilities"):
            pm.evaluate(predictor, data)


def test_a_batch_without_items_is_not_taken_for_probabilities():
    Categorical().check(torch.empty(0, 3), torch.empty(0, dtype=torch.long))


# Bernoulli


@pytest.mark.parametrize(
    ("outputs", "labels"), [((6,), (6,)), ((6, 1), (6,)), ((6,), (6, 1)), ((6, 4), (6, 4)), ((1, 1), (1,))]
)
@pytest.mark.parametrize("kind", [torch.float32, torch.long, torch.bool])
def test_bernoulli_equals_binary_cross_entropy(outputs, labels, kind):
    logits, truth = normal(*outputs), classes(*labels, count=2)
    Bernoulli().check(logits, truth.to(kind))
    found = item_log_likelihoods(Bernoulli(), logits, truth.to(kind))
    expected = -functional.binary_cross_entropy_with_logits(
        logits.flatten(), truth.flatten().double(), reduction="none"
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_bernoulli_entries_with_the_ignored_label_do_not_count():
    logits, labels = normal(3, 2), torch.tensor([[0, -100], [1, 1], [-100, 0]])
    found = item_log_likelihoods(Bernoulli(), logits, labels)
    counted = labels != -100
    expected = functional.binary_cross_entropy_with_logits(logits[counted], labels[counted].double(), reduction="none")
    torch.testing.assert_close(found, -expected, rtol=1e-12, atol=0)


def test_the_bernoulli_ensemble_gives_the_logit_of_the_mean_probability():
    members = [normal(5, 2, seed=seed) for seed in range(4)]
    probability = torch.stack([member.sigmoid() for member in members]).mean(dim=0)
    found = Bernoulli().outputs(averaged(Bernoulli(), members))
    torch.testing.assert_close(found, probability.logit(), rtol=1e-10, atol=1e-12)


def test_bernoulli_logits_of_ten_thousand_do_not_underflow():
    """By hand: ln p(yes) = -10^4; two members with logits -10^4 and -2*10^4 have ln p(yes) = -10^4 - ln 2."""
    logits = torch.tensor([-1e4], dtype=torch.float64)
    assert item_log_likelihoods(Bernoulli(), logits, torch.tensor([1])).tolist() == [-1e4]
    two = Bernoulli().outputs(averaged(Bernoulli(), [logits, 2 * logits]))
    assert two.tolist() == pytest.approx([-1e4 - math.log(2)], rel=1e-15)


@pytest.mark.parametrize("label", [2.0, 0.5, -1.0])
def test_a_yes_or_no_label_is_zero_or_one(label):
    with pytest.raises(ValueError, match=rf"labels contain {label}, but a yes-or-no label is 0 or 1"):
        Bernoulli().check(normal(2), torch.tensor([0.0, label]))


@pytest.mark.parametrize(("outputs", "labels"), [((6, 2), (6,)), ((6, 2), (2, 6)), ((6, 2), (12,))])
def test_a_yes_or_no_question_needs_one_label_for_each_logit(outputs, labels):
    with pytest.raises(ValueError, match=r"needs one label, 0 or 1, for each logit, in the same arrangement"):
        Bernoulli().check(normal(*outputs), torch.zeros(labels))


def test_outputs_between_zero_and_one_may_be_probabilities():
    with pytest.warns(pm.PepWarning, match="every output of the network lies in 0..1: .* remove the last sigmoid"):
        Bernoulli().check(torch.linspace(0, 1, 10), torch.ones(10))


def test_a_few_logits_may_lie_between_zero_and_one():
    """Warnings are errors here. A last batch of two has such logits by chance one time in nine."""
    Bernoulli().check(torch.tensor([0.2, 0.9]), torch.tensor([0, 1]))


# Gaussian


def scipy_normal(outputs):
    mean, log_variance = outputs.numpy().T
    return stats.norm(mean, np.exp(log_variance / 2))


def test_gaussian_equals_the_density_of_scipy():
    outputs, labels = normal(9, 2), normal(9, seed=1)
    Gaussian().check(outputs, labels)
    found = item_log_likelihoods(Gaussian(), outputs, labels)
    expected = scipy_normal(outputs).logpdf(labels.numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_likelihood_of_a_gaussian_ensemble_is_the_density_of_the_mixture():
    members, labels = [normal(5, 2, seed=seed) for seed in range(4)], normal(5, seed=9)
    matrix = torch.stack([item_log_likelihoods(Gaussian(), member, labels) for member in members])
    density = np.mean([scipy_normal(member).pdf(labels.numpy()) for member in members], axis=0)
    np.testing.assert_allclose(ensemble_log_likelihoods(matrix), np.log(density), rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_prediction_of_a_gaussian_ensemble_is_the_mean_and_variance_of_the_mixture(size):
    """E[y] = mean of the means; Var[y] = mean of the variances + variance of the means."""
    members = np.stack([normal(5, 2, seed=seed).numpy() for seed in range(size)])
    found = averaged(Gaussian(), [torch.tensor(member) for member in members])
    np.testing.assert_allclose(found[:, 0], members[:, :, 0].mean(axis=0), rtol=1e-12, atol=1e-15)
    variance = np.exp(members[:, :, 1]).mean(axis=0) + members[:, :, 0].var(axis=0)
    np.testing.assert_allclose(found[:, 1], np.log(variance), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_small_variance_beside_a_large_mean_is_not_lost(dtype):
    """E[y^2] - E[y]^2 would be the difference of two numbers near 10^8; by hand, Var = e^-12 + 1/4."""
    members = [torch.tensor([[mean, -12.0]], dtype=dtype) for mean in (10000.0, 10001.0)]
    assert averaged(Gaussian(), members)[0].tolist() == pytest.approx(
        [10000.5, math.log(math.exp(-12) + 0.25)], rel=1e-6
    )
    same = averaged(Gaussian(), [members[0], members[0]])
    assert same[0].tolist() == pytest.approx([10000.0, -12.0], rel=1e-6)


@pytest.mark.parametrize(
    ("outputs", "labels"), [((4, 3), (4,)), ((4, 2), (5,)), ((2,), (1,)), ((2, 3, 2), (3, 2)), ((4, 2), (4, 2))]
)
def test_a_gaussian_likelihood_needs_a_mean_and_a_log_variance(outputs, labels):
    with pytest.raises(ValueError, match=r"needs a mean and a log-variance, outputs \[B, 2\], for labels \[B\]"):
        Gaussian().check(normal(*outputs), normal(*labels))


@pytest.mark.parametrize(("outputs", "labels"), [((4, 2), (4,)), ((4, 2), (4, 1)), ((2, 3, 2), (2, 3))])
def test_gaussian_labels_may_have_a_dimension_of_one(outputs, labels):
    Gaussian().check(normal(*outputs), normal(*labels))


# Temperature and names


@given(temperature=st.floats(0.05, 20), seed=st.integers(0, 50))
def test_tempering_log_probabilities_is_dividing_logits(temperature, seed):
    logits = normal(4, 5, seed=seed)
    tempered = temper(logits.log_softmax(dim=-1), temperature)
    torch.testing.assert_close(tempered, (logits / temperature).log_softmax(dim=-1), rtol=1e-9, atol=1e-12)
    power = logits.softmax(dim=-1) ** (1 / temperature)
    torch.testing.assert_close(tempered.exp(), power / power.sum(dim=-1, keepdim=True), rtol=1e-9, atol=1e-12)


def test_a_temperature_of_one_changes_no_bit():
    log_probs = normal(4, 5, dtype=torch.float32)
    assert torch.equal(temper(log_probs, 1.0), log_probs)


@pytest.mark.parametrize(
    "likelihood",
    [Categorical(), Categorical(-1, 255), Bernoulli(), Bernoulli(ignored_label=-1), Gaussian()],
)
def test_a_likelihood_is_rebuilt_from_its_name_and_settings(likelihood):
    assert replace(likelihood_named(likelihood.name), **likelihood.settings()) == likelihood
    assert likelihood_named(likelihood) is likelihood


def test_every_name_stands_for_a_likelihood_of_that_name():
    assert {name: likelihood_named(name).name for name in LIKELIHOODS} == {name: name for name in LIKELIHOODS}


def test_an_unknown_likelihood_is_refused():
    with pytest.raises(
        ValueError, match="`likelihood='poisson'` is unknown: choose one of categorical, bernoulli, gaussian"
    ):
        likelihood_named("poisson")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("categorical?ignored_label=255", pm.Categorical(ignored_label=255)),
        ("categorical?class_dimension=-1&ignored_label=0", pm.Categorical(-1, 0)),
        ("bernoulli?ignored_label=9", pm.Bernoulli(9)),
        ("gaussian", pm.Gaussian()),
    ],
)
def test_a_name_may_carry_settings(text, expected):
    assert likelihood_named(text) == expected


@pytest.mark.parametrize("text", ["categorical?ignored=2", "categorical?ignored_label=x", "gaussian?ignored_label=1"])
def test_settings_that_a_likelihood_does_not_have_are_refused(text):
    with pytest.raises(ValueError, match=r"write them as in `categorical\?ignored_label=255`"):
        likelihood_named(text)
