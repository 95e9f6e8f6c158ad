"""Members from a pool: the choice, what it is worth on other items, and the ensemble that comes of it."""

import numpy as np
import pytest
import torch
from torch import nn

import peppermill as pm
from peppermill.calibrators.temperature import best_temperature
from peppermill.data import Batches
from peppermill.engines import engine_named
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.passes import Request
from peppermill.perturbation import Perturbation
from peppermill.tuning.member_pool import choose_members, cross_fitted_gain, tune_pool
from peppermill.tuning.result import Evaluation, SigmaSearch
from tests import networks


def members(pool, count, classes=3, seed=0, skill=0.0):
    """Log-probabilities [pool, N, K] and labels; with `skill`, later members know the labels better."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    logits = 2 * torch.randn(pool, count, classes, generator=generator)
    known = torch.nn.functional.one_hot(labels, classes) * torch.linspace(0, skill, pool)[:, None, None]
    return (logits + known).log_softmax(dim=2), labels


def tempered_value(rows, labels, chosen):
    averaged = rows[list(chosen)].double().exp().mean(dim=0).log()
    return best_temperature(averaged, labels)[1]


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_greedy_and_with_replacement(seed):
    """Against a loop over probabilities in numpy."""
    rows, labels = members(6, 40, seed=seed, skill=2.0)
    p, y = rows.double().exp().numpy(), labels.numpy()
    temperature = best_temperature(rows[:3].double().exp().mean(dim=0).log(), labels)[0]
    chosen = []
    for _ in range(3):
        values = []
        for k in range(6):
            powers = p[[*chosen, k]].mean(axis=0) ** (1 / temperature)
            values.append(np.log(powers[np.arange(40), y] / powers.sum(axis=1)).sum())
        chosen.append(int(np.argmax(values)))
    assert choose_members(rows, labels, 3) == tuple(chosen)
    assert tempered_value(rows, labels, chosen) > tempered_value(rows, labels, range(3))


@pytest.mark.parametrize("classes", [1, 3])
def test_the_chosen_members_are_never_worse_than_the_first_on_the_items_of_the_choice(classes):
    """With one column the rows are ln L_i, and there is no T."""
    for seed in range(10):
        rows, labels = members(8, 30, seed=seed)
        if classes == 1:
            rows, labels = rows[..., :1], torch.zeros_like(labels)
            values = [rows[list(c)].exp().mean(dim=0).log().sum() for c in (choose_members(rows, labels, 4), range(4))]
        else:
            values = [tempered_value(rows, labels, c) for c in (choose_members(rows, labels, 4), range(4))]
        assert values[0] >= values[1] - 1e-4


def test_the_estimate_does_not_flatter_itself_where_there_is_nothing_to_choose():
    """Random labels: the choice looks better on its own items in every repetition, and the estimate does not."""
    gains, flattered = [], []
    for seed in range(30):
        rows, labels = members(20, 100, seed=seed)
        gains.append(cross_fitted_gain(rows, labels, 4, torch.arange(100)))
        chosen = choose_members(rows, labels, 4)
        flattered.append((tempered_value(rows, labels, chosen) - tempered_value(rows, labels, range(4))) / 100)
    assert np.mean(gains) <= 2 * np.std(gains) / np.sqrt(30)
    assert np.mean(flattered) > 5 * np.std(flattered) / np.sqrt(30)
    assert np.mean(flattered) > np.mean(gains) + 0.01


def test_the_estimate_is_the_gain_on_other_items():
    """Choose on one half of 2,000 items and look at the gain on 20,000 others of the same members."""
    rows, labels = members(12, 22_000, skill=3.0)
    few, few_labels, rest, rest_labels = rows[:, :2000], labels[:2000], rows[:, 2000:], labels[2000:]
    chosen = choose_members(few, few_labels, 4)
    values = [rest[list(c)].exp().mean(dim=0).log().gather(1, rest_labels[:, None]).mean() for c in (chosen, range(4))]
    gain = cross_fitted_gain(few, few_labels, 4, torch.arange(2000))
    assert gain > 0.1
    assert gain == pytest.approx(float(values[0] - values[1]), abs=0.1)


def test_items_of_one_example_stay_together():
    """Each example is there twice: were its copies in both halves, the estimate would be the flattered one."""
    gains = []
    for seed in range(20):
        rows, labels = members(20, 60, seed=seed)
        twice = torch.arange(60).repeat_interleave(2)
        gains.append(cross_fitted_gain(rows[:, twice], labels[twice], 4, twice))
    assert np.mean(gains) <= 2 * np.std(gains) / np.sqrt(20)


@pytest.mark.parametrize("temperature", [False, True])
def test_fit_keeps_the_members_that_it_chose(temperature, tmp_path):
    model, data, _ = networks.overfitted(7)
    first, pep = (pm.fit(model, data, size=4, temperature=temperature, pool=pool) for pool in (None, 30))
    draws = pep.recipe.noise.draws
    assert pep.search.pool_gain > 0
    assert len(draws) == 4 <= max(draws) < 30
    assert pep.sigma == first.sigma
    assert pep.search.passes == pytest.approx(first.search.passes + 30)
    assert pep.search.gain >= first.search.gain
    mean = sum(model_at(model, pep.sigma, draw)(data[0]).softmax(dim=1) for draw in draws) / 4
    expected = (mean.log() / pep.temperature).log_softmax(dim=1)
    assert torch.allclose(pep(data[0]), expected, atol=1e-5)
    value = expected.double().gather(1, data[1][:, None]).sum().item()
    assert pep.search.best.tempered_log_likelihood == pytest.approx(value, abs=1e-3)
    pep.save(tmp_path / "pep.json")
    assert torch.equal(pm.load(tmp_path / "pep.json", model)(data[0][:7]), pep(data[0][:7]))


def model_at(model, sigma, draw):
    other = networks.copy.deepcopy(model)
    with torch.no_grad():
        for name, value in other.named_parameters():
            if name in select(model, "kernels"):
                value += sigma * Noise().draw(name, draw, value)
    return other


def request_of(model, data, size=4, **options):
    perturbation = Perturbation(select(model, "kernels"), Noise(), size)
    return Request(model, perturbation, pm.Categorical(), engine_named("loop"), Batches(data, model), **options)


def found_at(sigma, items, joint=True):
    return SigmaSearch((Evaluation(0, -9.0, 1, -9.0), Evaluation(sigma, -8.0, 1, -8.0)), 0, 1, items, joint, 5.0)


def test_random_labels_leave_the_first_members_and_say_so():
    model, data = networks.mlp(), networks.items(200)
    request = request_of(model, data)
    with pytest.warns(pm.PepWarning, match="choosing 4 of 20 members does not help: .* the first 4 draws remain"):
        same, found = tune_pool(request, found_at(0.05, 200), 20)
    assert same.perturbation.noise.draws == ()
    assert found.pool_gain <= 0
    assert found.passes == 25


def test_a_gain_that_may_be_rounding_leaves_the_first_members():
    """They are the truth, and are chosen again in another order, which changes the last bits of their average."""
    model = networks.seeded(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    )
    with torch.no_grad():
        model[4].weight.mul_(12)
    truth = pm.PepEnsemble.at_sigma(model, 0.3, size=4, parameters="0.weight")
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(600, 8, generator=generator)
    labels = torch.multinomial(truth.predict_proba(x), 1, generator=generator)[:, 0]
    with pytest.warns(pm.PepWarning, match="choosing 4 of 8 members does not help"):
        pep = pm.fit(model, (x, labels), parameters="0.weight", size=4, pool=8, temperature=True)
    assert abs(pep.search.pool_gain) < 1e-6
    assert pep.with_size(6).passes == 6


def test_a_pool_without_noise_has_nothing_to_choose_from():
    request, found = request_of(networks.mlp(), networks.items(20)), found_at(0.0, 20)
    assert tune_pool(request, found, 20) == (request, found)


@pytest.mark.parametrize("pool", [4, 0, 3.5, "many"])
def test_a_pool_that_is_not_larger_than_the_ensemble_is_refused_before_the_data_are_read(pool):
    with pytest.raises(ValueError, match=r"`pool=.*` must be a whole number above `size=4`"):
        pm.fit(networks.mlp(), None, size=4, pool=pool)


def test_a_pool_that_does_not_fit_in_memory_is_refused_before_it_is_filled():
    model, (inputs, labels) = networks.mlp(classes=2000), networks.items(20)
    with pytest.raises(ValueError, match=r"`pool` needs the log-probabilities of all .* 7\.5 GiB here and at most 1:"):
        tune_pool(request_of(model, (inputs, labels)), found_at(0.1, 20_000), 50)


def test_a_pool_and_views_are_refused():
    with pytest.raises(ValueError, match="`pool=20` chooses among members that see the same inputs: leave `views` out"):
        pm.fit(networks.mlp(), None, pool=20, views="horizontal_flip")
