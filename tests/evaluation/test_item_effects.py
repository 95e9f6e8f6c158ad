"""Who is helped and who is hurt."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import peppermill as pm
from peppermill.calibrators.temperature import Temperature
from peppermill.evaluation.item_effects import effects_of
from peppermill.likelihood import Categorical, Gaussian
from peppermill.passes import MemberPass
from peppermill.predictions import Predictions
from peppermill.report.thumbnail import thumbnail

# Four items of three classes: probabilities of the network, and of two members.
NETWORK = [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.5, 0.4, 0.1]]
MEMBERS = [
    [[0.5, 0.3, 0.2], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.3, 0.6, 0.1]],
    [[0.3, 0.5, 0.2], [0.4, 0.5, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]],
]
LABELS = torch.tensor([0, 1, 2, 0])


def passed(temperature=1.0, count=6):
    network, members = (torch.tensor(values, dtype=torch.float64) for values in (NETWORK, MEMBERS))
    rows = members.gather(2, LABELS.expand(2, -1)[..., None]).squeeze(2).log()
    likelihood = Categorical()
    predictions = Predictions(network.log(), LABELS, likelihood.log_likelihoods(network.log(), LABELS), likelihood)
    found = MemberPass(0.1, rows, members.mean(dim=0).log(), LABELS, torch.arange(len(LABELS)))
    return effects_of(predictions, found, Temperature(temperature), count)


def test_four_items_by_hand():
    """The true class goes 0.7 -> 0.4, 0.3 -> 0.6, 0.8 -> 0.8 and 0.5 -> 0.2."""
    found = passed()
    assert [(e.item, e.label, e.before, e.after) for e in found.helped] == [(1, 1, 0, 1)]
    assert [e.item for e in found.hurt] == [3, 0]
    helped, hurt = found.helped[0], found.hurt[0]
    assert (helped.network, helped.ensemble, helped.gain) == pytest.approx((0.3, 0.6, 0.3))
    assert helped.members == pytest.approx((0.7, 0.5))
    assert (hurt.network, hurt.ensemble) == pytest.approx((0.5, 0.2))
    assert (found.items, found.gained, found.lost) == (4, 1, 2)
    assert (found.corrected, found.spoiled) == (1, 1)


def test_classes_by_hand():
    """Class 0 has two items: -(ln 0.7 + ln 0.5) / 2 before and -(ln 0.4 + ln 0.2) / 2 after."""
    classes = passed().classes
    assert classes.items.tolist() == [2, 1, 1]
    assert float(classes.network[0]) == pytest.approx(-(math.log(0.7) + math.log(0.5)) / 2)
    assert float(classes.ensemble[0]) == pytest.approx(-(math.log(0.4) + math.log(0.2)) / 2)
    assert classes.network[1:].tolist() == pytest.approx([-math.log(0.3), -math.log(0.8)])


def test_only_as_many_as_asked_for():
    assert [e.item for e in passed(count=1).hurt] == [3]
    assert passed(count=0).helped == ()


def test_a_temperature_moves_the_ensemble_and_not_the_members():
    """p = (0.3, 0.6, 0.1) at T = 2 is proportional to its square root."""
    found = passed(temperature=2.0)
    second = next(e for e in (*found.helped, *found.hurt) if e.item == 1)
    roots = [math.sqrt(p) for p in (0.3, 0.6, 0.1)]
    assert second.ensemble == pytest.approx(roots[1] / sum(roots))
    assert second.members == pytest.approx((0.7, 0.5))


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    with torch.no_grad():
        network[1].weight.mul_(4)
    images, labels = torch.rand(50, 3, 2, 2), torch.randint(3, (50,))
    return pm.fit(network, (images, labels), size=4), images, labels


def test_a_real_ensemble_shows_its_own_members(fitted):
    """The ensemble's probability is the mean of its members' (eq. 9), and each is what the members say alone."""
    pep, images, labels = fitted
    assert pep.sigma > 0
    found = pm.helped_and_hurt(pep, (images, labels), count=3)
    assert len(found.helped) == len(found.hurt) == 3
    for effect in (*found.helped, *found.hurt):
        alone = pep.member_log_probs(images[effect.item : effect.item + 1])[:, 0, effect.label].exp()
        assert effect.members == pytest.approx(alone.tolist(), rel=1e-5)
        assert effect.ensemble == pytest.approx(sum(effect.members) / 4)


@pytest.mark.parametrize("sizes", [(50,), (17, 1, 32)])
def test_each_item_has_its_own_picture_whatever_the_batches(fitted, sizes):
    pep, images, labels = fitted
    batches = list(zip(images.split(sizes), labels.split(sizes), strict=True))
    found = pm.helped_and_hurt(pep, batches)
    for effect in (*found.helped, *found.hurt):
        assert effect.image == thumbnail(images[effect.item])


def test_pictures_can_be_left_out(fitted):
    pep, images, labels = fitted
    found = pm.helped_and_hurt(pep, (images, labels), images=False)
    assert {effect.image for effect in (*found.helped, *found.hurt)} == {None}


def test_pixels_with_labels_of_their_own_have_no_picture():
    """In a segmentation an item is a pixel, and no input is its image."""
    torch.manual_seed(0)
    network = nn.Conv2d(3, 4, 1).eval()
    with torch.no_grad():
        network.weight.mul_(9)
    data = torch.rand(2, 3, 5, 5), torch.randint(4, (2, 5, 5))
    found = pm.helped_and_hurt(pm.fit(network, data, size=4), data)
    assert (found.items, len(found.helped)) == (50, 6)
    assert {effect.image for effect in (*found.helped, *found.hurt)} == {None}


def test_without_noise_nobody_changes(fitted):
    pep, images, labels = fitted
    still = pm.PepEnsemble(pep.model, replace(pep.recipe, sigma=0.0))
    found = pm.helped_and_hurt(still, (images, labels))
    assert (found.helped, found.hurt, found.gained, found.lost) == ((), (), 0, 0)


def test_a_regression_is_refused():
    empty = Predictions(torch.zeros(1, 2), torch.zeros(1), torch.zeros(1), Gaussian())
    with pytest.raises(ValueError, match="a regression has none"):
        effects_of(empty, MemberPass(0.1, torch.zeros(2, 1), torch.zeros(1, 2), torch.zeros(1), torch.zeros(1)))
