"""Nothing of a first call is baked in, and nothing of the user's is written to: network, data, generators."""

import copy
import os
import types

import pytest
import torch
import zoo
from networks import assert_untouched, snapshot
from torch import nn

import peppermill as pm
from stress import networks as hostile
from stress.reference import digest, member_log_probs


class Config:
    scale, table = 0.5, {"shift": 0.25}


SETTINGS = types.ModuleType("settings")
SETTINGS.scale = 0.5


def shifted(x):
    return x + hostile.GLOBAL_SCALE


def helped(x):
    return shifted(x) * 2


class Reader(nn.Module):
    """Two layers; `read` is called on what is between them."""

    factor, table = 1.5, {"shift": 0.25}
    read = staticmethod(lambda self, x: x)

    def __init__(self, read):
        super().__init__()
        self.first, self.last, self.read = nn.Linear(6, 6), nn.Linear(6, 3), read
        self._scale, self.pair = 0.5, (0.5, [2.0])

    def twice(self, x):
        return 2 * x

    @classmethod
    def scaled(cls, x):
        return cls.factor * x

    @property
    def half(self):
        return 0.5

    def forward(self, x):
        return self.last(self.read(self, torch.tanh(self.first(x))))


def outer():
    factor = 0.5

    def read(self, x):
        return x * factor

    def change():
        nonlocal factor
        factor += 1

    return read, change


CLOSED, CHANGE_CLOSED = outer()

READS = {
    "a class attribute": (lambda self, x: x * self.factor, lambda model, patch: patch.setattr(Reader, "factor", 3.0)),
    "an attribute of its type": (
        lambda self, x: x * type(self).factor,
        lambda model, patch: patch.setattr(Reader, "factor", 3.0),
    ),
    "a class method": (lambda self, x: self.scaled(x), lambda model, patch: patch.setattr(Reader, "factor", 3.0)),
    "a dict of the class": (
        lambda self, x: x + self.table["shift"],
        lambda model, patch: patch.setitem(Reader.table, "shift", 2.0),
    ),
    "a private attribute": (lambda self, x: x * self._scale, lambda model, patch: setattr(model, "_scale", 3.0)),
    "a list in a tuple": (lambda self, x: x * self.pair[1][0], lambda model, patch: model.pair[1].insert(0, 5.0)),
    "a method": (lambda self, x: self.twice(x), lambda model, patch: patch.setattr(Reader, "twice", lambda self, x: x)),
    "a property": (
        lambda self, x: self.half * x,
        lambda model, patch: patch.setattr(Reader, "half", property(lambda self: 4.0)),
    ),
    "a helper's global": (
        lambda self, x: helped(x),
        lambda model, patch: patch.setattr(hostile, "GLOBAL_SCALE", 4.0),
    ),
    "a helper": (
        lambda self, x: helped(x),
        lambda model, patch: patch.setitem(globals(), "shifted", lambda x: x * 3),
    ),
    "another class": (lambda self, x: x * Config.scale, lambda model, patch: patch.setattr(Config, "scale", 3.0)),
    "another class's dict": (
        lambda self, x: x + Config.table["shift"],
        lambda model, patch: patch.setitem(Config.table, "shift", 3.0),
    ),
    "a module": (lambda self, x: x * SETTINGS.scale, lambda model, patch: patch.setattr(SETTINGS, "scale", 3.0)),
    "the environment": (
        lambda self, x: x * float(os.environ.get("STRESS_SCALE", "2")),
        lambda model, patch: patch.setenv("STRESS_SCALE", "7"),
    ),
    "a variable of an outer function": (CLOSED, lambda model, patch: CHANGE_CLOSED()),
    "a function that is an attribute": (
        lambda self, x: x,
        lambda model, patch: setattr(model, "read", lambda self, x: 2 * x),
    ),
}


@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_what_the_code_reads_is_read_anew(what, engine, monkeypatch):
    read, change = READS[what]
    torch.manual_seed(0)
    model, x = Reader(read).double().eval(), torch.randn(5, 6, dtype=torch.float64)
    pep = pm.PepEnsemble.at_sigma(model, 0.1, size=3, engine=engine)
    with torch.no_grad():
        before = pep.member_log_probs(x)
        change(model, monkeypatch)
        found = pep.member_log_probs(x)
    assert not torch.allclose(found, before)
    torch.testing.assert_close(found, member_log_probs(lambda: copy.deepcopy(model), pep, x), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["a weight as a number", "a branch on a weight", "weights by numpy"])
def test_no_weight_becomes_a_number_of_python(name):
    """At theta* the traced network would be right; its members would all have the gate of theta*."""
    model, x = hostile.NETWORKS[name]()
    pep = pm.PepEnsemble.at_sigma(model, 0.3, size=3, parameters="all")
    with torch.no_grad():
        found = pep.member_log_probs(x)
    assert pep.engine.report == "loop"
    torch.testing.assert_close(found, member_log_probs(lambda: copy.deepcopy(model), pep, x), atol=1e-10, rtol=0)


@pytest.mark.parametrize("size", [4, 5])
def test_dense_layers_over_tokens_are_not_mistaken_for_members(size):
    """With as many items as members, [items, tokens, features] looks like [members, items, features]."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 3)).double().eval(), torch.randn(size, 2, 6, dtype=torch.float64)
    pep = pm.PepEnsemble.at_sigma(model, 0.1, size=size, engine="vmap", likelihood=pm.Categorical(class_dimension=-1))
    with torch.no_grad():
        found = pep.member_log_probs(x)
        expected = torch.stack([torch.func.functional_call(model, p, (x,)) for p in pep.perturbation.members(0.1)])
    torch.testing.assert_close(found, expected.log_softmax(dim=-1), atol=1e-10, rtol=0)


def test_batches_of_other_kinds_in_one_pass():
    """The first batch chooses the plan; a batch with another argument in the same list does without it."""
    model, x = zoo.network("dict of outputs")
    labels = torch.zeros(7, dtype=torch.long)
    pep = pm.PepEnsemble.at_sigma(model, 0.1, size=3)
    for k, batches in enumerate(([(x, labels), ((x, x * 0), labels)], [((x, x * 0), labels), (x, labels)])):
        found = pep.predict_items(batches).log_probs.split(7)
        with torch.no_grad():
            torch.testing.assert_close(found[k], pep(x), atol=1e-10, rtol=0)
            torch.testing.assert_close(found[1 - k], pep(x, x * 0), atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    "name",
    [name for name in hostile.NETWORKS if "input" in name and "made" not in name] + ["an activation in place first"],
)
@pytest.mark.filterwarnings("ignore:this .* cannot run under vmap", "ignore:noise does not help")
def test_inputs_are_never_written_to(name):
    """In place or not, the numbers are the same, everywhere; the user's tensors keep their values."""
    model, x = hostile.NETWORKS[name]()
    data, before, given = (x, torch.arange(8) % 3), snapshot(model), x.clone()
    twin = pm.predict(copy.deepcopy(model), (x.clone(), data[1]))
    pep = pm.fit(model, data, size=3, parameters="all")
    assert pep.search.baseline.log_likelihood == pytest.approx(float(twin.log_likelihoods.sum()), rel=1e-9)
    pep = pep.with_sigma(0.1)
    pep(x), pep.predict_proba(x), pep.member_log_probs(x), pm.evaluate(pep, data)
    assert torch.equal(pm.predict(model, data).log_probs, twin.log_probs)
    both = pm.predict(pm.DeepEnsemble([model, model]), data)
    torch.testing.assert_close(both.log_probs, twin.log_probs)
    if "numpy" not in name:  # which nobody can differentiate
        assert pm.local_analysis(model, data, probes=4).items == 8
    assert torch.equal(x, given)
    assert_untouched(model, before)


def test_mc_dropout_passes_do_not_share_an_input_that_is_written_to():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LeakyReLU(0.5, inplace=True), nn.Linear(6, 3), nn.Dropout(0.0)).eval()
    x = torch.randn(4, 6)
    given, expected = x.clone(), model(x.clone()).log_softmax(dim=1)
    torch.testing.assert_close(pm.McDropout(model, 3)(x), expected)
    assert torch.equal(x, given)


@pytest.mark.filterwarnings("ignore:this .* cannot run under vmap")
@pytest.mark.parametrize("name", ["counter", "cache of weights", "own buffer", "old spectral norm", "lstm"])
def test_analysis_leaves_the_network_alone(name):
    """Buffers that forward writes to and caches of weights are those of a shell."""
    model, x = zoo.network(name)
    before, digest_before = snapshot(model), digest(model)
    analysis = pm.local_analysis(model, (x, torch.arange(7) % 3), probes=3, parameters="all")
    assert_untouched(model, before)
    assert digest(model) == digest_before
    assert analysis.fisher_trace > 0


def test_a_cache_of_weights_does_not_hide_the_curvature():
    """The same network without its cache has the same traces."""

    class Plain(zoo.CachesWeights):
        def forward(self, x):
            return x @ self.layer.weight.t()

    torch.manual_seed(0)
    cached = zoo.CachesWeights().double().eval()
    plain = Plain().double().eval()
    plain.load_state_dict(cached.state_dict())
    data = torch.randn(9, 6, dtype=torch.float64), torch.arange(9) % 3
    one, other = (pm.local_analysis(model, data, probes=40) for model in (cached, plain))
    assert one.laplacian == pytest.approx(other.laplacian, rel=1e-6)
    assert one.fisher_trace == pytest.approx(other.fisher_trace, rel=1e-6)


@pytest.mark.parametrize("name", sorted(hostile.RANDOM))
def test_a_random_network_is_noticed(name):
    model, x = hostile.NETWORKS[name]()
    with pytest.warns(pm.PepWarning, match="other outputs when it is called again"), torch.no_grad():
        pm.PepEnsemble.at_sigma(model, 0.1, size=2)(x)


@pytest.mark.parametrize("name", ["keeps something of its weights", "keeps an attribute of its weights"])
def test_a_cache_that_the_user_filled_does_not_hide_the_noise(name):
    """The network has been used before; what it keeps is made of theta*, and stays as it is."""
    model, x = hostile.NETWORKS[name]()
    with torch.no_grad():
        plain = model(x)
        pep = pm.PepEnsemble.at_sigma(model, 0.3, size=3)
        expected = member_log_probs(lambda: hostile.NETWORKS[name]()[0], pep, x)
        torch.testing.assert_close(pep.member_log_probs(x), expected, atol=1e-10, rtol=0)
        assert torch.equal(model(x), plain)


def test_a_network_whose_own_train_returns_nothing_is_copied():
    """timm's LeViT drops its cache in a `train` of its own, which does not return the module."""

    class Trained(zoo.CachesWeights):
        def train(self, mode=True):
            super().train(mode)
            self.cache = {}

    torch.manual_seed(0)
    model, x = Trained().double(), torch.randn(5, 6, dtype=torch.float64)
    model.eval()
    pep = pm.PepEnsemble.at_sigma(model, 0.3, size=3)
    with torch.no_grad():
        torch.testing.assert_close(pep.member_log_probs(x), member_log_probs(lambda: copy.deepcopy(model), pep, x))


def test_a_network_with_a_layer_that_occurs_twice_stays_itself():
    """`functional_call` leaves the weight of a member in such a layer: no later call may see it."""
    model, x = hostile.NETWORKS["one layer twice"]()
    pep = pm.PepEnsemble.at_sigma(model, 0.5, size=2, engine="loop")
    with torch.no_grad():
        x.requires_grad_()
        pep(x)
        assert torch.equal(pep.with_sigma(0.0)(x), model(x).log_softmax(dim=1))


def test_a_first_call_takes_little_more_memory_than_a_plain_pass():
    """Counted by torch: the bytes of all tensors that are alive at once, with m = 10 members."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 3),
    ).eval()
    x = torch.rand(16, 3, 64, 64)

    def peak(call):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            call()
        alive, highest = 0, 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                alive += event.nbytes()
                highest = max(highest, alive)
        return highest

    with torch.no_grad():
        plain = peak(lambda: model(x))
        first = peak(lambda: pm.PepEnsemble.at_sigma(model, 0.01, size=10)(x))
    assert first <= 1.5 * plain


@pytest.mark.parametrize("engine", ["auto", "loop", "vmap"])
def test_a_write_that_shows_in_later_items_only_never_reaches_the_data(engine):
    """The first items are positive, so the activation in place writes the values that are there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(6, 3)).eval()
    x, y = torch.rand(40, 6), torch.arange(40) % 3
    x[20:] *= -1
    before = x.clone()
    pm.fit(model, (x, y), size=2, batch_size=10, engine=engine)
    pm.evaluate(model, (x, y))
    assert torch.equal(x, before)


def test_a_trace_that_differs_from_the_network_is_said_once_and_not_used():
    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x) if isinstance(x, torch.Tensor) else self.layer(x) * 2

    torch.manual_seed(0)
    model, x = Moody().eval(), torch.randn(8, 6)
    pep = pm.PepEnsemble.at_sigma(model, 0.2, size=3)
    with torch.no_grad(), pytest.warns(pm.PepWarning, match="gives other outputs when torch.fx traces it"):
        found = pep.member_log_probs(x)
    with torch.no_grad():
        pep.member_log_probs(x)  # says nothing: a warning is an error here
    for j, weight in enumerate(
        model.layer.weight + 0.2 * pep.recipe.noise.draw("layer.weight", j, model.layer.weight) for j in range(3)
    ):
        torch.testing.assert_close(found[j], nn.functional.linear(x, weight, model.layer.bias).log_softmax(dim=1))
