"""A weight that the network holds in more places than one is the member's in all of them; writes never last."""

import copy

import pytest
import torch
from torch import nn

import peppermill as pm
from stress.odd_networks import NETWORKS
from stress.reference import digest, member_log_probs

HELD_TWICE = (
    *("a parameter as a plain attribute", "parameters in a list", "an object that holds a parameter"),
    *("a partial that holds a parameter", "a view of a weight, made once", "a buffer that is part of a weight"),
)


@pytest.mark.parametrize("engine", ["auto", "loop", "vmap"])
@pytest.mark.parametrize("name", HELD_TWICE)
def test_every_holder_of_a_weight_gets_the_members(name, engine):
    model, x = NETWORKS[name]()
    before = digest(model)
    pep = pm.PepEnsemble.at_sigma(model, 0.3, size=3, engine=engine)
    expected = member_log_probs(lambda: NETWORKS[name]()[0], pep, x)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(pep.member_log_probs(x), expected)
    torch.testing.assert_close(pep.member_log_probs(x), expected)  # with gradients
    assert digest(model) == before


@pytest.mark.parametrize("name", ["parameters in a list", "a view of a weight, made once"])
def test_gradients_reach_a_weight_that_is_held_twice(name):
    model, x = NETWORKS[name]()
    pm.PepEnsemble.at_sigma(model, 0.3, size=2)(x).sum().backward()
    assert model.first.weight.grad.abs().sum() > 0


def test_a_write_to_a_weight_that_changes_nothing_at_first_is_noticed():
    """The average begins as a copy of the layer, so the unperturbed network writes the values that are there."""

    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.average = copy.deepcopy(self.layer).requires_grad_(False)

        def forward(self, x):
            with torch.no_grad():
                self.average.weight.lerp_(self.layer.weight, 0.5)
            return self.average(x)

    torch.manual_seed(0)
    model, x = Average().double().eval(), torch.randn(5, 4).double()
    pep = pm.PepEnsemble.at_sigma(model, 0.3, size=2)
    noise = [pep.recipe.noise.draw(name, 1, model.layer.weight) for name in ("layer.weight", "average.weight")]
    moved = model.layer.weight.detach() + 0.3 * (noise[0] + noise[1]) / 2  # lerp by a half
    expected = (x @ moved.T + model.average.bias).log_softmax(dim=1)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(pep.member_log_probs(x)[1], expected)
