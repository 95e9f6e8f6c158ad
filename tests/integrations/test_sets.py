"""Prediction sets that hold the label 9 times in 10: a PepClassifier and a PepEnsemble inside MAPIE and TorchCP."""

from __future__ import annotations

import sys
from types import ModuleType

import networks
import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch.utils.data import DataLoader, TensorDataset

import peppermill as pm


def assert_held(held):
    """200 items to conform on and 200 to test on, each with its own standard error; four of them are allowed."""
    assert abs(float(held.mean()) - 0.9) < 4 * np.sqrt(0.09 / 200 + 0.09 / 200)


@pytest.fixture(scope="module")
def problem():
    """A network, its ensemble and classifier, and 600 further items, half of them to conform on."""
    model, (inputs, labels), test = networks.overfitted()
    classifier = pm.PepClassifier(model, size=4).fit(inputs[:200].numpy(), labels[:200].numpy())
    inputs, labels = torch.cat([inputs[200:], test[0]]), torch.cat([labels[200:], test[1]])
    return classifier, inputs, labels


class Wrapped(ClassifierMixin, BaseEstimator):
    """A PepEnsemble as scikit-learn sees it, as the page on uncertainty shows."""

    def __init__(self, pep, classes):
        self.pep, self.classes_ = pep, np.arange(classes)

    def __sklearn_is_fitted__(self):
        return True

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return self.pep.predict_proba(torch.as_tensor(X)).double().numpy()

    def predict(self, X):
        return self.predict_proba(X).argmax(axis=1)


@pytest.mark.parametrize("form", ["classifier", "ensemble"])
@pytest.mark.parametrize("score", ["lac", "aps"])
def test_mapies_sets_hold_the_label_as_often_as_promised(problem, form, score):
    mapie = pytest.importorskip("mapie.classification")
    classifier, inputs, labels = problem
    estimator = classifier if form == "classifier" else Wrapped(classifier.pep_, networks.CLASSES)
    conformal = mapie.SplitConformalClassifier(
        estimator, confidence_level=0.9, conformity_score=score, prefit=True, random_state=0
    )
    conformal.conformalize(inputs[:200].numpy(), labels[:200].numpy())
    predicted, sets = conformal.predict_set(inputs[200:].numpy())
    assert_held(sets[np.arange(len(predicted)), labels[200:].numpy(), 0])
    np.testing.assert_array_equal(predicted, classifier.predict(inputs[200:].numpy()))


@pytest.mark.filterwarnings("ignore:The 'temperature' parameter:DeprecationWarning")  # TorchCP's own default
@pytest.mark.parametrize("score", ["LAC", "APS"])
def test_torchcps_sets_hold_the_label_as_often_as_promised(problem, score, monkeypatch):
    """The ensemble takes the place of the network: its log-probabilities are valid logits."""
    torchsort = ModuleType("torchsort")  # without a CUDA compiler it cannot be installed; one training loss needs it
    torchsort.soft_rank = torchsort.soft_sort = None
    monkeypatch.setitem(sys.modules, "torchsort", torchsort)
    torchcp = pytest.importorskip("torchcp.classification", exc_type=ImportError)
    classifier, inputs, labels = problem
    predictor = torchcp.SplitPredictor(
        getattr(torchcp, score)(), classifier.pep_, alpha=0.1, device=torch.device("cpu")
    )
    predictor.calibrate(DataLoader(TensorDataset(inputs[:200], labels[:200]), batch_size=64))
    sets = predictor.predict(inputs[200:])
    assert_held(sets[torch.arange(len(sets)), labels[200:]].double())
