"""Member j sees view j mod V: checked against copies of the network that numpy shows flipped pictures."""

import copy
import pickle

import networks
import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax, logsumexp, softmax
from torch import nn

import peppermill as pm
from peppermill.engines import ENGINES
from peppermill.views import VIEWS, View

ON_CPU = [name for name in ENGINES if name not in ("graphs", "compile")]  # these need a GPU, or minutes
FLIPS = {"horizontal_flip": lambda x: np.flip(x, -1), "vertical_flip": lambda x: np.flip(x, -2)}
BOTH = ("horizontal_flip", "vertical_flip")
SIGMA = 0.2


def plain(x):
    return x


def roll(x):
    return x.roll(1, dims=-1)


def copies(pep, flips, x):
    """The outputs [members, ...] of copies of the network with noise added, each called with its flip of the inputs."""
    found = []
    for member in range(pep.size if pep.sigma else min(len(flips), pep.size)):
        other = copy.deepcopy(pep.model)
        with torch.no_grad():
            for name in pep.recipe.selected:
                weight = other.get_parameter(name)
                weight += pep.sigma * pep.recipe.noise.draw(name, member, weight)
            seen = torch.from_numpy(flips[member % len(flips)](x.numpy()).copy())
            found.append(other(seen).double().numpy())
    return np.stack(found)


def log_mean(pep, flips, x):
    """ln of the mean probability of those copies."""
    members = log_softmax(copies(pep, flips, x), axis=-1)
    return logsumexp(members, axis=0) - np.log(len(members))


def flips_of(names):
    return [plain, *(FLIPS[name] for name in names)]


@pytest.mark.parametrize("engine", ON_CPU)
@pytest.mark.parametrize("sigma", [0.0, SIGMA])
@pytest.mark.parametrize("names", [(), BOTH[:1], BOTH])
@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_member_j_sees_view_j_mod_v(cnn, images, engine, sigma, names, size):
    """With one, two and three views, fewer members than views, and a size that views do not divide."""
    pep = pm.PepEnsemble.at_sigma(cnn, sigma, size=size, views=names, engine=engine)
    before, flips = networks.snapshot(cnn), flips_of(names)
    expected, members = log_mean(pep, flips, images[0]), log_softmax(copies(pep, flips, images[0]), axis=-1)
    assert pep.passes == len(members)
    with torch.no_grad():
        np.testing.assert_allclose(pep(images[0]), expected, atol=1e-6)
        each = pep.member_log_probs(images[0])
    np.testing.assert_allclose(each, members[np.arange(size) % len(members)], atol=1e-6)
    items = pep.predict_items(images)
    np.testing.assert_allclose(items.log_probs, expected, atol=1e-6)
    np.testing.assert_allclose(items.log_likelihoods, expected[np.arange(20), images[1]], atol=1e-6)
    networks.assert_untouched(cnn, before)


@pytest.mark.parametrize("engine", ON_CPU)
def test_a_dense_network_runs_by_every_engine(data, engine):
    """All members at once, each group with its own view."""
    pep = pm.PepEnsemble.at_sigma(networks.mlp(), SIGMA, size=5, views=roll, engine=engine)
    flips = [plain, lambda x: np.roll(x, 1, axis=-1)]
    for x in (data[0], data[0][:7]):
        np.testing.assert_allclose(pep.predict_proba(x), np.exp(log_mean(pep, flips, x)), atol=1e-6)


@pytest.mark.slow
def test_the_compiled_engine_agrees(cnn, images):
    pep = pm.PepEnsemble.at_sigma(cnn, SIGMA, size=3, views=BOTH, engine="compile")
    np.testing.assert_allclose(
        pep.predict_proba(images[0]), np.exp(log_mean(pep, flips_of(BOTH), images[0])), atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.0, SIGMA])
def test_torch_compile_follows_the_views(images, sigma):
    """Labels of pictures and of pixels."""
    for model in (networks.cnn(), pixel_network(3)):
        pep = pm.PepEnsemble.at_sigma(model, sigma, size=3, views=BOTH)
        compiled = torch.compile(pep, backend="eager")
        with torch.no_grad():
            torch.testing.assert_close(compiled(images[0]), pep(images[0]), atol=1e-6, rtol=0)


def test_members_that_were_chosen_from_a_pool_see_views_in_their_own_order(cnn, images):
    noise = pm.Noise(draws=(4, 0, 3))
    pep = pm.PepEnsemble.at_sigma(cnn, SIGMA, size=3, noise=noise, views="horizontal_flip")
    expected = log_mean(pep, flips_of(BOTH[:1]), images[0])
    np.testing.assert_allclose(pep.predict_items(images).log_probs, expected, atol=1e-6)


class Merged(nn.Module):
    """Two pictures and a vector; every one counts differently."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.more = nn.Linear(36, 3), nn.Linear(36, 3), nn.Linear(2, 3)

    def forward(self, left, right, more=None):
        logits = self.left(left.flatten(1)) + self.right(right.flatten(1)).tanh()
        return logits if more is None else logits + self.more(more)


@pytest.mark.parametrize(
    "call",
    [
        lambda pep, left, right, more: pep(left, right, more),
        lambda pep, left, right, more: pep(left=left, right=right, more=more),
        lambda pep, left, right, more: pep(left, right=right, more=more),
        lambda pep, left, right, more: pep(left, right, more=more),
    ],
)
def test_every_picture_of_a_call_is_flipped_and_nothing_else(call):
    """By position, by name, and by both."""
    model = networks.seeded(Merged)
    left, right, more = (networks.items(9, shape)[0] for shape in ((1, 6, 6), (1, 6, 6), (2,)))
    pep = pm.PepEnsemble.at_sigma(model, 0.0, size=2, views="vertical_flip")
    logits = [model(f(left), f(right), more) for f in (plain, lambda x: x.flip(-2))]
    expected = torch.stack([one.softmax(1) for one in logits]).mean(0)
    torch.testing.assert_close(call(pep, left, right, more).exp(), expected)


@pytest.mark.parametrize("form", [tuple, lambda pair: dict(zip(("left", "right"), pair, strict=True))])
def test_data_may_hold_tuples_and_dicts(form):
    model, (x, labels) = networks.seeded(Merged), networks.items(9, (1, 6, 6))
    pep = pm.PepEnsemble.at_sigma(model, 0.0, size=2, views="horizontal_flip")
    found = pep.predict_items((form((x, 2 * x)), labels)).log_probs.exp()
    expected = torch.stack([model(y, 2 * y).softmax(1) for y in (x, x.flip(-1))]).mean(0).detach()
    torch.testing.assert_close(found.float(), expected)


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
@pytest.mark.parametrize("search", [pm.Golden(upper=0.5, iterations=3), pm.TwoStage()])
@pytest.mark.parametrize("views", ["horizontal_flip", lambda x: x.flip(-1)])
def test_fit_maximises_the_likelihood_of_members_with_views(cnn, search, views):
    """L(sigma) of each sigma that was tried, and the passes that it cost. Two of three members see the plain inputs."""
    x, labels = networks.items(60, (1, 6, 6))
    pep = pm.fit(cnn, (x, labels), size=3, views=views, search=search)
    for evaluation in pep.search.evaluations:
        expected = log_mean(pep.with_sigma(evaluation.sigma), flips_of(BOTH[:1]), x)[np.arange(60), labels].sum()
        assert evaluation.log_likelihood == pytest.approx(expected, rel=1e-6)
    assert pep.search.passes == 2 + 3 * (len(pep.search.evaluations) - 1)


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
def test_the_rival_of_members_with_views_is_the_network_without_them(cnn):
    data = networks.items(60, (1, 6, 6))
    pep = pm.fit(cnn, data, size=2, views="horizontal_flip", temperature=True)
    alone = pm.fit_temperature(cnn, data)
    assert (pep.one_pass.passes, pep.one_pass.temperature) == (1, pytest.approx(alone.temperature, rel=1e-6))
    torch.testing.assert_close(pep.one_pass(data[0]), alone(data[0]))
    assert pep.search.passes == 2 * len(pep.search.evaluations) + 1  # two views, or two members; then the network alone


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
def test_a_subsample_sees_the_views_too(cnn):
    """Enough items for a search in two stages: only L(sigma) on all of them is reported."""
    x, labels = networks.items(640, (1, 6, 6))
    with torch.no_grad():
        labels = torch.where(torch.arange(640) % 3 == 0, labels, cnn(x.flip(-1)).argmax(dim=1))
        cnn[-1].weight.mul_(3)
    pep = pm.fit(cnn, (x, labels), size=4, views="horizontal_flip")
    assert len(pep.search.evaluations) > 1
    for evaluation in pep.search.evaluations:
        expected = log_mean(pep.with_sigma(evaluation.sigma), flips_of(BOTH[:1]), x)[np.arange(640), labels].sum()
        assert evaluation.log_likelihood == pytest.approx(expected, rel=1e-6)
    assert pep.search.passes <= 5 * 4 + 2


def test_every_view_runs_in_the_precision_that_was_asked_for(cnn, images):
    pep = pm.PepEnsemble.at_sigma(cnn, SIGMA, size=4, views=BOTH)
    low = pep.with_engine("loop", "bfloat16").member_log_probs(images[0])
    difference = (low - pep.member_log_probs(images[0])).abs().amax(dim=(1, 2))
    assert bool((difference > 1e-5).all())
    assert bool((difference < 0.1).all())


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
def test_a_network_trained_with_mirrored_pictures_gains_and_another_loses():
    """The label says on which side the brighter half is, or only how bright the picture is."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 1, 6, 6, generator=generator)
    sided, symmetric = (x[..., :3].sum((1, 2, 3)) > x[..., 3:].sum((1, 2, 3))).long(), (x.sum((1, 2, 3)) > 0).long()
    for labels, gains in ((symmetric, True), (sided, False)):
        model = networks.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 2)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[:100]), labels[:100]).backward()
            optimizer.step()
        one, two = pm.SingleNetwork(model), pm.TestTimeAugmentation(model)
        test = (x[100:], labels[100:])
        assert (pm.evaluate(two, test).nll.value < pm.evaluate(one, test).nll.value) == gains


@pytest.mark.parametrize("batch_size", [1, 3, 7, 500])
def test_the_size_of_the_batches_does_not_matter(cnn, images, batch_size):
    pep = pm.PepEnsemble.at_sigma(cnn, SIGMA, size=4, views=BOTH)
    batches = list(zip(*(part.split(batch_size) for part in images), strict=True))
    found = pep.predict_items(batches).log_probs
    torch.testing.assert_close(found, pep.predict_items(images).log_probs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("sigma", [0.0, SIGMA])
def test_gradients_flow_through_every_view(cnn, images, sigma):
    """By the inputs and by the weights, against autograd through a loop."""
    pep = pm.PepEnsemble.at_sigma(cnn, sigma, size=2, views="horizontal_flip")
    x, weight = images[0].clone().requires_grad_(), cnn[4].weight
    found = torch.autograd.grad(pep(x)[:, 1].sum(), (x, weight))
    probabilities = []
    for member, flipped in enumerate((x, x.flip(-1))):
        params = {
            name: value + sigma * pep.recipe.noise.draw(name, member, value) if name in pep.recipe.selected else value
            for name, value in cnn.named_parameters()
        }
        probabilities.append(torch.func.functional_call(cnn, params, (flipped,)).softmax(1))
    expected = torch.autograd.grad(torch.stack(probabilities).mean(0)[:, 1].log().sum(), (x, weight))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def pixel_network(classes):
    """Labels of pixels that depend on the side: a convolution, and a number for every column."""

    class Pixels(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.column = nn.Conv2d(1, classes, 3, padding=1), nn.Parameter(torch.randn(classes, 1, 6))

        def forward(self, x):
            return self.conv(x) + self.column

    return networks.seeded(Pixels)


@pytest.mark.parametrize(("name", "axis"), [("horizontal_flip", -1), ("vertical_flip", -2)])
@pytest.mark.parametrize("sigma", [0.0, SIGMA])
def test_labels_of_pixels_are_flipped_back(name, axis, sigma):
    model, x = pixel_network(3), networks.items(5, (1, 6, 6))[0]
    labels = torch.randint(3, (5, 6, 6), generator=torch.Generator().manual_seed(2))
    labels[0, 0] = -100
    pep = pm.PepEnsemble.at_sigma(model, sigma, size=2, views=name)
    first, second = softmax(copies(pep, [plain, FLIPS[name]], x), axis=2)
    expected = np.log((first + np.flip(second, axis)) / 2)
    np.testing.assert_allclose(pep(x).detach(), expected, atol=1e-6)
    items = np.moveaxis(expected, 1, -1).reshape(-1, 3)[labels.flatten() != -100]
    np.testing.assert_allclose(pep.predict_items((x, labels)).log_probs, items, atol=1e-6)
    if sigma == 0:
        np.testing.assert_allclose(pm.TestTimeAugmentation(model, name)(x).detach(), expected, atol=1e-6)


def test_classes_may_come_after_the_pixels():
    """Outputs [B, H, W, K] of pictures that are not square."""
    model = networks.seeded(lambda: nn.Conv2d(1, 3, 3, padding=1))

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return self.inner(x).movedim(1, -1)

    x = networks.items(5, (1, 4, 7))[0]
    options = {"size": 2, "views": "horizontal_flip"}
    found = pm.PepEnsemble.at_sigma(Last().eval(), 0.0, likelihood=pm.Categorical(class_dimension=-1), **options)(x)
    torch.testing.assert_close(found.movedim(-1, 1), pm.PepEnsemble.at_sigma(model, 0.0, **options)(x))


def test_yes_or_no_for_every_pixel_is_flipped_back():
    model, x = pixel_network(1), networks.items(5, (1, 6, 6))[0]
    pep = pm.PepEnsemble.at_sigma(model, SIGMA, size=2, views="horizontal_flip", likelihood="bernoulli")
    first, second = expit(copies(pep, flips_of(BOTH[:1]), x))
    np.testing.assert_allclose(pep.predict_proba(x), (first + np.flip(second, -1)) / 2, atol=1e-6)


def test_yes_or_no_and_regressions_average_what_the_views_give(images):
    model = networks.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
    options = {"size": 4, "views": BOTH}
    pep = pm.PepEnsemble.at_sigma(model, SIGMA, likelihood="bernoulli", **options)
    found = copies(pep, flips_of(BOTH), images[0])
    np.testing.assert_allclose(pep.predict_proba(images[0]), expit(found).mean(0), atol=1e-6)
    mean, variance = found[..., 0].mean(0), np.exp(found[..., 1]).mean(0) + found[..., 0].var(0)
    pep = pm.PepEnsemble.at_sigma(model, SIGMA, likelihood="gaussian", **options)
    np.testing.assert_allclose(pep(images[0]).detach(), np.stack([mean, np.log(variance)], axis=-1), atol=1e-5)


def test_a_sweep_sees_the_views(cnn, images):
    swept = pm.sweep_sigma(cnn, images, [0.1, 0.3], size=3, views="horizontal_flip")
    for point in swept.points:
        pep = pm.PepEnsemble.at_sigma(cnn, point.sigma, size=3, views="horizontal_flip")
        expected = log_mean(pep, flips_of(BOTH[:1]), images[0])[np.arange(20), images[1]].mean()
        assert point.log_likelihood == pytest.approx(expected, rel=1e-6)
        assert point.nll == pytest.approx(-expected, rel=1e-6)
        assert len(point.member_log_likelihoods) == 3


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_the_curve_of_sizes_ends_at_the_ensemble(cnn, images, temperature):
    pep = pm.PepEnsemble.at_sigma(cnn, SIGMA, size=4, views=BOTH).with_temperature(temperature)
    curve = pm.size_curve(pep, images)
    members = log_softmax(copies(pep, flips_of(BOTH), images[0]), axis=-1)
    averaged = logsumexp(members, axis=0) - np.log(4)
    tempered = log_softmax(averaged / temperature, axis=-1)
    assert curve.nll[-1].value == pytest.approx(-tempered[np.arange(20), images[1]].mean(), rel=1e-6)


def test_an_ensemble_with_views_is_saved_by_name(cnn, images, tmp_path):
    pep = pm.PepEnsemble.at_sigma(cnn, SIGMA, size=3, views=BOTH)
    pep.save(tmp_path / "pep.json")
    loaded = pm.load(tmp_path / "pep.json", cnn)
    assert loaded.recipe.views == pep.recipe.views
    assert torch.equal(loaded.predict_proba(images[0]), pep.predict_proba(images[0]))
    assert '"views": ["horizontal_flip", "vertical_flip"]' in (tmp_path / "pep.json").read_text()


def test_a_copy_of_an_ensemble_is_the_same_and_can_be_saved(cnn, images, tmp_path):
    pep = pm.PepEnsemble.at_sigma(cnn, SIGMA, size=3, views=BOTH)
    for other in (copy.deepcopy(pep), pickle.loads(pickle.dumps(pep))):
        assert torch.equal(other.predict_proba(images[0]), pep.predict_proba(images[0]))
        other.save(tmp_path / "pep.json")
        assert pm.load(tmp_path / "pep.json", cnn).passes == 3


def test_a_function_is_not_saved_and_a_row_is(cnn, images, tmp_path, monkeypatch):
    path = tmp_path / "pep.json"
    with pytest.raises(ValueError, match=r"the view 'roll' is a function, and files hold names: add a row to .*VIEWS"):
        pm.PepEnsemble.at_sigma(cnn, SIGMA, size=2, views=roll).save(path)
    assert not path.exists()
    with monkeypatch.context() as patched:
        patched.setitem(VIEWS, "roll", View("roll", "rolled by a pixel", roll))
        pep = pm.PepEnsemble.at_sigma(cnn, SIGMA, size=2, views="roll")
        pep.save(path)
        found = pm.load(path, cnn).predict_proba(images[0])
        expected = np.exp(log_mean(pep, [plain, lambda x: np.roll(x, 1, axis=-1)], images[0]))
        np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(
        ValueError, match=r"pep.json has the view 'roll': add its row to `peppermill.views.VIEWS` before"
    ):
        pm.load(path, cnn)


@pytest.mark.parametrize(
    ("views", "error", "message"),
    [
        ("mirror", ValueError, r"`views='mirror'` is unknown: choose from horizontal_flip, vertical_flip, or give a f"),
        (["horizontal_flip", "up"], ValueError, r"`views='up'` is unknown"),
        ([3], TypeError, r"`views=3` is neither the name of a view nor a function of a batch"),
        (3, TypeError, r"`views=3` is neither"),
    ],
)
def test_what_is_not_a_view_is_refused(cnn, images, views, error, message):
    before = networks.snapshot(cnn)
    with pytest.raises(error, match=message):
        pm.fit(cnn, images, views=views)
    networks.assert_untouched(cnn, before)


def test_views_that_no_member_would_see_are_refused(cnn, images):
    before = networks.snapshot(cnn)
    for size, views in ((1, BOTH[0]), (2, BOTH)):
        needed = f"need {size + 1} members or more, one of them for the inputs as they are, and `size={size}`"
        with pytest.raises(ValueError, match=needed):
            pm.fit(cnn, images, size=size, views=views)
    networks.assert_untouched(cnn, before)


def test_an_ensemble_is_named_by_the_views_that_its_members_see(cnn):
    pep = pm.PepEnsemble.at_sigma(cnn, 0.0, size=3, views=BOTH)
    assert [pep.with_size(size).method for size in (1, 2, 3, 4)] == ["network", "2 views", "3 views", "3 views"]
    assert pep.with_size(1).with_sigma(SIGMA).method == "PEP"


@pytest.mark.parametrize("views", [None, (), []])
def test_no_views_are_the_inputs_alone(cnn, images, views):
    pep = pm.PepEnsemble.at_sigma(cnn, 0.0, size=3, views=views)
    assert pep.passes == 1
    torch.testing.assert_close(pep.predict_proba(images[0]), cnn(images[0]).softmax(1).detach())


@pytest.mark.parametrize("shape", [(6,), (5, 7), (2, 3, 6, 6), (8, 6, 3)])
def test_what_is_not_a_picture_is_refused(shape):
    """A vector, a sequence, a video, and a picture with its channels last, as Keras has them."""
    model = networks.seeded(lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)))
    x, labels = networks.items(9, shape)
    model(x)
    before = networks.snapshot(model)
    with pytest.raises(
        ValueError, match=r"inputs of shapes \[\[9, .* hold no pictures \[batch, channels, height, width"
    ):
        pm.fit(model, (x, labels), views="horizontal_flip")
    networks.assert_untouched(model, before)


def test_a_view_that_changes_the_shape_is_refused(cnn, images):
    for view in (lambda x: x[..., :5], lambda x: (x, x)):
        with pytest.raises(
            ValueError, match=r"the view '<lambda>' turns inputs of shapes \[\[20, 1, 6, 6\]\] into .* keep"
        ):
            pm.fit(cnn, images, views=view)


def test_outputs_that_are_neither_for_pictures_nor_for_pixels_are_refused():
    """A label for every patch, whose order nobody knows."""
    model = networks.seeded(lambda: nn.Sequential(nn.Conv2d(1, 3, 2, stride=2), nn.Flatten(2)))
    pep = pm.PepEnsemble.at_sigma(model, SIGMA, size=2, views="horizontal_flip")
    with pytest.raises(ValueError, match=r"outputs of shape \[5, 3, 9\] for pictures of \[6, 6\] pixels are neither"):
        pep(networks.items(5, (1, 6, 6))[0])


def test_outputs_for_a_picture_may_have_dimensions_of_one(images):
    """[B, K, 1, 1], as fully convolutional classifiers give."""
    model = networks.seeded(lambda: nn.Conv2d(1, 3, 6))
    pep = pm.PepEnsemble.at_sigma(model, SIGMA, size=2, views="horizontal_flip")
    expected = softmax(copies(pep, flips_of(BOTH[:1]), images[0]), axis=2).mean(0)
    np.testing.assert_allclose(pep.predict_proba(images[0]), expected, atol=1e-6)


class HalfTurn:
    """A view of the user's with a way back."""

    def __call__(self, x):
        return x.rot90(2, (-2, -1))

    def undo(self, outputs, inputs):
        return outputs.rot90(2, (-2, -1))


def test_a_function_may_say_how_its_outputs_are_turned_back():
    model, x = pixel_network(3), networks.items(5, (1, 6, 6))[0]
    pep = pm.PepEnsemble.at_sigma(model, 0.0, size=2, views=HalfTurn())
    turned = model(x.rot90(2, (-2, -1))).softmax(1).rot90(2, (-2, -1))
    torch.testing.assert_close(pep.predict_proba(x), ((model(x).softmax(1) + turned) / 2).detach())
