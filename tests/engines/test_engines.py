"""Every engine gives what the slow and obvious way gives, and leaves nothing behind."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import networks
import pytest
import torch
from torch import nn

import peppermill as pm
from peppermill.data import Batches, as_arguments, call, output_tensor
from peppermill.engines import choose, packed, vmap
from peppermill.engines.capture import Recording
from peppermill.engines.choose import Auto, engine_of
from peppermill.engines.graphs import Graphs
from peppermill.engines.joined import Joined
from peppermill.engines.kept import Kept, Store
from peppermill.engines.loop import Loop, member_predictions, run_members
from peppermill.engines.members import members_of
from peppermill.engines.state import State
from peppermill.engines.vmap import Vmap
from peppermill.likelihood import Categorical
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.perturbation import Perturbation


def capture_on_cpu(jobs, device):
    """What a CUDA graph does: the jobs run again on the same static tensors, and write to the same static outputs."""
    outputs = torch.cat([job() for job in jobs])

    def replay():
        outputs.copy_(torch.cat([job() for job in jobs]))

    return Recording(outputs, replay, begin=lambda: None, end=lambda: None)


def graphs(precision=None):
    return Graphs(precision, capture=capture_on_cpu)


ENGINES = {"loop": Loop, "joined": Joined, "vmap": Vmap, "graphs": graphs, "auto": Auto}


class Recurrent(nn.Module):
    """[batch, 5, 6] -> [batch, 3]."""

    def __init__(self):
        super().__init__()
        self.recurrence, self.head = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(self.recurrence(inputs)[0][:, -1])


class Attentive(nn.Module):
    """[batch, 5, 8] -> [batch, 3]."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(self.encoder(inputs).mean(dim=1))


class Residual(nn.Module):
    """Depthwise, strided and one-dimensional convolutions, layer norm, a skip around the first layer, a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.depthwise = nn.Conv1d(6, 6, 3, padding="same"), nn.Conv1d(6, 6, 3, groups=6)
        self.norm, self.strided = nn.LayerNorm(3), nn.Conv1d(6, 4, 2, stride=2, bias=False)
        self.head = nn.Linear(4, 3, bias=False)
        self.register_buffer("offset", torch.linspace(-1, 1, 6)[:, None])

    def forward(self, inputs):
        hidden = self.norm(self.depthwise(self.first(inputs) + inputs + self.offset))
        return self.head(self.strided(hidden.relu()).flatten(1))


class TwoBranches(nn.Module):
    """Branches on a value, so that it can be neither vectorised nor recorded."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        hidden = self.layer(inputs)
        return self.head(hidden if hidden.sum() > 0 else -2 * hidden)


def mlp_with_norms(width, hidden=8):
    """Norms before the first layer, behind a ReLU, before one, and next to each other; a ReLU that writes in place."""
    return nn.Sequential(
        *(nn.BatchNorm1d(width), nn.Linear(width, hidden), nn.ReLU(), nn.BatchNorm1d(hidden, affine=False)),
        *(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, hidden)),
        *(nn.ReLU(), nn.BatchNorm1d(hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 3, bias=False)),
    )


class NormsAmongViews(nn.Module):
    """What a norm gets or gives is used by others too, or written to, so that it must not become part of a product."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.third, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, inputs):
        hidden = self.first(inputs).relu()
        normed = self.norm(hidden)
        hidden.add_(1.0)
        both = self.second(normed) + self.third(hidden) + normed
        again = self.norm(both.relu())
        again.view(-1).mul_(2.0)
        return self.head(again).flatten(1)


def network_and_inputs(kind, dtype=torch.float64, count=7):
    def items(*shape):
        return networks.items(count, shape, dtype=dtype)[0]

    x = items(6)
    build, inputs = {
        "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), x),
        "cnn": (networks.cnn, items(1, 6, 6)),
        "transformer": (Attentive, items(5, 8)),
        "lstm": (Recurrent, items(5, 6)),
        "residual": (Residual, items(6, 5)),
        "dict inputs": (networks.TwoInputs, {"right": x.square(), "left": x}),
        "one tensor twice": (networks.TwoInputs, (x, x)),
        "tied weights": (networks.Tied, x),
        "object with logits": (lambda: networks.Wrapped("object"), x),
        "branches": (TwoBranches, x),
        "mlp with norms": (lambda: mlp_with_norms(6), x),
        "norms among views": (NormsAmongViews, x),
        "tokens": (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3), nn.Flatten(1, 2)), items(2, 6)),
    }[kind]
    return with_statistics(networks.seeded(build, dtype=dtype)), inputs


@torch.no_grad()
def with_statistics(model):
    """Norms that do something: fresh ones, with mean 0 and variance 1, would hide a norm that is left out."""
    generator = torch.Generator().manual_seed(5)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for value in (module.running_mean, module.running_var, *module.parameters()):
                value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    return model


KINDS = [
    *("mlp", "cnn", "transformer", "lstm", "residual", "dict inputs", "one tensor twice", "tied weights"),
    *("object with logits", "branches", "tokens", "mlp with norms", "norms among views"),
]
VECTORISED = {
    "mlp with norms",
    "norms among views",
    "mlp",
    "cnn",
    "residual",
    "dict inputs",
    "one tensor twice",
    "tied weights",
    "object with logits",
    "tokens",
}


def perturbation_of(model, parameters="kernels", size=4, **noise):
    return Perturbation(select(model, parameters), Noise(**noise), size)


@torch.no_grad()
def copied_outputs(model, perturbation, sigma, inputs):
    """A deep copy of the network for each member, with noise added to its weights: [m, ...]."""
    outputs = []
    for j in range(perturbation.size):
        member = copy.deepcopy(model)
        for name, value in member.named_parameters():
            if name in perturbation.center:
                value += sigma * perturbation.noise.draw(name, j, value).to(value.dtype)
        outputs.append(output_tensor(call(member, inputs)))
    return torch.stack(outputs)


@torch.no_grad()
def outputs_of(engine, model, perturbation, sigma, inputs, keep=True):
    members = members_of(model, perturbation, sigma)
    args, kwargs = as_arguments(inputs)
    return torch.cat([group(args, kwargs) for group in engine.groups(members, args, kwargs, keep)])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "parameters"),
    [(kind, "kernels") for kind in KINDS] + [(kind, "all") for kind in ("mlp", "cnn", "residual", "tied weights")],
)
def test_every_engine_gives_the_outputs_of_copied_networks(engine, kind, parameters):
    """Twice, because the second call takes what the first one kept; then with other inputs and another sigma."""
    model, inputs = network_and_inputs(kind)
    before = networks.snapshot(model)
    perturbation, engine = perturbation_of(model, parameters), ENGINES[engine]()
    for sigma, shown in ((0.3, inputs), (0.3, inputs), (0.3, network_and_inputs(kind, count=3)[1]), (0.1, inputs)):
        found = outputs_of(engine, model, perturbation, sigma, shown)
        expected = copied_outputs(model, perturbation, sigma, shown)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    networks.assert_untouched(model, before)


@pytest.mark.parametrize("kind", KINDS)
def test_what_vectorises_runs_together_and_the_rest_says_why_not(kind):
    model, inputs = network_and_inputs(kind)
    engine = Vmap()
    outputs_of(engine, model, perturbation_of(model), 0.3, inputs)
    assert (engine.report == "vmap") == (kind in VECTORISED)
    if kind not in VECTORISED:
        assert engine.report.startswith("loop, because the network ")


def test_a_branch_on_the_inputs_is_taken_anew_each_time():
    """All members have the same inputs, so vmap does not mind; what is recorded would be one branch."""

    class Branching(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) if inputs.sum() > 0 else -2 * super().forward(inputs)

    model, inputs = networks.seeded(lambda: Branching(6, 3)), networks.items(5)[0].abs()
    engine, perturbation = Vmap(), perturbation_of(model)
    for shown in (inputs, -inputs):
        found = outputs_of(engine, model, perturbation, 0.3, shown)
        torch.testing.assert_close(found, copied_outputs(model, perturbation, 0.3, shown), rtol=1e-4, atol=1e-5)
    assert "aten::_local_scalar_dense depends on values" in engine.report


def test_a_network_that_does_not_vectorise_is_tried_once(monkeypatch):
    """Texts come in many lengths: an attempt for each kind of inputs would cost more than all passes together."""
    tried, prepare = [], vmap._prepare
    monkeypatch.setattr(vmap, "_prepare", lambda *args: tried.append(1) or prepare(*args))
    model, inputs = network_and_inputs("branches")
    engine, perturbation = Vmap(), perturbation_of(model)
    for count in (7, 3, 7, 5):
        found = outputs_of(engine, model, perturbation, 0.3, inputs[:count], keep=False)
        torch.testing.assert_close(found, copied_outputs(model, perturbation, 0.3, inputs[:count]))
    assert tried == [1]


def test_two_arguments_that_were_one_tensor_may_be_two_the_next_time():
    model, (x, _) = network_and_inputs("one tensor twice")
    engine, perturbation = Vmap(), perturbation_of(model)
    outputs_of(engine, model, perturbation, 0.3, (x, x))
    found = outputs_of(engine, model, perturbation, 0.3, (x, x + 1))
    torch.testing.assert_close(found, copied_outputs(model, perturbation, 0.3, (x, x + 1)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("noise", [{}, {"antithetic": False}, {"law": "uniform", "seed": 3}])
def test_every_size_and_noise(engine, size, noise):
    model, inputs = network_and_inputs("cnn")
    perturbation = perturbation_of(model, size=size, **noise)
    found = outputs_of(ENGINES[engine](), model, perturbation, 0.2, inputs)
    torch.testing.assert_close(found, copied_outputs(model, perturbation, 0.2, inputs), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_single_precision_is_the_same_to_its_rounding(engine, kind):
    """A few layers of sums over at most 64 products: some units in the 24th bit."""
    model, inputs = network_and_inputs(kind, torch.float32)
    perturbation = perturbation_of(model, size=10)
    found = outputs_of(ENGINES[engine](), model, perturbation, 0.2, inputs)
    torch.testing.assert_close(found, copied_outputs(model, perturbation, 0.2, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hidden", [8, 200])
@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("noise", [{}, {"antithetic": False}])
@pytest.mark.parametrize("size", [9, 10])
def test_products_with_packed_weights_are_those_of_copied_networks(hidden, count, noise, size):
    """Small and large, few rows and many: every way in which a layer may multiply; sums over 784 products."""
    model = with_statistics(networks.seeded(lambda: mlp_with_norms(784, hidden)))
    inputs = networks.items(count, (784,))[0]
    engine, perturbation = Vmap(), perturbation_of(model, size=size, **noise)
    for sigma in (0.02, 0.01):
        found = outputs_of(engine, model, perturbation, sigma, inputs)
        assert engine.report == "vmap"
        torch.testing.assert_close(found, copied_outputs(model, perturbation, sigma, inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("outputs", [1, 15, 16])
def test_narrow_layers_on_tokens_are_those_of_copied_networks(outputs):
    """Inputs [batch, tokens, features], a narrow layer in the middle and one at the end."""
    layers = nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, outputs), nn.ReLU(), nn.Linear(outputs, 3, bias=False)
    model = networks.seeded(lambda: nn.Sequential(*layers))
    inputs, perturbation = networks.items(4, (5, 6))[0], perturbation_of(model, size=6)
    found = outputs_of(Vmap(), model, perturbation, 0.1, inputs)
    torch.testing.assert_close(found, copied_outputs(model, perturbation, 0.1, inputs), rtol=1e-4, atol=1e-5)


def test_without_the_operations_of_onednn_products_are_torchs_own(monkeypatch):
    model = with_statistics(networks.seeded(lambda: mlp_with_norms(784, 200)))
    inputs, perturbation = networks.items(9, (784,))[0], perturbation_of(model, size=10)
    found = outputs_of(Vmap(), model, perturbation, 0.02, inputs)
    monkeypatch.setattr(packed, "_works", lambda: False)
    torch.testing.assert_close(outputs_of(Vmap(), model, perturbation, 0.02, inputs), found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_the_loops_own(engine, dtype):
    """No sum may be arranged in another way before it is rounded: outputs are in the type of the weights."""
    model, inputs = network_and_inputs("mlp", dtype)
    perturbation = perturbation_of(model, size=4)
    found = outputs_of(ENGINES[engine](), model, perturbation, 0.2, inputs)
    expected = outputs_of(Loop(), model, perturbation, 0.2, inputs)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pass_over_data_is_that_of_the_loop(engine):
    model, data = networks.cnn(dtype=torch.float64), networks.items(23, (1, 6, 6), dtype=torch.float64)
    passes = [
        run_members(
            model,
            perturbation_of(model, size=5),
            0.3,
            Batches(data, model, batch_size=8, kept_bytes=1),
            Categorical(),
            lambda items: None,
            runner,
        )
        for runner in (Loop(), ENGINES[engine]())
    ]
    torch.testing.assert_close(passes[1].averaged, passes[0].averaged, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        passes[1].member_log_likelihoods, passes[0].member_log_likelihoods, rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_each_item_is_counted_once_for_each_member(engine, mlp, data):
    seen = []
    run_members(
        mlp, perturbation_of(mlp), 0.3, Batches(data, mlp, batch_size=8), Categorical(), seen.append, ENGINES[engine]()
    )
    assert sum(seen) == 4 * 20


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["mlp", "cnn", "lstm"])
def test_sigma_zero_is_the_network_bit_for_bit(engine, kind):
    model, inputs = network_and_inputs(kind, torch.float32)
    found = outputs_of(ENGINES[engine](), model, perturbation_of(model), 0.0, inputs)
    with torch.no_grad():
        assert torch.equal(found, model(inputs).unsqueeze(0))


# What is kept


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m: m[0].weight.data.new_tensor(0) or nn.init.ones_(m[0].weight), id="weight in place"),
        pytest.param(lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach() * 2)), id="weight replaced"),
        pytest.param(lambda m: nn.init.ones_(m[0].bias), id="a parameter that is not perturbed"),
        pytest.param(lambda m: m[1].running_mean.add_(1), id="a buffer"),
        pytest.param(lambda m: setattr(m[1], "eps", 0.5), id="an attribute"),
        pytest.param(lambda m: setattr(m[0], "new", m[0].__dict__.pop("output_padding")), id="an attribute's name"),
        pytest.param(lambda m: m.__setitem__(2, nn.Tanh().eval()), id="a module"),
        pytest.param(lambda m: m[2].register_forward_hook(lambda module, inputs, output: 2 * output), id="a hook"),
        pytest.param(lambda m: m.load_state_dict(networks.cnn(1, torch.float64).state_dict()), id="loaded weights"),
    ],
)
def test_a_network_that_changed_is_noticed(engine, change):
    model, inputs = network_and_inputs("cnn")
    runner = ENGINES[engine]()
    outputs_of(runner, model, perturbation_of(model), 0.3, inputs)
    with torch.no_grad():
        change(model)
    perturbation = perturbation_of(model)
    found = outputs_of(runner, model, perturbation, 0.3, inputs)
    torch.testing.assert_close(found, copied_outputs(model, perturbation, 0.3, inputs), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["loop", "vmap", "auto"])
def test_weights_are_made_once_for_many_predictions(name, mlp, data, monkeypatch):
    drawn = []
    draw = Noise.draw
    monkeypatch.setattr(Noise, "draw", lambda self, *args: drawn.append(args[:2]) or draw(self, *args))
    pep = _ensemble(mlp).with_engine(name)
    drawn.clear()
    with torch.no_grad():
        first = pep(data[0])
        once = len(drawn)
        again = pep(data[0])
    assert once == 2 * 2  # two pairs, two weights
    assert len(drawn) == once
    assert torch.equal(again, first)


@pytest.mark.parametrize("name", ["loop", "joined", "vmap", "auto"])
@pytest.mark.parametrize("first", ["a batch", "all items"])
def test_a_batch_and_a_pass_over_data_share_the_members(first, name, mlp, data, monkeypatch):
    """Whichever comes first draws the noise of two pairs for two weights; the other draws nothing."""
    drawn = []
    draw = Noise.draw
    monkeypatch.setattr(Noise, "draw", lambda self, *args: drawn.append(args[:2]) or draw(self, *args))
    pep = _ensemble(mlp).with_engine(name)
    drawn.clear()
    ways = [lambda: pep(data[0]).double(), lambda: pep.predict_items(data).log_probs]
    with torch.no_grad():
        found = [way() for way in (ways if first == "a batch" else reversed(ways))]
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)
    assert len(drawn) == 2 * 2


def test_other_members_of_one_network_are_not_taken_for_these(mlp, data):
    """Other noise, another size, other parameters, in turns through one engine: each is what a new engine gives."""
    engine, one = Vmap(), perturbation_of(mlp)
    others = [perturbation_of(mlp, seed=1), perturbation_of(mlp, size=6), perturbation_of(mlp, "last_layer")]
    for other in others:
        for perturbation in (one, other, one):
            found = outputs_of(engine, mlp, perturbation, 0.3, data[0])
            assert torch.equal(found, outputs_of(Vmap(), mlp, perturbation, 0.3, data[0]))


def test_members_that_do_not_fit_are_made_one_at_a_time(mlp, data, monkeypatch):
    monkeypatch.setattr("peppermill.engines.kept.KEPT_BYTES", 1)
    for engine in (Loop(), Vmap(), Auto()):
        perturbation = perturbation_of(mlp)
        found = outputs_of(engine, mlp, perturbation, 0.3, data[0])
        torch.testing.assert_close(found, copied_outputs(mlp, perturbation, 0.3, data[0]), rtol=1e-4, atol=1e-5)
        assert engine.kept._store._stacked is None
        assert not engine.kept._store._directions
        assert engine.report.startswith("loop")


def test_the_loop_holds_one_perturbed_copy(mlp, data, monkeypatch):
    """Counted when the next one is made: of those before, none is alive."""
    monkeypatch.setattr("peppermill.engines.kept.KEPT_BYTES", 1)
    made, alive, member = [], [], Perturbation.member

    def counted(*args):
        alive.append(sum(one() is not None for one in made))
        params = member(*args)
        made.extend(map(weakref.ref, params.values()))
        return params

    monkeypatch.setattr(Perturbation, "member", counted)
    members = members_of(mlp, perturbation_of(mlp), 0.3)
    with torch.no_grad():
        member_predictions(members, Categorical(), (data[0],), {}, Loop())
        run_members(mlp, perturbation_of(mlp), 0.3, Batches(data, mlp), Categorical(), lambda items: None)
    assert alive == [0] * 8


def test_inference_mode_and_gradients_may_take_turns(mlp, data):
    pep = _ensemble(mlp)
    with torch.inference_mode():
        first = pep(data[0])
    inputs = data[0].clone().requires_grad_()
    pep(inputs).sum().backward()
    with torch.no_grad():
        assert torch.allclose(pep(data[0]), first, atol=1e-6)
    assert inputs.grad is not None


def test_a_network_made_in_inference_mode_is_never_taken_for_unchanged(data):
    with torch.inference_mode():
        model = networks.mlp()
        pep = _ensemble(model)
        pep(data[0])
        model[2].bias.add_(torch.tensor([5.0, 0.0, 0.0]))
        perturbation = perturbation_of(model)
        expected = copied_outputs(model, perturbation, 0.3, data[0]).log_softmax(dim=-1)
        torch.testing.assert_close(pep.member_log_probs(data[0]), expected, rtol=1e-4, atol=1e-5)


# Choosing


def test_auto_runs_small_networks_together_and_large_ones_one_by_one(mlp, data):
    """4 members, 8 numbers of 4 bytes: beyond 5 MiB from 40,961 items on."""
    model = nn.Sequential(*mlp, nn.Linear(3, 8), nn.Linear(8, 8)).eval()
    auto, perturbation = Auto(), perturbation_of(model)
    for items, engine in ((20, "vmap"), (40_960, "vmap"), (40_961, "loop, because there is nothing to join")):
        outputs_of(auto, model, perturbation, 0.3, torch.zeros(items, 6))
        assert auto.report == engine


@pytest.mark.parametrize(
    ("noise", "engine"), [({}, "vmap"), ({"antithetic": False}, "loop, because there is nothing to join")]
)
def test_a_network_that_is_mostly_its_first_layer_runs_together_beyond_that(mlp, noise, engine):
    """48 multiplications of 72: with antithetic pairs, 40 % of them are saved."""
    auto = Auto()
    outputs_of(auto, mlp, perturbation_of(mlp, **noise), 0.3, torch.zeros(40_961, 6))
    assert auto.report == engine


@pytest.mark.parametrize(
    ("items", "threads", "engine"),
    [(7, 1, "vmap"), (8, 1, "joined"), (8, 2, "vmap"), (9, 2, "vmap"), (10, 2, "joined"), (10, 3, "vmap")],
)
def test_from_many_multiplications_in_convolutions_on_members_run_one_by_one(monkeypatch, items, threads, engine):
    """64 * 64 * 9 * 36 = 1,327,104 for an item: 10 million from the eighth on, 12 million from the tenth on."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    layers = [nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 2)]
    auto, model = Auto(), nn.Sequential(*layers).eval()
    outputs_of(auto, model, perturbation_of(model), 0.01, torch.zeros(items, 64, 8, 8))
    assert auto.report == engine


def test_with_gradients_every_engine_is_the_loop(mlp, data):
    for name in ENGINES:
        engine = ENGINES[name]()
        members = members_of(mlp, perturbation_of(mlp), 0.3)
        assert member_predictions(members, Categorical(), (data[0],), {}, engine).requires_grad
        assert engine.report.startswith("loop")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"engine": "turbo"}, "`engine='turbo'` is unknown: choose one of loop, joined, vmap, graphs, auto"),
        ({"precision": "int8"}, "`precision='int8'` is unknown: choose one of bfloat16, float16, or leave it out"),
    ],
)
def test_an_unknown_name_is_refused_everywhere(mlp, data, tmp_path, options, text):
    pep = _ensemble(mlp)
    pep.save(tmp_path / "pep.json")
    for action in (
        lambda: pm.fit(mlp, data, **options),
        lambda: pm.load(tmp_path / "pep.json", mlp, **options),
        lambda: pm.sweep_sigma(mlp, data, [0.1], **options),
        lambda: pep.with_engine(**options),
    ):
        with pytest.raises(ValueError, match=text):
            action()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_graphs_without_a_gpu_are_refused(mlp, data):
    with pytest.raises(ValueError, match='`engine="graphs"` needs a CUDA GPU, and torch finds none here'):
        pm.fit(mlp, data, engine="graphs")


@pytest.mark.parametrize("name", ["loop", "vmap", "auto"])
def test_the_engine_is_no_part_of_what_is_saved(overfitted, tmp_path, name):
    model, validation, test = overfitted
    pep = pm.fit(model, validation, size=4, engine=name)
    assert pep.engine.name == name
    assert pep.sigma == pytest.approx(pm.fit(model, validation, size=4, engine="loop").sigma, rel=1e-3)
    pep.save(tmp_path / "pep.json")
    assert "engine" not in (tmp_path / "pep.json").read_text()
    with torch.no_grad():
        expected = pep(test[0])
        for other in ("loop", "vmap", "auto"):
            loaded = pm.load(tmp_path / "pep.json", model, engine=other)
            assert loaded.engine.name == other
            torch.testing.assert_close(loaded(test[0]), expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(pep.with_engine(other)(test[0]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["loop", "vmap", "auto"])
def test_copies_and_pickles_keep_the_engine_and_not_what_it_keeps(mlp, data, name):
    pep = _ensemble(mlp).with_engine(name, "bfloat16")
    with torch.no_grad():
        expected = pep(data[0])
        for again in (copy.deepcopy(pep), pickle.loads(pickle.dumps(pep))):
            assert (again.engine.name, again.engine.precision) == (name, "bfloat16")
            assert again.engine.kept._store is None
            assert torch.equal(again(data[0]), expected)


def test_ensembles_made_from_one_another_share_what_is_kept(mlp, data):
    pep = _ensemble(mlp)
    assert pep.with_temperature(2.0).engine is pep.engine
    assert pep.without_temperature().engine is pep.engine


# Threads


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["mlp", "cnn", "lstm"])
def test_threads_may_use_one_ensemble_at_the_same_time(engine, kind):
    """With the network's own modules swapped in place, as functional_call does, threads meet each other's weights."""
    model, inputs = network_and_inputs(kind)
    before = networks.snapshot(model)
    perturbation = perturbation_of(model)
    runner, expected = ENGINES[engine](), copied_outputs(model, perturbation, 0.5, inputs)
    start = threading.Barrier(4)

    def work(number):
        start.wait()
        return [outputs_of(runner, model, perturbation, 0.5, inputs) for _ in range(8)]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(4)):
            for one in found:
                torch.testing.assert_close(one, expected, rtol=1e-10, atol=1e-12)
    networks.assert_untouched(model, before)


def test_threads_that_ask_about_different_sigmas_get_the_members_of_their_own(mlp, monkeypatch):
    """The second one comes at the worst moment: when the first has the weights of all members, and takes its own."""
    perturbation, others = perturbation_of(mlp), []
    store, stack = Store(members_of(mlp, perturbation, 0.1)), Store._kept_stack

    def interrupted(*given):
        found = stack(*given)
        if not others:
            others.append(threading.Thread(target=store.member, args=(0.2, 1, True)))
            others[0].start()
            others[0].join(0.2)
        return found

    monkeypatch.setattr(Store, "_kept_stack", interrupted)
    found = store.member(0.1, 1, keep=True)
    others[0].join()
    for name, value in perturbation.member(0.1, 1).items():
        assert torch.equal(found[name], value)


def test_the_network_itself_may_be_called_while_its_members_run(data):
    """A shell shares tensors with the network, and no module: what the network says is its own all the time."""
    model = networks.mlp()
    with torch.no_grad():
        expected = model(data[0])
        seen = []

        class Spy(nn.Tanh):
            def forward(self, inputs):
                seen.append(torch.equal(model(data[0]), expected) if not seen else True)
                return super().forward(inputs)

        spied = nn.Sequential(model[0], Spy(), model[2]).eval()
        outputs_of(Loop(), spied, perturbation_of(spied), 0.5, data[0])
    assert seen[0]


# Low precision


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_low_precision_is_autocast_with_the_same_members(engine, precision):
    """Weights carry noise of float32; products are rounded to 8 or 11 bits, a few layers deep."""
    model, inputs = network_and_inputs("cnn", torch.float32)
    perturbation = perturbation_of(model)
    found = outputs_of(ENGINES[engine](precision), model, perturbation, 0.2, inputs)
    with torch.autocast("cpu", getattr(torch, precision)):
        expected = copied_outputs(model, perturbation, 0.2, inputs)
    assert found.dtype == expected.dtype == getattr(torch, precision)
    assert not torch.equal(found.float(), copied_outputs(model, perturbation, 0.2, inputs))
    tolerance = 8 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_predictions_in_low_precision_are_float32_and_passes_float64(overfitted):
    model, validation, _ = overfitted
    pep = pm.fit(model, validation, size=4, precision="bfloat16")
    assert pep.engine.precision == "bfloat16"
    with torch.no_grad():
        assert pep(validation[0]).dtype == torch.float32
    assert pep.member_pass(validation).averaged.dtype == torch.float64
    assert pep.sigma == pytest.approx(pm.fit(model, validation, size=4).sigma, rel=0.3)


def test_what_was_recorded_under_the_callers_autocast_is_not_used_without_it(mlp, data):
    engine, perturbation = Vmap(), perturbation_of(mlp)
    with torch.autocast("cpu", torch.bfloat16):
        assert outputs_of(engine, mlp, perturbation, 0.3, data[0]).dtype == torch.bfloat16
    assert outputs_of(engine, mlp, perturbation, 0.3, data[0]).dtype == torch.float32


# Memory


class Hungry(nn.Module):
    """Runs out of memory above a number of items; vmap or not, a plan or not."""

    def __init__(self, most):
        super().__init__()
        self.layer, self.most = nn.Linear(6, 3), most

    def forward(self, inputs):
        if len(inputs) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return self.layer(inputs)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_that_does_not_fit_is_cut_and_that_is_said_once(engine):
    model, (inputs, labels) = networks.seeded(lambda: Hungry(3)), networks.items(20)
    whole = copy.deepcopy(model)
    whole.most = 20
    runner, perturbation = ENGINES[engine](), perturbation_of(model)
    with pytest.warns(pm.PepWarning, match="memory ran out: going on with .* at a time"):
        found = outputs_of(runner, model, perturbation, 0.3, inputs)
    again = outputs_of(runner, model, perturbation, 0.3, inputs)
    run_members(model, perturbation, 0.3, Batches((inputs, labels), model), Categorical(), lambda items: None, runner)
    expected = copied_outputs(whole, perturbation, 0.3, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-5)


class HungryTogether(nn.Linear):
    """Runs out of memory where more than two members run together."""

    def forward(self, inputs):
        if torch._C._functorch.is_batchedtensor(self.weight):
            members = torch._C._functorch.get_unwrapped(self.weight).shape[0]
            if members > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(inputs)


def test_members_that_do_not_fit_together_run_in_smaller_groups():
    model, (inputs, _) = networks.seeded(lambda: HungryTogether(6, 3)), networks.items(5)
    engine, perturbation = Vmap(), perturbation_of(model, size=7)
    with pytest.warns(pm.PepWarning, match="memory ran out: going on with 4 members at a time"):
        found = outputs_of(engine, model, perturbation, 0.3, inputs)
    outputs_of(engine, model, perturbation, 0.3, inputs)
    assert engine.room.members == 2
    torch.testing.assert_close(found, copied_outputs(model, perturbation, 0.3, inputs), rtol=1e-4, atol=1e-5)


def test_members_run_in_groups_whose_activations_fit(mlp, data, monkeypatch):
    """The largest tensor of a pass is [20, 8], 640 bytes: 5,000 bytes hold seven of them, and pairs stay together."""
    engine, perturbation = Vmap(), perturbation_of(mlp, size=10)
    whole = outputs_of(Vmap(), mlp, perturbation, 0.3, data[0])
    groups, run = [], Store.some
    monkeypatch.setattr(
        Store, "some", lambda self, sigma, a, b, keep: groups.append(b - a) or run(self, sigma, a, b, keep)
    )
    monkeypatch.setattr("peppermill.engines.vmap.room_on", lambda device: 5000)
    torch.testing.assert_close(outputs_of(engine, mlp, perturbation, 0.3, data[0]), whole, rtol=1e-4, atol=1e-5)
    assert groups == [6, 4]


def test_one_item_that_does_not_fit_is_an_error():
    model, (inputs, _) = networks.seeded(lambda: Hungry(0)), networks.items(4)
    with pytest.raises(torch.OutOfMemoryError), pytest.warns(pm.PepWarning, match="2 items at a time"):
        outputs_of(Loop(), model, perturbation_of(model), 0.3, inputs)


def test_a_batch_whose_outputs_do_not_begin_with_items_cannot_be_cut():
    class Transposed(Hungry):
        def forward(self, inputs):
            return super().forward(inputs).T

    model, (inputs, _) = networks.seeded(lambda: Transposed(3)), networks.items(20)
    with pytest.raises(RuntimeError, match=r"the batch cannot be cut, because the network's outputs"):  # noqa: SIM117
        with pytest.warns(pm.PepWarning, match="memory ran out"):
            outputs_of(Loop(), model, perturbation_of(model), 0.3, inputs)


# torch.compile


def test_an_ensemble_can_be_compiled(mlp, data):
    pep = _ensemble(mlp)
    with torch.no_grad():
        expected = pep(data[0])
        compiled = torch.compile(pep, backend="eager")
        torch.testing.assert_close(compiled(data[0]), expected, rtol=1e-5, atol=1e-5)
        mlp[0].weight.add_(1.0)
        torch.testing.assert_close(compiled(data[0]), pep(data[0]), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(pep(data[0]), expected, atol=0.1)
    torch._dynamo.reset()


# CUDA graphs, rehearsed on a CPU


def test_a_graph_is_captured_once_for_each_kind_of_inputs_and_each_sigma(mlp, data):
    captures = []

    def capture(jobs, device):
        captures.append(len(jobs))
        return capture_on_cpu(jobs, device)

    engine, perturbation = Graphs(capture=capture), perturbation_of(mlp)
    for sigma, count in ((0.3, 20), (0.3, 20), (0.3, 5), (0.3, 20), (0.2, 20), (0.2, 20)):
        outputs_of(engine, mlp, perturbation, sigma, data[0][:count])
        assert engine.report == "graphs"
    assert captures == [4, 4, 4]
    with torch.no_grad():
        mlp[0].weight.add_(0.1)
    outputs_of(engine, mlp, perturbation, 0.2, data[0])
    assert captures == [4, 4, 4, 4]
    assert len(engine.captured) == 1  # those of the old weights are gone


def test_auto_looks_at_the_network_while_a_known_graph_runs_and_not_before(mlp, data, monkeypatch):
    """A look at a ResNet50 takes a fifth of the time of ten members on one image."""
    happened = []

    def capture(jobs, device):
        recording = capture_on_cpu(jobs, device)
        return recording._replace(begin=lambda: happened.append("graph runs"))

    engine, perturbation = Auto(), perturbation_of(mlp)
    engine.graphs = engine.engines["graphs"] = Graphs(kept=engine.kept, capture=capture)
    expected = outputs_of(engine.graphs, mlp, perturbation, 0.3, data[0])
    looks = State.holds
    monkeypatch.setattr(State, "holds", lambda *given: happened.append("look") or looks(*given))
    happened.clear()
    assert torch.equal(outputs_of(engine, mlp, perturbation, 0.3, data[0]), expected)
    assert engine.report == "graphs"
    assert happened == ["graph runs", "look"]


def test_outputs_of_an_earlier_call_stay_what_they_were(mlp, data):
    members = members_of(mlp, perturbation_of(mlp), 0.3)
    with torch.no_grad():
        (group,) = graphs().groups(members, (data[0],), {}, keep=True)
        first = group((data[0],), {})
        kept = first.clone()
        assert not torch.equal(group((data[0] + 1,), {}), kept)
    assert torch.equal(first, kept)


def test_only_so_many_graphs_are_kept(mlp, data):
    engine, perturbation = graphs(), perturbation_of(mlp)
    for count in range(1, 13):
        outputs_of(engine, mlp, perturbation, 0.3, data[0][:count])
    assert len(engine.captured) == 8


def test_what_cannot_be_captured_runs_in_the_loop(mlp, data):
    def capture(jobs, device):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    engine, perturbation = Graphs(capture=capture), perturbation_of(mlp)
    found = outputs_of(engine, mlp, perturbation, 0.3, data[0])
    torch.testing.assert_close(found, copied_outputs(mlp, perturbation, 0.3, data[0]), rtol=1e-4, atol=1e-5)
    reason = "CUDA error: operation not permitted when stream is capturing"
    assert engine.report == f"loop, because the network cannot be captured (RuntimeError: {reason})"


def test_every_engine_has_its_row():
    assert set(choose.ENGINES) == set(ENGINES)
    assert all(engine_of(name).name == name for name in choose.ENGINES if name != "graphs")
    assert isinstance(Loop().kept, Kept)


def _ensemble(model, sigma=0.3):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)
        return _at(pm.fit(model, networks.items(), size=4, upper=0.5, iterations=1), sigma)


def _at(pep, sigma):
    recipe = copy.copy(pep.recipe)
    object.__setattr__(recipe, "sigma", sigma)
    return pm.PepEnsemble(pep.model, recipe, pep.engine)
