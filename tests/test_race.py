"""The race: cheap wins unless passes pay, and its estimates do not flatter themselves."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import peppermill as pm

CLASSES = 4


def network(sharpness=1.0, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, CLASSES)).eval()
    with torch.no_grad():
        model[2].weight.mul_(6 * sharpness)
    return model


def items(model, count, seed=1, softness=1.0):
    """Labels drawn from the network's own probabilities, at another temperature."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator)
    with torch.no_grad():
        probabilities = (model(inputs) / softness).softmax(dim=1)
    return inputs, torch.multinomial(probabilities, 1, generator=generator)[:, 0]


def nll(predictor, data):
    return -float(pm.predict(predictor, data).log_likelihoods.mean())


def test_one_pass_gives_the_best_calibrator_of_the_network():
    model = network()
    data = items(model, 600, softness=3.0)
    pep = pm.calibrate(model, data, passes=1)
    assert (pep.passes, pep.sigma) == (1, 0)
    assert pep.race.choice.passes == 1
    assert {c.name for c in pep.race.candidates} == {
        "network",
        *(f"{n} scaling" for n in ("temperature", "vector", "matrix")),
    }
    assert pep.method == "temperature scaling"  # the labels were drawn so: nothing else is needed
    assert pep.temperature == pytest.approx(pm.fit_temperature(model, data).temperature, rel=1e-6)
    found = {c.name: c.nll for c in pep.race.candidates}
    before, after = found["network"], found["temperature scaling"]
    assert f"validation NLL {before:.4f} -> {after:.4f}" in str(pep.search)


@pytest.mark.parametrize(("count", "absent"), [(600, 1), (3, 2)])
def test_classes_without_items_are_mentioned_once(count, absent):
    """Three items of four classes are too few to have them all."""
    model = network()
    inputs, labels = items(model, count, softness=3.0)
    some = labels != 1
    with pytest.warns(pm.PepWarning) as said:
        pm.calibrate(model, (inputs[some], labels[some]), passes=2)
    texts = [str(one.message) for one in said if "do not occur" in str(one.message)]
    assert texts == [
        f"{absent} of 4 classes do not occur in the {int(some.sum())} items: the race cannot judge them, and vector "
        "and matrix scaling leave them to the temperature."
    ]


def test_a_calibrated_network_is_left_alone_or_nearly_so():
    model = network()
    pep = pm.calibrate(model, items(model, 800), passes=4)
    assert pep.passes == 1
    assert "one pass is enough" in pep.race.note
    assert abs(nll(pep, items(model, 4000, seed=5)) - nll(model, items(model, 4000, seed=5))) < 0.005


@pytest.mark.filterwarnings("ignore:the best temperature is")
@pytest.mark.parametrize("classes", [2, CLASSES])
def test_random_labels_choose_one_pass(classes):
    model, generator = network(), torch.Generator().manual_seed(3)
    model[2] = nn.Linear(24, classes)
    data = torch.randn(200, 6), torch.randint(0, classes, (200,), generator=generator)
    pep = pm.calibrate(model.eval(), data, passes=4)
    assert pep.passes == 1
    assert pep.race.choice.nll == pytest.approx(torch.tensor(float(classes)).log().item(), abs=0.1)


def test_members_win_where_they_are_the_truth():
    """The labels are drawn from an ensemble with the same noise: no one-pass calibrator knows which items waver."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    with torch.no_grad():
        model[4].weight.mul_(12)
    truth = pm.PepEnsemble.at_sigma(model, 0.3, size=4, parameters="0.weight")
    generator = torch.Generator().manual_seed(0)

    def drawn(count):
        inputs = 2 * torch.randn(count, 8, generator=generator)
        return inputs, torch.multinomial(truth.predict_proba(inputs), 1, generator=generator)[:, 0]

    pep, test = pm.calibrate(model, drawn(1000), passes=4, parameters="0.weight"), drawn(2000)
    assert (pep.passes, pep.race.choice.passes) == (4, 4)
    assert pep.sigma == pytest.approx(0.3, rel=0.4)
    assert nll(pep, test) < nll(pep.one_pass, test) < nll(model, test)
    assert pep.race.choice.nll == pytest.approx(nll(pep, test), abs=0.05)
    cheaper = [candidate for candidate in pep.race.candidates if candidate.passes < 4]
    assert {candidate.verdict for candidate in cheaper} == {"beaten by the best"}
    assert pep.method.startswith("PEP")
    assert pep.one_pass.method in ("temperature scaling", "vector scaling", "matrix scaling")


def random_items(count, seed):
    """Labels that have nothing to do with the inputs."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randint(0, CLASSES, (count,), generator=generator)


@pytest.mark.filterwarnings("ignore:the best temperature is")
@pytest.mark.parametrize(
    ("data", "passes"),
    [
        (items(network(), 500, softness=2.0), 2),
        (random_items(200, seed=161), 4),  # one pass is close to two members, but not to the best
    ],
)
def test_the_choice_is_the_cheapest_within_a_standard_error_of_the_best(data, passes):
    race = pm.calibrate(network(), data, passes=passes).race
    best, choice = race.candidates[0], race.choice
    shown = {c.name: row[3] for c, row in zip(race.candidates, race.table().rows, strict=True)}
    assert shown.pop(choice.name) == ""
    for name, text in shown.items():
        difference = next(c.difference for c in race.candidates if c.name == name)
        assert text[0] == ("−" if difference < -5e-5 else "+")
        assert float(text.split()[0].replace("−", "-")) == pytest.approx(difference, abs=5.1e-5)
    assert best.nll == min(c.nll for c in race.candidates)
    assert choice is best or -best.difference <= best.error
    for candidate in race.candidates:
        assert candidate.difference == pytest.approx(candidate.nll - choice.nll, abs=1e-9)
        if (candidate.passes, candidate.parameters) < (choice.passes, choice.parameters):
            assert candidate.nll > best.nll
        if candidate is not choice and candidate.passes >= choice.passes:
            is_worse = candidate.difference > max(candidate.error, 1e-6)
            assert candidate.verdict == ("worse" if is_worse else "not better by a standard error")


def test_the_choice_is_not_beaten_by_the_best_through_one_that_is_near_both():
    """Two members are near the best eight, and T alone is near two members, but not near eight."""
    torch.manual_seed(50)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)).eval()
    with torch.no_grad():
        model[2].weight.mul_(4)
    generator = torch.Generator().manual_seed(50)
    inputs = torch.randn(150, 6, generator=generator)
    truth = pm.PepEnsemble.at_sigma(model, 0.2, size=4)
    labels = torch.multinomial(truth.predict_proba(inputs), 1, generator=generator)[:, 0]
    race = pm.calibrate(model, (inputs, labels), passes=8).race
    alone = next(c for c in race.candidates if c.name == "temperature scaling")
    assert race.choice.passes == 2
    assert race.candidates[0].passes == 8
    assert 0 < -race.candidates[0].difference < race.candidates[0].error
    assert 0 < alone.difference < alone.error


class FirstHalf(nn.Module):
    """A layer that does not see the second half of its inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(CLASSES, CLASSES, dtype=torch.float64)

    def forward(self, x):
        return self.layer(x[:, :CLASSES])


@pytest.mark.parametrize(("hint", "passes"), [(1e-8, 1), (0.3, 2)])
def test_a_gain_that_may_be_rounding_buys_no_pass(hint, passes):
    """A view lets the network see a hint of the label: each item gains for certain, but by less than a millionth."""
    torch.manual_seed(0)
    model = FirstHalf().eval()
    with torch.no_grad():
        model.layer.weight.copy_(2 * torch.eye(CLASSES))
    inputs = torch.randn(500, CLASSES, dtype=torch.float64)
    labels = torch.multinomial((model(inputs) / 3).softmax(dim=1).detach(), 1)[:, 0]
    hidden = torch.cat([inputs, nn.functional.one_hot(labels, CLASSES)], dim=1)

    def helped(x):
        return torch.cat([x[:, :CLASSES] + hint * x[:, CLASSES:], x[:, CLASSES:]], dim=1)

    pep = pm.calibrate(model, (hidden, labels), passes=2, views=helped)
    two = next(c for c in pep.race.candidates if c.name == "2 views, temperature scaling")
    one = next(c for c in pep.race.candidates if c.name == "temperature scaling")
    assert two.nll < one.nll
    assert pep.passes == passes


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_a_richer_calibrator_races_with_views_or_members_only_if_it_helps_one_pass(shift):
    """Labels of the tempered network, or with one class more likely than it says, which no T can express."""
    model, biased = network(), network()
    with torch.no_grad():
        biased[2].bias[0] += shift
    data = items(biased, 600, softness=3.0)
    race = pm.calibrate(model, data, passes=2, views=lambda inputs: inputs + 0.01).race
    found = {c.name: c.nll for c in race.candidates}
    helped = {one for one in ("vector", "matrix") if found[f"{one} scaling"] < found["temperature scaling"]}
    assert "2 views, temperature scaling" in found
    assert {one for one in ("vector", "matrix") if f"2 views, {one} scaling" in found} == helped
    assert bool(helped) == bool(shift)


class TwoInputs(nn.Module):
    """An array of weights for each half of the input."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 3, bias=False), nn.Linear(5, 3, bias=False)

    def forward(self, x):
        return self.first(x[:, :5]) + self.second(x[:, 5:])


@pytest.mark.parametrize("ignored", [0, 1])
def test_noise_by_layer_is_judged_on_items_that_had_no_part_in_it(ignored):
    """Every second example uses one array and suffers from noise, the others use the other one and need it.

    So neither half of the examples can find the noise that the other half needs, and noise by layer is not better than
    temperature scaling; judged by the scales that they found themselves, both halves would gain. An item that does not
    count, before all others, changes no half.
    """
    torch.manual_seed(0)
    model = TwoInputs().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(800, 10, generator=generator)
    inputs[::2, 5:] = inputs[1::2, :5] = 0
    truth = pm.PepEnsemble.at_sigma(model, 4.0, size=50, parameters="second.weight", noise=pm.Noise(seed=9))
    labels = torch.multinomial(truth.predict_proba(inputs), 1, generator=generator)[:, 0]
    labels[::2] = model(inputs[::2]).argmax(dim=1)
    inputs = torch.cat([torch.zeros(ignored, 10), inputs])
    labels = torch.cat([torch.full((ignored,), -100), labels])
    found = {c.name: c.nll for c in pm.calibrate(model, (inputs, labels), passes=4).race.candidates}
    assert found["4 members by layer, temperature scaling"] > found["temperature scaling"] + 0.005


class FirstInputs(nn.Module):
    """`network()` on the first six of twelve inputs."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        return self.network(x[:, :6])


@pytest.mark.parametrize(
    ("view", "raced"),
    [
        (lambda x: x + 1e-3, {False, True}),  # as good as the inputs themselves
        (lambda x: x.flip(0), {False}),  # the inputs of other items
        (lambda x: x.roll(6, dims=1), {True}),  # the inputs without a disturbance
    ],
)
def test_noise_does_not_race_with_or_without_views_if_that_is_far_behind(view, raced):
    """Labels drawn from an ensemble, so that noise helps."""
    model = FirstInputs().eval()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(600, 6, generator=generator)
    truth = pm.PepEnsemble.at_sigma(model.network, 0.5, size=50, noise=pm.Noise(seed=9))
    labels = torch.multinomial(truth.predict_proba(inputs), 1, generator=generator)[:, 0]
    first = inputs + torch.randn(inputs.shape, generator=generator) if raced == {True} else inputs
    found = pm.calibrate(model, (torch.cat([first, inputs], dim=1), labels), passes=2, views=view).race.candidates
    assert {"views" in c.name for c in found if "members" in c.name} == raced


def test_views_compete_only_if_they_are_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    inputs = torch.randn(300, 1, 6, 6)
    with torch.no_grad():
        both = (model(inputs).mul(4).softmax(1) + model(inputs.flip(-1)).mul(4).softmax(1)) / 2
    labels = torch.multinomial(both, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    names = {c.name for c in pm.calibrate(model, (inputs, labels), passes=2).race.candidates}
    assert not any("views" in name for name in names)
    pep = pm.calibrate(model, (inputs, labels), passes=2, views="horizontal_flip")
    assert any("views" in c.name for c in pep.race.candidates)


def test_the_network_is_untouched_and_the_batch_size_does_not_matter():
    model = network()
    before = copy.deepcopy(model.state_dict())
    inputs, labels = items(model, 300, softness=2.0)
    races = [pm.calibrate(model, (inputs, labels), passes=2, batch_size=size).race for size in (300, 70)]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for one, other in zip(races[0].candidates, races[1].candidates, strict=True):
        assert (one.name, one.verdict) == (other.name, other.verdict)
        assert one.nll == pytest.approx(other.nll, abs=1e-5)


def test_the_race_survives_saving_and_shows_itself(tmp_path):
    model = network()
    pep = pm.calibrate(model, items(model, 300, softness=2.0), passes=2)
    pep.save(tmp_path / "pep.json")
    inputs = torch.randn(5, 6)
    again = pm.load(tmp_path / "pep.json", model)
    assert torch.equal(again.predict_proba(inputs), pep.predict_proba(inputs))
    for one, other in zip(again.race.candidates, pep.race.candidates, strict=True):
        assert (one.name, one.passes, one.parameters, one.verdict) == (
            other.name,
            other.passes,
            other.parameters,
            other.verdict,
        )
        assert (one.nll, one.error) == (pytest.approx(other.nll, rel=1e-5), pytest.approx(other.error, rel=1e-5))
    assert (again.race.items, again.race.note, again.race.spent) == (300, pep.race.note, pep.race.spent)
    text, page = str(pep.race), pep.race._repr_html_()
    for candidate in pep.race.candidates:
        assert candidate.name in text
        assert candidate.name in page
    assert "chosen" in text


def test_another_ensemble_than_the_choice_has_no_race():
    """Its table would mark a candidate as chosen that this is not."""
    model = network()
    pep = pm.calibrate(model, items(model, 300, softness=2.0), passes=2)
    others = pep.with_sigma(0.1), pep.with_size(3), pep.with_temperature(2.0), pep.without_temperature()
    assert not any(other.race for other in others)
    assert pep.with_engine("loop").race == pep.with_recipe(split=None).race == pep.race


def test_the_rival_is_the_network_after_its_calibrator_and_nothing_else():
    """Neither the sigma of the members nor their race belongs to it, whatever is asked of it."""
    model = network()
    data = items(pm.PepEnsemble.at_sigma(model, 0.5, size=2), 250)
    pep = pm.calibrate(model, data, passes=2)
    rival = pep.one_pass
    assert (pep.passes, rival.passes, rival.sigma) == (2, 1, 0)
    assert rival.without_temperature().method == "network"
    assert rival.race is None
    assert rival.search.items == 250
    run = pm.record_run({"network": model, "members": pep, "rival": rival}, data, title="the rival comes last")
    assert run.race["method"] == "members"


def test_a_regression_races_with_noise_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    inputs = torch.randn(200, 3)
    labels = model(inputs)[:, 0].detach() + 2 * torch.randn(200)
    race = pm.calibrate(model, (inputs, labels), passes=4, likelihood="gaussian").race
    assert not any("scaling" in c.name for c in race.candidates)


def test_a_network_without_gradients_races_without_noise_by_layer():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return torch.from_numpy(self.inner(x).detach().numpy())

    model = Cut().eval()
    race = pm.calibrate(model, items(model, 600, softness=2.0), passes=2).race
    assert not any("by layer" in c.name for c in race.candidates)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": 0}, "`passes=0` must be a whole number of forward passes, at least 1"),
        ({"passes": 2.5}, "`passes=2.5` must be a whole number"),
        ({"views": "sideways"}, "`views='sideways'` is unknown: choose from horizontal_flip"),
        ({"views": "horizontal_flip"}, "hold no pictures"),
        ({"views": lambda x: x[:, :3]}, "a view must keep every shape"),
        ({"views": ["horizontal_flip"], "passes": 1}, "need 2 passes or more, .*, and `passes=1`: leave views out"),
        ({"views": ["horizontal_flip", "vertical_flip"]}, "need 3 passes or more, .*, and `passes=2`: leave views out"),
        ({"likelihood": "poisson"}, "`likelihood='poisson'` is unknown"),
    ],
)
def test_mistakes_are_named(options, message):
    model = network()
    with pytest.raises(ValueError, match=message):
        pm.calibrate(model, items(model, 50), **{"passes": 2, **options})


@pytest.mark.filterwarnings("ignore:3 of 4 classes")
def test_one_example_is_too_few():
    """Its items, such as pixels, cannot judge each other. Here the network is wrong, so that T would be fitted."""
    model, inputs = network(), torch.ones(1, 6)
    with pytest.raises(
        ValueError, match="all items are of one example, which leaves nothing to fit on: give more examples"
    ):
        pm.calibrate(model, (inputs, model(inputs).argmin(dim=1)), passes=1)
