from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from peppermill.data import Batches
from peppermill.engines import engine_named
from peppermill.likelihood import Bernoulli, Categorical, Gaussian
from peppermill.noise import Noise
from peppermill.passes import Request
from peppermill.perturbation import Perturbation
from peppermill.tuning.subsample import cut_subsample


def sample_of(data, log_likelihoods, likelihood):
    """A subsample is cut by the network's log-likelihoods alone: no network runs."""
    perturbation = Perturbation({"weight": torch.ones(1)}, Noise(), 2)
    request = Request(nn.Identity(), perturbation, likelihood, engine_named("loop"), data)
    return cut_subsample(request, log_likelihoods)


def chosen(sample):
    return torch.cat([inputs for inputs, _ in sample.data]).long()


def surprising(count, seed=0):
    """Log-likelihoods of a network that is mostly sure and right, and sometimes very wrong."""
    return -(torch.empty(count).exponential_(generator=torch.Generator().manual_seed(seed)) ** 3)


def test_of_equally_surprising_examples_every_sixteenth_is_taken():
    data = Batches((torch.arange(3200), torch.zeros(3200, dtype=torch.long)))
    sample = sample_of(data, torch.full((3200,), -0.5), Categorical())
    assert torch.equal(chosen(sample).diff(), torch.full((199,), 16))
    assert sample.weights == pytest.approx(torch.full((200,), 16.0))
    assert sample.share == 1 / 16


@pytest.mark.parametrize("count", [500, 777, 1600, 5000])
def test_the_part_is_a_sixteenth_but_no_fewer_than_a_hundred(count):
    """As many as the chances sum up to; those that are capped at 1 make it fewer."""
    data = Batches((torch.arange(count), torch.zeros(count, dtype=torch.long)))
    sample = sample_of(data, surprising(count), Categorical())
    wanted = max(count / 16, 100)
    assert 0.7 * wanted <= len(sample.weights) <= wanted + 1
    assert sample.share == len(sample.weights) / count


def test_weights_are_one_over_chances_and_estimate_sums_over_all():
    """Averaged over where the walk begins (the data rotated), each example's weight times its chance is one.

    Rotating moves the walk by each chance in turn, not evenly, so the average is one only within the largest chance.
    """
    values = surprising(600, seed=3)
    totals = []
    for shift in range(600):
        rolled = values.roll(shift)
        data = Batches((torch.arange(600), torch.zeros(600, dtype=torch.long)))
        sample = sample_of(data, rolled, Categorical())
        totals.append(float((sample.weights * rolled[chosen(sample)]).sum()))
    assert sum(totals) / 600 == pytest.approx(float(values.double().sum()), rel=0.01)


def test_the_most_surprising_example_is_always_there_with_weight_one():
    values = torch.full((2000,), -1e-4)
    values[1234] = -50.0
    data = Batches((torch.arange(2000), torch.zeros(2000, dtype=torch.long)))
    sample = sample_of(data, values, Categorical())
    place = chosen(sample).tolist().index(1234)
    assert sample.weights[place] == 1
    assert sample.weights.max() > 10


def test_data_sorted_by_class_are_represented():
    labels = torch.arange(10).repeat_interleave(320)
    sample = sample_of(Batches((torch.arange(3200), labels)), torch.full((3200,), -1.0), Categorical())
    counts = torch.cat([found for _, found in sample.data]).bincount()
    assert counts.tolist() == [20] * 10


@pytest.mark.parametrize("batch_size", [1, 7, 500, 5000])
def test_batches_do_not_matter(batch_size):
    def of(size):
        data = Batches((torch.arange(800), torch.zeros(800, dtype=torch.long)), batch_size=size)
        return sample_of(data, surprising(800), Categorical())

    sample, expected = of(batch_size), of(64)
    assert torch.equal(chosen(sample), chosen(expected))
    assert sample.weights == pytest.approx(expected.weights, rel=1e-9)
    assert all(len(labels) <= max(batch_size, 1) for _, labels in sample.data)


def test_a_subsample_takes_no_more_memory_than_is_allowed(monkeypatch):
    inputs, labels = (
        torch.arange(1600).double()[:, None].expand(-1, 8).contiguous(),
        torch.zeros(1600, dtype=torch.long),
    )
    whole = sample_of(Batches((inputs, labels), batch_size=100), surprising(1600), Categorical())
    monkeypatch.setattr("peppermill.tuning.subsample.MEMORY_BYTES", 3_200)
    tight = sample_of(Batches((inputs, labels), batch_size=100), surprising(1600), Categorical())
    assert sum(batch.nbytes for batch, _ in tight.data) <= 3_200
    assert len(tight.weights) < len(whole.weights)


def test_pixels_belong_to_their_image_and_ignored_ones_do_not_count():
    """Images of 4 pixels; of every third one all pixels are ignored, of every second one two of them."""
    labels = torch.zeros(900, 2, 2, dtype=torch.long)
    labels[::2, 0] = 255
    labels[::3] = 255
    counted = (labels != 255).sum(dim=(1, 2))
    likelihood = Categorical(ignored_label=255)
    data = Batches((torch.arange(900), labels), batch_size=50)
    sample = sample_of(data, surprising(int(counted.sum())), likelihood)
    found = chosen(sample)
    assert not bool((found % 3 == 0).any())
    assert len(sample.weights) == int(counted[found].sum())
    owners = torch.repeat_interleave(torch.arange(len(found)), counted[found])
    for image in range(len(found)):
        assert len(sample.weights[owners == image].unique()) == 1


@pytest.mark.parametrize(
    ("labels", "likelihood"),
    [
        (torch.zeros(600, 1), Bernoulli()),
        (torch.zeros(600, 3), Bernoulli()),
        (torch.zeros(600, 1), Gaussian()),
        (torch.zeros(600), Gaussian()),
        (torch.zeros(600, 5, dtype=torch.long), Categorical(class_dimension=-1)),
    ],
)
def test_every_likelihood_says_which_items_an_example_has(labels, likelihood):
    data = Batches((torch.arange(600), labels))
    values = surprising(labels.numel()) + 3.0  # densities may be above one
    sample = sample_of(data, values, likelihood)
    each = labels.numel() // 600
    assert len(sample.weights) == each * len(chosen(sample))
    assert sample.weights == pytest.approx(sample.weights[::each].repeat_interleave(each))


def test_dicts_and_tuples_of_inputs_are_cut_by_the_same_examples():
    rows = torch.arange(600)
    batches = [
        {"x": (rows[k : k + 20, None], -rows[k : k + 20]), "flag": True, "labels": rows[k : k + 20] % 3}
        for k in range(0, 600, 20)
    ]
    sample = sample_of(Batches(batches), surprising(600), Categorical())
    for inputs, labels in sample.data:
        assert torch.equal(inputs["x"][0][:, 0], -inputs["x"][1])
        assert torch.equal(inputs["x"][0][:, 0] % 3, labels)
        assert inputs["flag"] is True
        assert len(labels) <= 20


def test_texts_of_different_lengths_stay_apart():
    lengths = [3, 3, 5, 5, 5, 4]
    batches = [(torch.ones(100, length), torch.zeros(100, dtype=torch.long)) for length in lengths]
    sample = sample_of(Batches(batches), torch.full((600,), -1.0), Categorical())
    assert [tuple(inputs.shape) for inputs, _ in sample.data] == [(17, 3), (16, 3), (25, 5), (25, 5), (17, 4)]


@pytest.mark.parametrize(
    ("examples", "batch_size", "sizes"),
    [(600, 500, [25] * 4), (6400, 500, [50] * 8), (6480, 500, [51] * 7 + [48]), (6400, 41, [40] * 10), (1600, 7, None)],
)
def test_the_batches_are_even_so_that_several_processes_can_share_them(examples, batch_size, sizes):
    """About eight, none smaller than 32 examples unless the data come in smaller ones."""
    data = Batches((torch.zeros(examples), torch.zeros(examples, dtype=torch.long)), batch_size=batch_size)
    sample = sample_of(data, torch.full((examples,), -1.0), Categorical())
    assert [len(labels) for _, labels in sample.data] == (sizes or [7] * 14 + [2])


@pytest.mark.parametrize(
    "batches",
    [
        [(torch.zeros(20), torch.zeros(20, dtype=torch.long))],
        [(torch.zeros(499), torch.zeros(499, dtype=torch.long))],
        [(torch.zeros(7, 50, 2), torch.zeros(50, dtype=torch.long))] * 20,  # time first
        [({"x": torch.zeros(50), "text": ["a"] * 50}, torch.zeros(50, dtype=torch.long))] * 20,
        [({"x": torch.zeros(50), "weight": torch.tensor(1.0)}, torch.zeros(50, dtype=torch.long))] * 20,
    ],
    ids=["twenty", "small", "time first", "strings", "a number for all"],
)
def test_where_a_part_cannot_be_cut_or_would_save_nothing_there_is_none(batches):
    count = sum(len(labels) for _, labels in batches)
    assert sample_of(Batches(batches), torch.full((count,), -1.0), Categorical()) is None


def test_labels_that_surprise_nobody_are_all_alike():
    data = Batches((torch.arange(1600), torch.zeros(1600, dtype=torch.long)))
    sample = sample_of(data, torch.zeros(1600), Categorical())
    assert len(sample.weights) == 100
    assert math.isclose(float(sample.weights.sum()), 1600)


def test_a_subsample_has_the_type_of_the_data():
    model = nn.Linear(1, 1).double()
    data = Batches((torch.rand(1600, 1), torch.zeros(1600, dtype=torch.long)), model)
    sample = sample_of(data, torch.zeros(1600), Categorical())
    assert {inputs.dtype for inputs, _ in sample.data} == {torch.float64}
