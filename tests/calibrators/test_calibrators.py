"""Vector and matrix scaling against scikit-learn, probmetrics, scipy and the data that made them."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from scipy.optimize import minimize

import peppermill as pm
from peppermill.calibrators import CALIBRATORS, calibrator_from, cross_fitted, fit_calibrator_on, numbers_of
from peppermill.calibrators.linear_scaling import corrected, fit_correction
from peppermill.calibrators.temperature import best_temperature
from peppermill.likelihood import temper

CATEGORICAL = pm.Categorical()
RICHER = ["vector", "matrix"]


def fitted_numbers(calibrator):
    """Those in its arrays; temperature scaling has T alone."""
    return sum(array.numel() for array in calibrator.arrays().values()) or 1


def distorted(items: int, classes: int, seed: int = 0, scale: float = 0.15, bias: float = 0.6):
    """Log-probabilities that are too sure of themselves, each class by its own scale and bias; and their labels."""
    generator, of_classes = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(classes)
    log_probs = (4 * torch.randn(items, classes, generator=generator, dtype=torch.float64)).log_softmax(dim=1)
    scales, biases = torch.randn(2, classes, generator=of_classes, dtype=torch.float64)
    truth = ((1 + scale * scales) * log_probs / 1.8 + bias * biases).softmax(dim=1)
    return log_probs, torch.multinomial(truth, 1, generator=generator)[:, 0]


def nll(calibrator, log_probs, labels):
    return float(torch.nn.functional.nll_loss(calibrator(log_probs), labels))


@pytest.mark.parametrize("name", RICHER)
def test_a_distortion_by_class_is_found(name):
    """On other items it gains nearly what one that was fitted on those items gains."""
    fitted_on, others = distorted(4000, 4), distorted(4000, 4, seed=1)
    warm, found = (fit_calibrator_on(one, *fitted_on, CATEGORICAL) for one in ("temperature", name))
    ideal = fit_calibrator_on(name, *others, CATEGORICAL)
    gap = nll(warm, *others) - nll(ideal, *others)
    assert gap > 0.02
    assert nll(found, *others) - nll(ideal, *others) < 0.15 * gap
    assert fitted_numbers(found) == {"vector": 8, "matrix": 20}[name]


@pytest.mark.parametrize("name", RICHER)
def test_without_a_distortion_it_is_temperature_scaling(name):
    """Within one standard error the stronger shrinkage is taken, so that here little or nothing is left."""
    log_probs, labels = distorted(400, 5, scale=0, bias=0)
    found = fit_calibrator_on(name, log_probs, labels, CATEGORICAL)
    temperature, _ = best_temperature(log_probs, labels)
    assert found.temperature == temperature
    torch.testing.assert_close(found(log_probs), (log_probs / temperature).log_softmax(dim=1), rtol=0, atol=0.1)


@pytest.mark.parametrize("name", list(CALIBRATORS))
@pytest.mark.parametrize("shape", [(7,), (2, 3, 7), (1, 7)])
def test_any_leading_dimensions_and_type(name, shape):
    found = fit_calibrator_on(name, *distorted(300, 7), CATEGORICAL)
    for dtype in (torch.float32, torch.float64):
        log_probs = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0)).log_softmax(dim=-1)
        after = found(log_probs)
        assert after.shape == log_probs.shape
        assert after.dtype == dtype
        torch.testing.assert_close(after.exp().sum(dim=-1), torch.ones(shape[:-1], dtype=dtype))
        rows = torch.stack([found(row) for row in log_probs.reshape(-1, 7)]).reshape(shape)
        torch.testing.assert_close(after, rows)


@pytest.mark.parametrize("name", list(CALIBRATORS))
def test_numbers_and_arrays_give_the_same_calibrator_again(name):
    log_probs, labels = distorted(300, 6)
    found = fit_calibrator_on(name, log_probs, labels, CATEGORICAL)
    again = calibrator_from(numbers_of(found), {key: array.clone() for key, array in found.arrays().items()})
    assert torch.equal(again(log_probs), found(log_probs))
    assert again.name == found.name == name
    assert all(array.dtype == torch.float32 for array in found.arrays().values())


@pytest.mark.parametrize("name", list(CALIBRATORS))
def test_a_row_knows_how_many_numbers_are_fitted(name):
    log_probs, labels = distorted(300, 4)
    assert CALIBRATORS[name].numbers(4) == fitted_numbers(fit_calibrator_on(name, log_probs, labels, CATEGORICAL))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_cross_fitting_is_a_loop_over_folds(name):
    """As many folds as examples leave out one example each."""
    log_probs, labels = distorted(6, 2, seed=3)
    found = cross_fitted(name, log_probs, labels, CATEGORICAL, torch.arange(6), folds=6)
    for left_out in range(6):
        others = torch.arange(6) != left_out
        fitted = CALIBRATORS[name].fit(log_probs[others], labels[others])
        assert found[left_out] == fitted(log_probs[left_out])[labels[left_out]]


def test_the_items_of_an_example_are_in_one_fold():
    """Three copies of each item: cross-fitting is that of the items without copies."""
    log_probs, labels = distorted(40, 3)
    copies = torch.arange(40).repeat_interleave(3)
    once = cross_fitted("temperature", log_probs, labels, CATEGORICAL, torch.arange(40), folds=5)
    thrice = cross_fitted("temperature", log_probs[copies], labels[copies], CATEGORICAL, copies, folds=5)
    torch.testing.assert_close(thrice, once[copies], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", RICHER)
@pytest.mark.parametrize(("items", "classes"), [(400, 6), (5, 20), (1, 4), (2, 3)])
def test_a_class_without_items_keeps_temperature_scaling(name, items, classes):
    log_probs, labels = distorted(items, classes)
    labels = labels.clamp(max=classes - 2)
    absent = classes - len(labels.unique())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = fit_calibrator_on(name, log_probs, labels, CATEGORICAL)
    texts = [str(warning.message) for warning in said if "temperature is" not in str(warning.message)]
    assert len(texts) == 1
    assert f"{absent} of {classes} classes do not occur in the {items} items" in texts[0]
    weight, bias = found.arrays().values()
    assert bool((weight[-1] == 0).all())
    assert bias[-1] == 0
    assert name == "vector" or bool((weight[:, -1] == 0).all())
    assert bool(found(log_probs).isfinite().all())


@pytest.mark.filterwarnings("ignore:.*do not occur")
@pytest.mark.parametrize("name", RICHER)
@pytest.mark.parametrize("absent", [3, 6])
def test_the_other_classes_take_no_probability_from_a_class_without_items(name, absent):
    """On other items, where it occurs: it is as likely as before, and all classes together are predicted better."""
    fitted_on, others = (pm.predict(pm.demo.network(), half) for half in pm.demo.data())
    present = fitted_on.labels != absent
    warm, found = (
        fit_calibrator_on(row, fitted_on.log_probs[present], fitted_on.labels[present], CATEGORICAL)
        for row in ("temperature", name)
    )
    torch.testing.assert_close(*(one(others.log_probs)[:, absent] for one in (warm, found)), rtol=1e-5, atol=1e-5)
    assert nll(found, others.log_probs, others.labels) < nll(warm, others.log_probs, others.labels) - 0.001


@pytest.mark.parametrize("name", RICHER)
def test_pixels_of_one_picture_count_as_one_example(name):
    """Twelve pictures, each of one class: the classes' shares are those of twelve draws, from which nothing follows."""
    torch.manual_seed(0)
    log_probs, examples = torch.randn(2400, 3).log_softmax(dim=1), torch.arange(12).repeat_interleave(200)
    labels = torch.tensor([0, 1, 2, 2, 2, 2, 0, 1, 2, 0, 2, 2]).repeat_interleave(200)
    known, items = (CALIBRATORS[name].fit(log_probs, labels, numbers) for numbers in (examples, torch.arange(2400)))
    assert float(known.bias.abs().max()) == 0
    assert float(items.bias[2]) > 0.3


@pytest.mark.filterwarnings("ignore:.*do not occur")
@pytest.mark.parametrize("name", RICHER)
@pytest.mark.parametrize("absent", range(4))
def test_a_class_without_items_gets_no_probability_from_the_others_either(name, absent):
    """The network likes it as much as the others: their items are predicted better than by temperature scaling."""
    log_probs, labels = distorted(800, 4, bias=2.0)
    log_probs, labels = log_probs[labels != absent], labels[labels != absent]
    warm, found = (fit_calibrator_on(row, log_probs, labels, CATEGORICAL) for row in ("temperature", name))
    torch.testing.assert_close(found(log_probs)[:, absent], warm(log_probs)[:, absent])
    assert nll(found, log_probs, labels) < nll(warm, log_probs, labels)


@pytest.mark.parametrize("name", RICHER)
def test_minus_infinity_stays_and_disturbs_nothing(name):
    log_probs, labels = distorted(500, 4)
    impossible = torch.full((500, 1), -math.inf, dtype=torch.float64)
    with pytest.warns(pm.PepWarning, match="1 of 5 classes"):
        found = fit_calibrator_on(name, torch.cat([log_probs, impossible], dim=1), labels, CATEGORICAL)
    after = found(torch.cat([log_probs, impossible], dim=1))
    assert bool((after[:, 4] == -math.inf).all())
    torch.testing.assert_close(after[:, :4].exp().sum(dim=1), torch.ones(500, dtype=torch.float64))
    assert nll(found, torch.cat([log_probs, impossible], dim=1), labels) < nll(lambda given: given, log_probs, labels)


def test_misuse_is_refused_with_its_cure():
    log_probs, labels = distorted(50, 3)
    with pytest.raises(ValueError, match="`calibrator='isotonic'` is unknown: choose one of temperature, vector, mat"):
        fit_calibrator_on("isotonic", log_probs, labels, CATEGORICAL)
    with pytest.raises(ValueError, match="'vector'` is not for the gaussian likelihood: leave it out"):
        fit_calibrator_on("vector", log_probs, labels, pm.Gaussian())
    with pytest.raises(
        ValueError, match="'matrix'` is not for the bernoulli likelihood: choose one of temperature, vec"
    ):
        cross_fitted("matrix", log_probs, labels, pm.Bernoulli(), torch.arange(50), folds=5)
    with pytest.raises(
        ValueError, match=r"is for at most 100 classes, and there are 1,001: use `calibrator=\"vector\"`"
    ):
        fit_calibrator_on("matrix", torch.zeros(3, 1001).log_softmax(dim=1), torch.zeros(3).long(), CATEGORICAL)
    with pytest.raises(ValueError, match="all items are of one example, which leaves nothing to fit on: give more"):
        cross_fitted("vector", log_probs, labels, CATEGORICAL, torch.zeros(50).long(), folds=5)
    with pytest.raises(ValueError, match=r"matrix scaling has arrays of shapes \[3\] and \[3\]"):
        calibrator_from({"name": "matrix", "temperature": 1.0}, {"weight": torch.zeros(3), "bias": torch.zeros(3)})


def penalised_loss(tempered, labels, ridge):
    """The negative penalised log-likelihood as a function of the correction, written down once more."""

    def loss(flat):
        correction = torch.as_tensor(flat, dtype=torch.float64).reshape(ridge.shape)
        weight = correction[:, :-1]
        moved = tempered * weight[:, 0] if weight.shape[1] == 1 else tempered @ weight.T
        logits = tempered + moved + correction[:, -1]
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum") + (ridge * correction.square()).sum()

    return loss


@pytest.mark.parametrize("columns", [2, 5])
@pytest.mark.parametrize("strength", [0.1, 5.0, 100.0])
def test_the_correction_is_where_the_gradient_vanishes_from_any_start(columns, strength):
    """Autograd for the gradient, finite differences and another start for scipy: a concave function has one peak."""
    log_probs, labels = distorted(300, 4)
    ridge = torch.full((4, columns), strength, dtype=torch.float64)
    ridge[:, : columns - 2] *= 3
    start = torch.randn(4, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 4
    loss = penalised_loss(log_probs, labels, ridge)
    for first in (None, start):
        found = fit_correction(log_probs, labels, ridge, first, 1e-14).requires_grad_()
        [gradient] = torch.autograd.grad(loss(found), found)
        assert float(gradient.abs().max()) < 0.1  # one more item would change it by about 1
        theirs = minimize(lambda flat: float(loss(flat)), start.flatten().numpy(), method="BFGS")
        assert float(loss(found.detach())) == pytest.approx(theirs.fun, rel=1e-7)
        torch.testing.assert_close(found.detach().flatten(), torch.from_numpy(theirs.x), rtol=0, atol=2e-3)


@pytest.mark.parametrize(("classes", "columns"), [(2, 2), (4, 5)])
def test_without_a_ridge_it_is_the_logistic_regression_of_scikit_learn(classes, columns):
    """Vector scaling of two classes and matrix scaling of any number are regressions on the log-probabilities."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    log_probs, labels = distorted(2000, classes)
    theirs = linear_model.LogisticRegression(C=1e6, tol=1e-8, max_iter=3000).fit(log_probs.numpy(), labels.numpy())
    correction = fit_correction(log_probs, labels, torch.full((classes, columns), 1e-7), None, 1e-14)
    found = corrected(log_probs, correction).exp()
    torch.testing.assert_close(found, torch.from_numpy(theirs.predict_proba(log_probs.numpy())), rtol=0, atol=2e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RICHER)
def test_probmetrics_finds_the_same_at_its_own_strength(name):
    """Its ridges are K, and K (K - 1) off the diagonal; it smooths T a little and works in float32."""
    pytest.importorskip("numba")
    theirs = pytest.importorskip("probmetrics.calibrators")
    log_probs, labels = distorted(4000, 4)
    other, other_labels = distorted(4000, 4, seed=1)
    kind = theirs.SVSCalibrator if name == "vector" else theirs.SMSCalibrator
    made = kind(penalty="ridge", opt="bfgs")
    made.fit(log_probs.exp().numpy(), labels.numpy())
    expected = torch.from_numpy(made.predict_proba(other.exp().numpy())).double()
    temperature, _ = best_temperature(log_probs, labels)
    ridge = torch.full((4, 2), 4.0)
    if name == "matrix":
        ridge = torch.where(torch.eye(4, 5).bool() | (torch.arange(5) == 4), 4.0, 12.0)
    correction = fit_correction(temper(log_probs, temperature), labels, ridge, None, 1e-14)
    torch.testing.assert_close(corrected(temper(other, temperature), correction).exp(), expected, rtol=0, atol=0.01)
    chosen = fit_calibrator_on(name, log_probs, labels, CATEGORICAL)
    assert nll(chosen, other, other_labels) < nll(lambda _: expected.log(), other, other_labels) + 0.002


@pytest.mark.parametrize("likelihood", [CATEGORICAL, pm.Bernoulli()])
def test_random_labels_are_not_learnt(likelihood):
    """200 items, two classes, labels by a coin: on other items no worse than the coin, but for noise.

    The four numbers would cost 4 / (2 * 200) = 0.01 in NLL without a ridge; on average much less is lost.
    """
    excess = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        log_probs = torch.randn(1200, 2, generator=generator, dtype=torch.float64).log_softmax(dim=1)
        labels = torch.randint(2, (1200,), generator=generator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.PepWarning)  # of a temperature of 20
            found = fit_calibrator_on("vector", log_probs[:200], labels[:200], likelihood)
        expected = -found(log_probs[200:]).mean()  # over both labels, which are equally likely
        excess.append(float(expected) - math.log(2))
    assert sum(excess) / len(excess) < 0.005
    assert max(excess) < 0.03


def test_yes_or_no_questions_get_a_scale_and_a_bias_for_each_answer():
    """Beta calibration (Kull et al., 2017) by scikit-learn: a regression on ln p and ln (1 - p)."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    log_probs, labels = distorted(5000, 2, scale=0.4)
    theirs = linear_model.LogisticRegression(C=1e6, tol=1e-8, max_iter=3000).fit(log_probs.numpy(), labels.numpy())
    best = torch.from_numpy(theirs.predict_log_proba(log_probs.numpy()))
    found, warm = (fit_calibrator_on(name, log_probs, labels, pm.Bernoulli()) for name in ("vector", "temperature"))
    gap = nll(warm, log_probs, labels) - nll(lambda _: best, log_probs, labels)
    assert nll(found, log_probs, labels) - nll(lambda _: best, log_probs, labels) < 0.15 * gap


@pytest.mark.slow
def test_the_demo_network_gains_from_a_scale_and_a_bias_for_each_class():
    """Its two halves, one fitted on the other in turn: about 0.006 from the vector, more from the matrix."""
    halves, found = [pm.predict(pm.demo.network(), half) for half in pm.demo.data()], {}
    for name in CALIBRATORS:
        losses = []
        for fitted_on, others in (halves, halves[::-1]):
            calibrator = fit_calibrator_on(name, fitted_on.log_probs, fitted_on.labels, CATEGORICAL)
            losses.append(nll(calibrator, others.log_probs, others.labels))
        found[name] = sum(losses) / 2
    assert found["vector"] < found["temperature"] - 0.004
    assert found["matrix"] < found["vector"]
