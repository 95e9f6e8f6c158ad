"""The local analysis on the networks and data that people have."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

import peppermill as pm
from peppermill.curvature import derivatives


def images(count: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 6, 6, generator=generator), torch.randint(3, (count,), generator=generator)


def network() -> nn.Module:
    """A convolution, batch norm with statistics of its own, tanh and a dense layer: 18 + 96 kernels' numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))
    model(3 * images(50, seed=1)[0] + 1)
    return model.eval()


def numbers(found: pm.LocalAnalysis) -> list[float]:
    fields = [value for value in vars(replace(found)).values() if isinstance(value, float)]
    return [*fields, *found.item_rates.tolist()]


def assert_same(found: pm.LocalAnalysis, expected: pm.LocalAnalysis, rel: float) -> None:
    scale = max(abs(expected.fisher_trace), abs(expected.laplacian))
    assert found.laplacian == pytest.approx(expected.laplacian, rel=rel, abs=rel * scale)
    assert found.fisher_trace == pytest.approx(expected.fisher_trace, rel=rel)
    assert found.effect_rate == pytest.approx(expected.effect_rate, rel=rel, abs=10 * rel * scale)


def test_batches_chunks_and_memory_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = network().double(), images()
    whole = pm.local_analysis(model, (x.double(), y), probes=8)
    assert_same(pm.local_analysis(model, [(x[:5].double(), y[:5]), (x[5:].double(), y[5:])], probes=8), whole, 1e-9)
    monkeypatch.setattr(derivatives, "MEMORY_BYTES", 1)  # one input at a time
    assert_same(pm.local_analysis(model, (x.double(), y), probes=8, batch_size=5), whole, 1e-9)


def test_float32_agrees_with_float64_and_bfloat16_is_computed_in_float32() -> None:
    model, data = network(), images()
    whole = pm.local_analysis(model, data, probes=8)
    assert_same(whole, pm.local_analysis(copy.deepcopy(model).double(), data, probes=8), 1e-4)
    half = copy.deepcopy(model).bfloat16()
    found = pm.local_analysis(half, data, probes=8)
    assert numbers(found) == numbers(pm.local_analysis(copy.deepcopy(half).float(), data, probes=8))
    assert {value.dtype for value in half.parameters()} == {torch.bfloat16}


class Named(nn.Module):
    """Takes keyword arguments and returns a dict, as the models of many libraries do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixels: Tensor, shift: Tensor, flag: bool = True) -> dict[str, Tensor]:
        return {"logits": self.inner(pixels + shift if flag else pixels)}


def test_inputs_may_be_a_dict() -> None:
    model, (x, y) = network(), images()
    batches = [{"pixels": x[k : k + 5] - 1, "shift": torch.ones(len(y[k : k + 5]), 1, 1, 1), "labels": y[k : k + 5]}
               for k in (0, 5, 10)]  # fmt: skip
    found = pm.local_analysis(Named(model).eval(), batches, probes=8, parameters=r"weight$")
    # a fresh selection by the same rule; probes are keyed by name, so only what is exact can agree
    assert found.fisher_trace == pytest.approx(
        pm.local_analysis(model, (x, y), probes=8, parameters=r"weight$").fisher_trace, rel=1e-4
    )


class Branching(nn.Module):
    """Looks at its inputs before it decides, which `vmap` cannot follow."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if float(x.detach().abs().max()) < 1e6 else self.inner(x * 0)


def test_a_network_that_breaks_under_vmap_falls_back_to_a_loop_with_the_same_answer() -> None:
    model, data = network().double(), images()
    with pytest.warns(pm.PepWarning, match="cannot run under vmap .* one item after another: the same answer"):
        looped = pm.local_analysis(Branching(model).eval(), data, probes=8)
    vectorised = pm.local_analysis(nn.Sequential(model).eval(), data, probes=8)
    assert looped.fisher_trace == pytest.approx(vectorised.fisher_trace, rel=1e-12)


class _Cube(torch.autograd.Function):
    """x^3 without a forward derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


class Cubed(nn.Module):
    def __init__(self, cube: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.cube = nn.Linear(4, 5), nn.Linear(5, 3), cube

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.cube(self.first(x)))


def test_operations_without_forward_derivatives_are_differentiated_backwards_with_the_same_answer() -> None:
    x, y = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).double(), torch.arange(9) % 3
    plain = pm.local_analysis(Cubed(lambda x: x**3).double().eval(), (x, y), probes=8)
    backwards = pm.local_analysis(Cubed(_Cube.apply).double().eval(), (x, y), probes=8)
    assert numbers(backwards) == pytest.approx(numbers(plain), rel=1e-9)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, activation="gelu")
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


def test_attention_is_differentiated_twice() -> None:
    """Against the Hessian in full of the head's 12 weights."""
    model = Attentive().double().eval()
    x, y = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(0)).double(), torch.arange(6) % 3
    found = pm.local_analysis(model, (x, y), parameters=r"head\.weight", probes=12)

    def log_likelihood(weight: Tensor) -> Tensor:
        return -nn.functional.cross_entropy(functional_call(model, {"head.weight": weight}, (x,)), y, reduction="sum")

    full = hessian(log_likelihood)(model.head.weight.detach()).reshape(12, 12).detach()
    assert found.laplacian == pytest.approx(float(full.trace()), rel=1e-9)
    everything = pm.local_analysis(model, (x, y), parameters="all", probes=8)
    assert abs(everything.kinks) < 3 * everything.kinks_error + 1e-3 * everything.fisher_trace


def test_every_pixel_that_counts_is_an_item_with_a_gradient_of_its_own() -> None:
    torch.manual_seed(0)
    model, x = nn.Conv2d(1, 3, 3, padding=1).double().eval(), torch.randn(4, 1, 3, 3).double()
    labels = torch.randint(3, (4, 3, 3))
    labels[0], labels[2, 1] = 255, 255  # one image without a label, one with fewer
    likelihood = pm.Categorical(ignored_label=255)
    found = pm.local_analysis(model, (x, labels), probes=8, likelihood=likelihood, batch_size=3)
    log_probs = model(x).log_softmax(1)
    squares = [
        torch.autograd.grad(log_probs[b, labels[b, i, j], i, j], model.weight, retain_graph=True)[0].square().sum()
        for b in range(4) for i in range(3) for j in range(3) if labels[b, i, j] != 255
    ]  # fmt: skip
    assert found.items == len(squares) == 4 * 9 - 9 - 3
    assert found.fisher_trace == pytest.approx(float(sum(squares)), rel=1e-12)
    with pytest.raises(ValueError, match="`data` has no item that counts: every label is the ignored one"):
        pm.local_analysis(model, (x, torch.full_like(labels, 255)), likelihood=likelihood)


class Tied(nn.Module):
    """z = w (w x): one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 1, bias=False)
        self.second = nn.Linear(1, 1, bias=False)
        self.second.weight = self.first.weight
        nn.init.constant_(self.first.weight, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_tied_weights_move_together() -> None:
    """ln L = ln sigmoid(w^2 x), so its slope at w = 1/2, x = 8 is 2 w x (1 - p) with p = sigmoid(2)."""
    data = 8 * torch.ones(2, 1), torch.ones(2)
    found = pm.local_analysis(Tied().double().eval(), data, probes=3, likelihood="bernoulli")
    doubt = 1 - torch.tensor(2.0).double().sigmoid()
    assert found.fisher_trace == pytest.approx(2 * float((8 * doubt) ** 2), rel=1e-10)


class Hinges(nn.Module):
    """z = a relu(w - t): a kink for every item."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1).double())

    def forward(self, t: Tensor) -> Tensor:
        return 2 * torch.relu(self.weight - t)


def test_kinks_are_seen_by_small_steps_and_by_no_derivative() -> None:
    """L = sigmoid(z) jumps in slope by a / 4, so L''/L gains a / 2 at t = w; N / 2 items lie in a unit of t."""
    t = torch.linspace(0, 2, 4001).double()[:-1, None]
    found = pm.local_analysis(
        Hinges().eval(), (t, torch.ones(4000)), probes=3, step=0.05, likelihood="bernoulli", batch_size=4000
    )
    p = torch.sigmoid(2 * (1 - t[t < 1]))
    assert found.rate_from_traces == pytest.approx(float((4 * (1 - p) * (1 - 2 * p)).sum()), rel=1e-9)
    assert found.kinks == pytest.approx(2000 * 2 / 2, rel=0.01)
    assert found.effect_rate == pytest.approx(found.rate_from_traces + found.kinks, rel=1e-9)


@pytest.mark.parametrize("call", [3, 40, 150])
def test_ctrl_c_leaves_the_network_intact(call: int) -> None:
    model, data, calls = network(), images(), [0]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    own = {name: id(value) for name, value in model.named_parameters()}

    def interrupt(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == call:
            raise KeyboardInterrupt

    handle = model[2].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        pm.local_analysis(model, data, probes=64)
    handle.remove()
    assert {name: id(value) for name, value in model.named_parameters()} == own
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.requires_grad and value.grad is None for value in model.parameters())


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch: inside vmap
def test_the_attributes_of_the_network_are_its_own_afterwards(norm: Callable[[nn.Module], nn.Module]) -> None:
    """Old weight norms put a tensor into `module.weight` in every call."""
    model, data = nn.Sequential(nn.Flatten(), norm(nn.Linear(36, 3))).eval(), images()
    model(data[0])
    own = [dict(vars(module)) for module in model.modules()]
    pm.local_analysis(model, data, probes=4)
    for module, attributes in zip(model.modules(), own, strict=True):
        assert all(vars(module)[name] is value for name, value in attributes.items())


def test_the_global_generator_is_left_alone() -> None:
    model = network().requires_grad_(False)
    state = torch.get_rng_state()
    pm.local_analysis(model, images(), probes=8)
    assert torch.equal(torch.get_rng_state(), state)


def test_misuse_is_named() -> None:
    model, data = network(), images()
    with pytest.raises(ValueError, match=r"while it is in training mode: call `model\.eval"):
        pm.local_analysis(network().train(), data)
    with pytest.raises(ValueError, match="`probes=2` must be a whole number, 3"):
        pm.local_analysis(model, data, probes=2)
    with pytest.raises(ValueError, match=r"`step=-0\.1` must be positive"):
        pm.local_analysis(model, data, step=-0.1)
    with pytest.raises(ValueError, match="selects nothing in this Sequential"):
        pm.local_analysis(model, data, parameters="nowhere")
    with pytest.raises(ValueError, match="labels run from 0 to 7, but the network has 3 classes"):
        pm.local_analysis(model, (data[0], torch.tensor([0] * 11 + [7])), batch_size=4)
    with pytest.raises(ValueError, match="NaN or infinite"):
        pm.local_analysis(model, (data[0] * torch.nan, data[1]))


def test_an_interrupt_leaves_no_transform_of_torch_open() -> None:
    """Ctrl-C reaches the main thread only: here just before a transform closes there, the worst moment."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double().eval()

    def interrupt(frame: object, event: str, argument: object) -> None:
        if event == "c_call" and "decrement_nesting" in getattr(argument, "__name__", ""):
            raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            pm.local_analysis(model, (torch.randn(6, 4).double(), torch.arange(6) % 3), probes=3)
    finally:
        sys.setprofile(before)
    x = torch.ones(3, requires_grad=True)
    x.square().sum().backward()  # torch refuses it inside of a transform
    assert torch.equal(x.grad, torch.full((3,), 2.0))
