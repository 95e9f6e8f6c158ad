"""Every engine gives what copies of the network give, and leaves the network alone."""

import copy
import threading

import pytest
import torch
import zoo
from networks import assert_untouched, snapshot
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import peppermill as pm
from peppermill.engines import ENGINES

ON_CPU = [name for name in ENGINES if name not in ("graphs", "compile")]  # these need a GPU, or minutes
SIGMA = 0.1


def ensemble(model, engine="auto", sigma=SIGMA, **options):
    return pm.PepEnsemble.at_sigma(model, sigma, size=4, engine=engine, **options)


def copies(pep, x, name=None):
    """Log-probabilities of copies of the network whose parameters were overwritten; torch copies no old weight norm."""
    found = []
    for member in range(pep.size):
        network = zoo.network(name)[0] if name else copy.deepcopy(pep.model)
        own = dict(network.named_parameters())
        with torch.no_grad():
            for name_of_array, value in pep.perturbation.member(pep.sigma, member).items():
                own[name_of_array].copy_(value)
            outputs = network(x.clone())
        found.append((outputs["logits"] if isinstance(outputs, dict) else outputs).log_softmax(dim=1))
    return torch.stack(found)


@pytest.mark.parametrize("engine", ON_CPU)
@pytest.mark.parametrize("name", zoo.ZOO)
def test_members_are_copies_of_the_network_with_other_weights(name, engine):
    model, x = zoo.network(name)
    before, pep = snapshot(model), ensemble(model, engine, parameters="kernels")
    for batch in (x, x[:3] * 2, -x):  # another length and other values: nothing of the first batch is baked in
        given = batch.clone()
        with torch.no_grad():
            found = pep.member_log_probs(batch)
        torch.testing.assert_close(found, copies(pep, batch, name), atol=1e-10, rtol=0)
        assert torch.equal(batch, given)
    assert_untouched(model, before)


@pytest.mark.parametrize("name", zoo.ZOO)
def test_all_parameters_may_be_perturbed(name):
    model, x = zoo.network(name)
    pep = ensemble(model, parameters="all")
    with torch.no_grad():
        found = pep.member_log_probs(x)
    torch.testing.assert_close(found, copies(pep, x, name), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", zoo.ZOO)
def test_the_report_says_what_ran_and_why(name):
    model, x = zoo.network(name)
    pep = ensemble(model, "vmap")
    with torch.no_grad():
        pep(x)
    case = zoo.ZOO[name]
    assert pep.engine.report == "vmap" if case.is_dense else pep.engine.report.startswith("loop, because ")
    not_dense = "not only dense layers are perturbed"
    assert (not_dense in pep.engine.report) == (case.is_traced and not case.is_dense)


@pytest.mark.parametrize("name", ["mlp", "residual", "lstm", "dict of outputs"])
@pytest.mark.parametrize("engine", ON_CPU)
def test_sigma_zero_is_the_network_bit_for_bit(name, engine):
    model, x = zoo.network(name)
    pep = ensemble(model, engine, sigma=0.0)
    outputs = model(x)
    expected = (outputs["logits"] if isinstance(outputs, dict) else outputs).log_softmax(dim=1)
    with torch.no_grad():
        assert torch.equal(pep.member_log_probs(x)[0], expected)


@pytest.mark.parametrize("name", ["mlp", "residual", "norm between valid convolutions"])
def test_half_precision_stays_near(name):
    model, x = zoo.network(name)
    model, x = model.float(), x.float()
    pep = ensemble(model)
    with torch.no_grad():
        low, exact = (one(x).exp() for one in (pep.with_engine("auto", "bfloat16"), pep))
    assert 0 < float((low - exact).abs().max()) < 0.05


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].weight.add_(0.5),
        lambda model: setattr(model[0], "weight", nn.Parameter(model[0].weight.detach() + 1)),
        lambda model: setattr(model[0].weight, "data", model[0].weight.detach() + 1),
        lambda model: model[2].running_mean.add_(1),
        lambda model: model[3].bias.zero_(),
        lambda model: model.load_state_dict({k: v + 0.25 for k, v in model.state_dict().items()}),
        lambda model: model.__setitem__(1, nn.Tanh().eval()),
        lambda model: setattr(model[2], "eps", 0.5),
        lambda model: model[0].register_forward_hook(lambda module, inputs, output: output * 2),
    ],
)
@pytest.mark.parametrize("engine", ON_CPU)
def test_a_changed_network_is_noticed(change, engine):
    model, x = zoo.network("mlp")
    pep = ensemble(model, engine)
    with torch.no_grad():
        before = pep.member_log_probs(x)
        change(model)
        found = pep.member_log_probs(x)
    assert not torch.allclose(found, before)
    torch.testing.assert_close(found, copies(pep, x), atol=1e-10, rtol=0)


def test_attributes_and_globals_are_read_anew(monkeypatch):
    """What a network reads besides its tensors is not baked in: objects, lists, dicts, globals, patched classes."""
    for name, change in {
        "configuration object": lambda model: setattr(model.config, "scale", 3.0),
        "configuration object ": lambda model: model.shifts.__setitem__(0, 0.7),
        "configuration object  ": lambda model: model.factors.update(factor=0.2),
        "global": lambda model: monkeypatch.setattr(zoo, "SCALE", 2.5),
        "residual": lambda model: monkeypatch.setattr(
            zoo.Residual, "forward", lambda self, images: self.head(self.stem(images).amax(dim=(2, 3)))
        ),
    }.items():
        model, x = zoo.network(name.strip())
        pep = ensemble(model)
        with torch.no_grad():
            before = pep.member_log_probs(x)
            change(model)
            found = pep.member_log_probs(x)
        assert not torch.allclose(found, before), name
        torch.testing.assert_close(found, copies(pep, x), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["mlp", "lstm", "residual"])
def test_threads_may_share_an_ensemble_and_its_network(name):
    """First calls at the same moment, around one and two ensembles of one network."""
    for trial in range(5):
        model, x = zoo.network(name)
        peps = [ensemble(model), ensemble(model, sigma=0.2)]
        expected = [copies(pep, x) for pep in peps]
        plain, worst, start = model(x).detach(), [], threading.Barrier(8)

        def work(number, peps=peps, x=x, model=model, expected=expected, plain=plain, worst=worst, start=start):
            start.wait()
            for _ in range(3):
                with torch.no_grad():
                    found = peps[number % 2].member_log_probs(x)
                    worst.append(float((found - expected[number % 2]).abs().max()))
                    worst.append(float((model(x) - plain).abs().max()))

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in threads), trial
        assert len(worst) == 48
        assert max(worst) < 1e-10


@pytest.mark.parametrize("engine", ON_CPU)
def test_an_argument_that_comes_later_is_not_ignored(engine):
    """The network was traced for `x` alone; `mask` is None by default."""
    model, x = zoo.network("dict of outputs")
    pep, mask = ensemble(model, engine), torch.zeros_like(x)
    with torch.no_grad():
        plain, masked, again = pep(x), pep(x, mask=mask), pep(x)
        expected = pep.likelihood.predict(model(x, mask=mask)["logits"])
    assert torch.equal(plain, again)
    assert not torch.allclose(masked, plain)
    torch.testing.assert_close(masked, expected, atol=1e-10, rtol=0)  # the bias alone, which carries no noise


class Questions(TorchDispatchMode):
    """Counts how often a number of a tensor becomes a number of Python: on a GPU, each waits for all work before it."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["mlp", "residual", "lstm"])
def test_a_pass_asks_the_device_as_often_for_many_members_as_for_few(name):
    model, x = zoo.network(name)
    data, counts = [(x, torch.arange(7) % 3)] * 3, []
    for size in (2, 8):
        pep = pm.PepEnsemble.at_sigma(model, SIGMA, size=size)
        pep.predict_items(data)  # the first pass compares plan and network
        with Questions() as questions:
            pep.predict_items(data)
        counts.append(questions.count)
    assert counts[0] == counts[1] <= 5 * len(data)


def test_gradients_reach_the_inputs_and_the_perturbed_weights():
    model, x = zoo.network("mlp")
    pep, x = ensemble(model), x.requires_grad_()
    loss = pep(x)[:, 0].sum()
    loss.backward()
    weight, step = model[0].weight, 1e-6
    with torch.no_grad():
        weight[0, 0] += step
        after = ensemble(model)(x)[:, 0].sum()
    assert float((after - loss.detach()) / step) == pytest.approx(float(weight.grad[0, 0]), rel=1e-4)
    assert float(x.grad.abs().sum()) > 0


def test_a_network_that_cannot_be_copied_is_refused_with_the_reason():
    model, x = zoo.network("mlp")
    model.lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot be copied"):
        ensemble(model)(x)


def test_a_closure_around_the_network_is_refused():
    model, x = zoo.network("mlp")
    inner = model[0]
    model.forward = lambda x: inner(x)
    with pytest.raises(TypeError, match="a function that holds parts of the network"):
        ensemble(model)(x)


def test_compiled_members_are_the_loops():
    model, x = zoo.network("residual")
    pep = ensemble(model, "compile")
    with torch.no_grad():
        found, expected = pep.member_log_probs(x), pep.with_engine("loop").member_log_probs(x)
    assert pep.engine.report == "compile"
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


def test_torch_compile_sees_plain_calls():
    model, x = zoo.network("mlp")
    pep = ensemble(model)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(pep, backend="eager")(x), pep(x), atol=1e-10, rtol=0)


def test_torch_compile_leaves_what_the_network_keeps_alone():
    """A member's outputs stay in a structure of ours, not in the user's network."""

    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(6, 3), None

        def forward(self, x):
            self.last = self.layer(x)
            return self.last

    torch.manual_seed(0)
    model, x = Remembers().eval(), torch.randn(4, 6)
    pep = pm.PepEnsemble.at_sigma(model, 0.2, size=2)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(pep, backend="eager")(x), pep(x))
    assert model.last is None


@pytest.mark.parametrize("engine", ["fast", "Loop"])
def test_unknown_engines_are_refused_with_the_known_ones(engine):
    with pytest.raises(ValueError, match="choose one of auto, loop, vmap, graphs, compile"):
        ensemble(zoo.network("mlp")[0], engine)


def test_unknown_precisions_are_refused():
    with pytest.raises(ValueError, match="`precision='int8'` is unknown: choose one of bfloat16, float16"):
        ensemble(zoo.network("mlp")[0]).with_engine("auto", "int8")


def test_graphs_without_a_gpu_are_refused():
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="needs a CUDA GPU"):
            ensemble(zoo.network("mlp")[0], "graphs")


def test_the_old_name_of_an_engine_still_works():
    model, x = zoo.network("mlp")
    assert torch.equal(ensemble(model, "joined")(x), ensemble(model, "loop")(x))


LAZY = """
import sys

def doubled(x):
    sys.modules.pop("email.feedparser", None)
    import email.feedparser  # whose code reads patterns that could change
    return 2 * x
"""


def test_an_import_that_torch_makes_on_the_way_does_not_change_the_engine(monkeypatch):
    """As after a Ctrl-C in the middle of an import, which the next call makes again."""
    lazy = {"__name__": "torch.lazy"}
    exec(LAZY, lazy)
    monkeypatch.setitem(globals(), "doubled", lazy["doubled"])

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return doubled(self.layer(x))  # noqa: F821

    model, x = Network().eval(), torch.randn(5, 6)
    pep = ensemble(model)
    with torch.no_grad():
        pep(x)
    assert pep.engine.report == "vmap"
