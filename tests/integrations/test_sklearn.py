"""`PepClassifier`: what scikit-learn asks of a classifier, and what `pm.fit` gives, under labels of any type."""

import pickle
import sys
import warnings

import matplotlib
import networks
import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibrationDisplay
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import validate_data
from torch import nn

import peppermill as pm

quiet = pytest.mark.filterwarnings("ignore::peppermill.PepWarning")


class Trained(pm.PepClassifier):
    """Trains a small network on (X, y) first: scikit-learn's checks bring data of many shapes and no network."""

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        labels = np.unique(y, return_inverse=True)[1]
        self.model = trained(torch.tensor(X, dtype=torch.float64), torch.tensor(labels))
        try:
            return super().fit(X, y)
        finally:
            self.model = None


class Standardized(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.register_buffer("mean", inputs.mean(dim=0))
        self.register_buffer("deviation", inputs.std(dim=0, correction=0) + 1e-9)

    def forward(self, inputs):
        return (inputs - self.mean) / self.deviation


def trained(inputs, labels):
    """One hidden layer on standardized features, a hundred steps of Adam on all items."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        network = nn.Sequential(
            Standardized(inputs),
            nn.Linear(inputs.shape[1], 16, dtype=torch.float64),
            nn.ReLU(),
            nn.Linear(16, max(2, int(labels.max()) + 1), dtype=torch.float64),
        )
        optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
        for _ in range(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), labels).backward()
            optimizer.step()
    network.zero_grad()
    return network.eval()


@quiet
@pytest.mark.slow
@parametrize_with_checks([Trained(size=2, iterations=2)])
def test_the_checks_of_scikit_learn_pass_all_of_them(estimator, check):
    check(estimator)


def arrays(data):
    return data[0].numpy(), data[1].numpy()


@pytest.fixture
def strings():
    return np.array(["ant", "bee", "cat"])


# Around a network


@quiet
@pytest.mark.parametrize("temperature", [False, True])
def test_the_probabilities_are_those_of_calibrate_or_of_fit(overfitted, temperature):
    model, validation, test = overfitted
    found = pm.PepClassifier(model, size=4, seed=3, temperature=temperature).fit(*arrays(validation))
    noise = pm.Noise(seed=3)
    expected = (
        pm.calibrate(model, validation, 4, noise=noise)
        if temperature
        else pm.fit(model, validation, size=4, noise=noise)
    )
    assert (found.pep_.sigma, found.pep_.temperature) == (expected.sigma, expected.temperature)
    probabilities = found.predict_proba(test[0].numpy())
    np.testing.assert_allclose(probabilities, expected.predict_proba(test[0]).detach(), rtol=1e-4)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(found.predict_log_proba(test[0].numpy())), probabilities, rtol=1e-12)
    np.testing.assert_array_equal(found.predict(test[0].numpy()), probabilities.argmax(axis=1))
    assert found.score(*arrays(test)) == accuracy_score(arrays(test)[1], found.predict(test[0].numpy()))
    assert (found.n_features_in_, found.classes_.tolist()) == (6, [0, 1, 2])


@quiet
def test_every_option_of_fit_arrives(overfitted):
    model, validation, _ = overfitted
    shared = {"parameters": "last_layer", "size": 3, "batch_size": 7}
    noise = {"noise": "uniform", "antithetic": False, "seed": 5}
    search = {"lower": 0.01, "upper": 0.4, "iterations": 3}
    found = pm.PepClassifier(model, temperature=False, **shared, **noise, **search).fit(*arrays(validation)).pep_
    settings = {"noise": pm.Noise("uniform", antithetic=False, seed=5), "search": pm.Golden(**search)}
    assert found.recipe == pm.fit(model, validation, **shared, **settings).recipe


def test_labels_are_sorted_where_no_classes_are_named(overfitted, strings):
    model, validation, test = overfitted
    inputs, labels = arrays(validation)
    numbers = pm.PepClassifier(model, size=2, temperature=False).fit(inputs, labels)
    named = pm.PepClassifier(model, size=2, temperature=False).fit(inputs, strings[labels])
    assert named.classes_.tolist() == ["ant", "bee", "cat"]
    np.testing.assert_array_equal(named.predict(test[0]), strings[numbers.predict(test[0])])
    np.testing.assert_array_equal(named.predict_proba(test[0]), numbers.predict_proba(test[0]))


@pytest.mark.parametrize("kind", [str, object])
def test_classes_are_in_the_order_of_the_outputs_and_columns_in_the_order_of_labels(overfitted, kind):
    """scikit-learn takes the columns to be in sorted order (`log_loss`, `cross_val_predict`)."""
    model, validation, test = overfitted
    classes = np.array(["cat", "ant", "bee"], dtype=kind)
    inputs, labels = arrays(validation)
    options = {"size": 2, "temperature": False}
    numbers = pm.PepClassifier(model, **options).fit(inputs, labels)
    named = pm.PepClassifier(model, classes=classes.tolist(), **options).fit(inputs, classes[labels])
    assert named.classes_.tolist() == ["ant", "bee", "cat"]
    probabilities = numbers.predict_proba(test[0])[:, [1, 2, 0]]
    np.testing.assert_array_equal(named.predict_proba(test[0]), probabilities)
    np.testing.assert_array_equal(named.predict(test[0]), np.sort(classes)[probabilities.argmax(axis=1)])
    expected = -pm.predict(named.pep_, test).log_likelihoods.mean()
    assert log_loss(classes[test[1]], named.predict_proba(test[0])) == pytest.approx(float(expected), rel=1e-5)


def test_labels_that_y_has_not_are_named_by_classes(overfitted):
    model, (inputs, labels), test = overfitted
    some = labels != 1
    with pytest.warns(pm.PepWarning, match="1 of 3 classes do not occur"):
        found = pm.PepClassifier(model, size=2, classes=range(3)).fit(inputs[some].numpy(), labels[some].numpy())
    assert found.classes_.tolist() == [0, 1, 2]
    assert found.predict_proba(test[0]).shape == (len(test[0]), 3)


@pytest.mark.parametrize(
    ("classes", "labels", "match"),
    [
        (
            None,
            [0, 2],
            r"`y` has 2 different labels, and the network has 3 outputs: give `classes=\[...\]`, .*range\(3",
        ),
        (None, [0, 1, 2, 3], "`y` has 4 different labels, and the network has 3 outputs"),
        (["a", "b"], ["a", "b"], "`classes` names 2 labels, and the network has 3 outputs"),
        (["a", "b", "c"], ["a", "d", "e"], "`y` has labels that are not in `classes`: 'd', 'e'"),
        (["a", "b", "a"], ["a", "b"], r"`classes=\['a', 'b', 'a'\]` must be a list of labels, each of them once"),
        (None, ["a"], r"there is one class only, \['a'\]: a classifier needs at least two classes"),
    ],
)
def test_labels_and_outputs_that_do_not_match_are_refused_with_the_cure(mlp, classes, labels, match):
    inputs, _ = networks.items(12)
    with pytest.raises(ValueError, match=match):
        pm.PepClassifier(mlp, classes=classes).fit(inputs.numpy(), np.resize(labels, 12))


@pytest.mark.parametrize("flat", [False, True])
def test_one_logit_stands_for_the_second_of_two_classes(overfitted, flat):
    """The same network with the logits (0, z) is the same classifier: p = 1 / (1 + exp(-z))."""
    model, (inputs, labels), (new, _) = overfitted

    class One(nn.Module):
        def __init__(self, pair):
            super().__init__()
            self.inner, self.pair = model, pair

        def forward(self, x):
            logit = self.inner(x)[:, 1] - self.inner(x)[:, 0]
            return torch.stack([0 * logit, logit], dim=1) if self.pair else logit if flat else logit[:, None]

    y = np.where(labels == 1, "yes", "no")
    one, two = (pm.PepClassifier(One(pair).eval(), size=2, temperature=False).fit(inputs, y) for pair in (False, True))
    assert one.pep_.sigma == pytest.approx(two.pep_.sigma)
    assert one.classes_.tolist() == ["no", "yes"]
    np.testing.assert_allclose(one.predict_proba(new), two.predict_proba(new), rtol=1e-4, atol=1e-7)


def test_images_go_in_as_they_are(cnn, images):
    with pytest.warns(pm.PepWarning):
        found = pm.PepClassifier(cnn, size=2, temperature=False).fit(*arrays(images))
    assert found.predict_proba(images[0].numpy()).shape == (20, 3)


@quiet
def test_whole_numbers_are_computed_with_or_looked_up(mlp):
    inputs = np.arange(60).reshape(10, 6) % 7
    labels = np.arange(10) % 3
    found = pm.PepClassifier(mlp, size=2, temperature=False).fit(inputs, labels)
    np.testing.assert_array_equal(found.predict(inputs), found.predict(inputs.astype(np.float32)))
    table = networks.seeded(lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(24, 3)))
    found = pm.PepClassifier(table, size=2, temperature=False).fit(inputs, labels)
    assert found.predict_proba(inputs).shape == (10, 3)


@quiet
def test_the_network_is_untouched_and_training_mode_refused(cnn, images):
    before = networks.snapshot(cnn)
    pm.PepClassifier(cnn, size=2).fit(*arrays(images)).predict(images[0].numpy())
    networks.assert_untouched(cnn, before)
    cnn.train()
    before = networks.snapshot(cnn)
    with pytest.raises(ValueError, match=r"in training mode: call `model.eval\(\)` first"):
        pm.PepClassifier(cnn).fit(*arrays(images))
    networks.assert_untouched(cnn, before)


def test_a_model_that_is_none_and_outputs_that_are_no_classes_are_refused(data):
    with pytest.raises(TypeError, match=r"`model` is a str: give a trained torch.nn.Module, as in `PepClassifier\(mod"):
        pm.PepClassifier("resnet50").fit(*arrays(data))
    with pytest.raises(TypeError, match=r"`model` is None: give a trained torch.nn.Module"):
        pm.PepClassifier().fit(*arrays(data))
    with pytest.raises(ValueError, match=r"outputs have shape \[1, 3, 4\] for one item: a classifier gives \[1, cl"):
        pm.PepClassifier(networks.seeded(lambda: nn.Unflatten(1, (3, 4)))).fit(np.ones((6, 12)), [0, 1, 2] * 2)


def test_a_temperature_that_few_items_do_not_determine_is_left_out(mlp):
    """Every item right: the likelihood grows as T falls, and no T is the best."""
    inputs, _ = networks.items(30)
    labels = mlp(inputs).argmax(dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "noise does not help|L.sigma. has more|1 of 3 classes do not occur")
        found = pm.PepClassifier(mlp, size=2, classes=range(3)).fit(inputs.numpy(), labels.numpy())
    with pytest.warns(pm.PepWarning, match="the best temperature is 1/20"):
        assert pm.fit(mlp, (inputs, labels), size=2, temperature=True).temperature == pytest.approx(0.05, rel=1e-3)
    assert found.pep_.temperature == 1


def test_at_equal_likelihood_one_pass_wins():
    """The labels are drawn from the network's own probabilities at T = 3, so that noise has nothing to add."""
    mlp = networks.seeded(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)))
    inputs = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mlp[-1].weight.mul_(20)
        probabilities = (mlp(inputs) / 3).softmax(dim=1)
    labels = torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(4))[:, 0]
    both = pm.fit(mlp, (inputs, labels), size=4, temperature=True)
    gains = (
        pm.predict(both, (inputs, labels)).log_likelihoods - pm.predict(both.one_pass, (inputs, labels)).log_likelihoods
    )
    assert both.sigma > 0
    assert gains.mean() < gains.std() / 20  # the standard error of 400 items
    found = pm.PepClassifier(mlp, size=4, classes=range(3)).fit(inputs.numpy(), labels.numpy()).pep_
    assert (found.passes, found.method) == (1, "temperature scaling")
    assert found.temperature == pytest.approx(pm.fit_temperature(mlp, (inputs, labels)).temperature, rel=1e-4)


@quiet
def test_with_a_search_of_ones_own_one_pass_still_wins_unless_members_pay(overfitted):
    model, validation, _ = overfitted
    found = pm.PepClassifier(model, size=4, search="golden", iterations=3).fit(*arrays(validation)).pep_
    both = pm.fit(model, validation, size=4, search=pm.Golden(iterations=3), temperature=True)
    gains = pm.predict(both, validation).log_likelihoods - pm.predict(both.one_pass, validation).log_likelihoods
    expected = both if gains.mean() > gains.std(correction=0) / len(gains) ** 0.5 else both.one_pass
    assert (found.sigma, found.temperature) == (expected.sigma, expected.temperature)


@pytest.mark.parametrize("size", [0, 2.5])
def test_a_wrong_size_is_refused_by_its_own_name(mlp, size):
    inputs, labels = networks.items(30)
    with pytest.raises(ValueError, match=f"`size={size}` must be a whole number of members"):
        pm.PepClassifier(mlp, size=size, classes=range(3)).fit(inputs.numpy(), labels.numpy())


# As a part of scikit-learn


def test_a_clone_has_the_same_settings_and_nothing_fitted(mlp):
    found = pm.PepClassifier(mlp, size=3, classes=["a", "b", "c"])
    again = clone(found)
    assert is_classifier(again)
    assert again.get_params().keys() == found.get_params().keys()
    assert again.get_params()["size"] == 3
    assert again.set_params(size=4, parameters="all").get_params()["parameters"] == "all"
    assert not hasattr(again, "pep_")
    assert again.model is not mlp
    assert all(torch.equal(again.model.state_dict()[name], value) for name, value in mlp.state_dict().items())
    assert found.size == 3


def test_a_pickle_predicts_the_same(overfitted):
    model, validation, test = overfitted
    found = pm.PepClassifier(model, size=2, temperature=False).fit(*arrays(validation))
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict_proba(test[0]), found.predict_proba(test[0]))


def test_it_works_in_cross_validation_with_strings(overfitted, strings):
    """The mean over three folds, each by hand: tuned on two thirds, scored on the rest."""
    model, validation, _ = overfitted
    inputs, labels = arrays(validation)
    splits = [(np.arange(300) % 3 != k, np.arange(300) % 3 == k) for k in range(3)]
    classifier = pm.PepClassifier(model, size=2, temperature=False)
    found = cross_val_score(classifier, inputs, strings[labels], cv=splits, scoring="neg_log_loss")
    for (tuned, scored), score in zip(splits, found, strict=True):
        pep = pm.fit(model, (torch.from_numpy(inputs[tuned]), torch.from_numpy(labels[tuned])), size=2)
        expected = pm.predict(pep, (inputs[scored], labels[scored])).log_likelihoods.mean()
        assert score == pytest.approx(float(expected), rel=1e-4)


@quiet
def test_it_works_in_a_pipeline_and_a_grid_search(overfitted):
    model, validation, _ = overfitted
    inputs, labels = arrays(validation)
    line = make_pipeline(StandardScaler(), pm.PepClassifier(model, size=1, iterations=3, temperature=False))
    search = GridSearchCV(line, {"pepclassifier__size": [1, 4]}, cv=2, scoring="neg_log_loss").fit(inputs, labels)
    assert search.best_estimator_[-1].pep_.size == search.best_params_["pepclassifier__size"]
    scaled = torch.as_tensor(StandardScaler().fit_transform(inputs), dtype=torch.float32)
    expected = pm.fit(
        model,
        (scaled, torch.as_tensor(labels)),
        size=search.best_params_["pepclassifier__size"],
        search=pm.Golden(iterations=3),
    )
    assert search.best_estimator_[-1].pep_.sigma == pytest.approx(expected.sigma, rel=1e-6)


def test_it_works_in_a_calibration_display(overfitted):
    """Its points are the frequencies and the mean probabilities of the bins (lower, upper], by hand."""
    matplotlib.use("Agg")
    model, validation, test = overfitted
    binary = networks.seeded(lambda: nn.Sequential(model, nn.Linear(3, 2)))
    y, new = (validation[1] == 0).numpy().astype(int), (test[1] == 0).numpy().astype(int)
    found = pm.PepClassifier(binary, size=2, temperature=False).fit(validation[0].numpy(), y)
    shown = CalibrationDisplay.from_estimator(found, test[0].numpy(), new, n_bins=4)
    yes = found.predict_proba(test[0].numpy())[:, 1]
    bins = [(yes > k / 4) & (yes <= (k + 1) / 4) for k in range(4)]
    np.testing.assert_allclose(shown.prob_true, [new[chosen].mean() for chosen in bins if chosen.any()])
    np.testing.assert_allclose(shown.prob_pred, [yes[chosen].mean() for chosen in bins if chosen.any()])


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "peppermill.integrations.sklearn")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ImportError, match=r'PepClassifier needs scikit-learn .* `pip install "peppermill\[sklearn\]"`'):
        pm.PepClassifier  # noqa: B018
