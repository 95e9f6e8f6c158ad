"""Ensembles whose numbers are given instead of fitted."""

import pytest
from torch import nn

import peppermill as pm
from peppermill.calibrators.temperature import Temperature
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.recipe import Recipe, fingerprint
from peppermill.tuning.result import Evaluation, SigmaSearch


@pytest.fixture
def ensemble():
    def build(model, sigma=0.2, size=3, temperature=1.0, likelihood=None):
        search = SigmaSearch((Evaluation(sigma, -1.0, temperature, -1.0),), 0.0, 1.0, 20, False)
        selected, chosen = tuple(select(model, "kernels")), likelihood or pm.Categorical()
        own = fingerprint(nn.Module())  # only `save` and `load` compare it
        recipe = Recipe(sigma, size, Noise(), "kernels", selected, chosen, Temperature(temperature), search, own)
        return pm.PepEnsemble(model, recipe)

    return build
