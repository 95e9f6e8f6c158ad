"""Prediction sets: a PepClassifier and a PepEnsemble inside MAPIE, which promise to hold the label 9 times in 10."""

from __future__ import annotations

import networks
import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin

import peppermill as pm

mapie = pytest.importorskip("mapie.classification")


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
def test_sets_hold_the_label_as_often_as_promised(problem, form, score):
    classifier, inputs, labels = problem
    estimator = classifier if form == "classifier" else Wrapped(classifier.pep_, networks.CLASSES)
    conformal = mapie.SplitConformalClassifier(
        estimator, confidence_level=0.9, conformity_score=score, prefit=True, random_state=0
    )
    conformal.conformalize(inputs[:200].numpy(), labels[:200].numpy())
    predicted, sets = conformal.predict_set(inputs[200:].numpy())
    held = sets[np.arange(len(predicted)), labels[200:].numpy(), 0]
    assert abs(held.mean() - 0.9) < 4 * np.sqrt(0.09 / 200 + 0.09 / 200), "beyond four standard errors"
    np.testing.assert_array_equal(predicted, classifier.predict(inputs[200:].numpy()))
