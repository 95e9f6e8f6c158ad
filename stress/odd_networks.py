"""More networks for the zoo: weights held twice, code that calls autograd, containers, hooks, norms in odd places."""

from __future__ import annotations

import copy
import functools
import types
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from stress.networks import NETWORKS, add, hostile

__all__ = ["NETWORKS"]

Named = namedtuple("Named", "logits hidden")
CALLS = [0]


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


class Dense(nn.Module):
    """Two dense layers; what follows changes the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6).double(), nn.Linear(6, 3).double()

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x).tanh())


# Weights that are held twice: every holder must get the member's


class Attribute(Dense):
    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "kernel", self.first.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x @ self.kernel.t())


class Listed(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.weights = [self.first.weight, {"last": self.last.weight}]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x @ self.weights[0].t(), self.weights[1]["last"])


class Configured(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(kernel=self.first.weight, layer=self.last)

    def forward(self, x: Tensor) -> Tensor:
        return self.config.layer(x @ self.config.kernel.t())


class Partial(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.run = functools.partial(F.linear, weight=self.first.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.run(x))


class Transposed(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = self.first.weight.detach().t()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x @ self.kernel)


class TransposedWithGraph(Transposed):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = self.first.weight.t()


class PartOfWeight(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("part", self.first.weight.detach()[1:4])

    def _apply(self, function: Any, recurse: bool = True) -> PartOfWeight:
        return self  # is float64 already; a conversion would copy the part

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)) + x @ self.part.t()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh())
        self.again, self.last = self.block, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.again(self.block(x)) + self.block(x * 2))


class Methods(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.run = functools.partial(self.inner, scale=2)
        self.activation = lambda x: x.clamp(min=-0.3)

    def inner(self, x: Tensor, scale: int) -> Tensor:
        return self.last(self.activation(self.first(x))) * scale

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


class CachedProperty(Dense):
    @functools.cached_property
    def kernel(self) -> Tensor:
        return self.first.weight @ self.first.weight.t()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x @ self.kernel)


class InnerAttributes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


for name, build in {
    "a parameter as a plain attribute": Attribute,
    "parameters in a list": Listed,
    "an object that holds a parameter": Configured,
    "a partial that holds a parameter": Partial,
    "a view of a weight, made once": Transposed,
    "a view of a weight with its graph": TransposedWithGraph,
    "a buffer that is part of a weight": PartOfWeight,
    "a block under two names": Blocks,
    "a partial of a bound method": Methods,
    "a cached property of a weight": CachedProperty,
    "attributes of its inner network": InnerAttributes,
}.items():
    add(name, build)


# Inputs and outputs


class Returned(Dense):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x).tanh()
        logits = self.last(hidden)
        if self.form == "dataclass":
            return Output(logits, hidden)
        return Named(logits, hidden) if self.form == "named tuple" else (logits, (hidden, {"hidden": hidden}))


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"left": nn.Linear(6, 3), "right": nn.Linear(6, 3)})

    def forward(self, **inputs: Tensor) -> Tensor:
        return sum(self.layers[name](value) for name, value in inputs.items())


class Chosen(ByName):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layers["left" if float(row[0]) > 0 else "right"](row) for row in x])


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


for form in ("dataclass", "named tuple", "nested tuple"):
    add(f"returns a {form}", lambda form=form: Returned(form))
add("layers by the names of inputs", ByName, inputs=lambda: {name: torch.randn(8, 6).double() for name in ("left",)})
add("a layer chosen for each row", Chosen)
add("channels last", images, inputs=lambda: torch.randn(8, 4, 6, 6).double().to(memory_format=torch.channels_last))
add("an input that is a view", images, inputs=lambda: torch.randn(6, 6, 4, 8).double().permute(3, 2, 0, 1))
add("an input that is expanded", Dense, inputs=lambda: torch.randn(8, 1).double().expand(8, 6))


# Norms and layers in odd places


class Skipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        return self.last((self.norm(hidden) + hidden).mean((2, 3)))


class Tokens(nn.Module):
    """A norm over as many tokens as there are features: the wrong axis has the right length."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.before, self.norm, self.layer, self.last = before, nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.norm(x)) if self.before else self.norm(self.layer(x))
        return self.last(x.flatten(1))


class TwoLayersOneNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.a(x)) + self.norm(self.b(x)))


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Shifted(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Shrunk(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 - self.p)


def circular() -> nn.Module:
    first = nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")
    second = nn.Conv2d(4, 4, 3, padding="same", padding_mode="circular")
    norms = nn.BatchNorm2d(4, affine=False), nn.GroupNorm(4, 4, affine=False)
    return nn.Sequential(first, norms[0], nn.ReLU(), second, norms[1], nn.Flatten(), nn.Linear(144, 3))


add("circular padding", circular, 2, 6, 6)
add("a layer before and after its norm", Skipped, 2, 4, 4)
add("a norm over tokens, before", lambda: Tokens(True), 3, 3)
add("a norm over tokens, after", lambda: Tokens(False), 3, 3)
add("one norm after two layers", TwoLayersOneNorm)
add("subclasses of layers", lambda: nn.Sequential(Doubled(6, 6), Shifted(6), Shrunk(0.3), nn.Linear(6, 3)))
add("softmax over the batch", lambda: nn.Sequential(nn.Linear(6, 6), nn.Softmax(dim=0), nn.Linear(6, 3)))
add("gated units", lambda: nn.Sequential(nn.Linear(6, 12), nn.GLU(), nn.Threshold(0.1, -3.0), nn.Linear(6, 3)))


# Weights that are computed


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x)


def parametrized_twice() -> nn.Module:
    layer = nn.Linear(6, 6)
    for name in ("weight", "bias"):
        parametrize.register_parametrization(layer, name, Positive())
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3))


def pruned() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    prune.l1_unstructured(model[0], "weight", 0.5)
    return model


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.last = nn.Parameter(torch.randn(6, 6, dtype=torch.complex128)), nn.Linear(6, 3)

    def _apply(self, function: Any, recurse: bool = True) -> Complex:
        return super()._apply(lambda value: value if value.is_complex() else function(value), recurse)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x.to(self.kernel.dtype) @ self.kernel).abs())


class Average(Dense):
    """Moves a weight of its own towards another one in every call, from a copy of it."""

    def __init__(self) -> None:
        super().__init__()
        self.average = copy.deepcopy(self.first).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.average.weight.lerp_(self.first.weight, 0.1)
        return self.last(self.average(x))


add("a parametrized layer twice", parametrized_twice)
add("two norms of one weight", lambda: parametrizations.spectral_norm(parametrizations.weight_norm(nn.Linear(6, 3))))
add("pruned weights", pruned)
add("complex weights", Complex)
add("an average of its weights", Average)


# Hostile code


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


class Hooked(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.first.register_forward_hook(self.note)

    def note(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        self.seen = [output]
        return output * module.weight.norm()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) + self.seen[0])


class OwnCall(Dense):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x * 2) + 1


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = OwnCall(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x))


@functools.lru_cache
def steps(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float64) / 10


add("a hook that keeps and changes", Hooked)
add("its own __call__", OwnCall)
add("a part with its own __call__", Wrapped)


@hostile
def a_function_of_its_own_for_autograd(self: Any, x: Tensor) -> Tensor:
    return self.last(F.linear(Sign.apply(self.first(x)), Sign.apply(self.first.weight)))


@hostile
def a_branch_by_torch_cond(self: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: self.last(self.first(x)), lambda x: self.last(x) * 2, (x,))


@hostile
def vmap_inside(self: Any, x: Tensor) -> Tensor:
    return torch.vmap(lambda row: self.last(self.first(row).tanh()))(x)


@hostile
def gradients_inside(self: Any, x: Tensor) -> Tensor:
    return self.last(torch.func.grad(lambda z: self.first(z).tanh().square().sum())(x))


@hostile
def autograd_inside(self: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        start = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.first(start).tanh().square().sum(), start)
    return self.last(x - 0.1 * gradient)


@hostile
def checkpointed(self: Any, x: Tensor) -> Tensor:
    return self.last(torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False).tanh())


@hostile
def a_global_counter(self: Any, x: Tensor) -> Tensor:
    CALLS[0] += 1
    return self.last(self.first(x))


@hostile
def a_cached_function(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) + steps(x.shape[1]))


@hostile
def divided_by_the_batch_size(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) / x.shape[0])


@hostile
def a_weight_for_each_place_in_the_batch(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) + self.gates[torch.arange(x.shape[0]) % 2])


@hostile
def batches_of_its_own(self: Any, x: Tensor) -> Tensor:
    return torch.cat([self.last(self.first(part)) for part in x.split(3)])


@hostile
def a_buffer_made_for_the_batch(self: Any, x: Tensor) -> Tensor:
    if len(self.table) != len(x):
        self.table = torch.arange(len(x), dtype=x.dtype).unsqueeze(1).expand(-1, 6) / 10
    return self.last(self.first(x) + self.table)


@hostile
def swaps_a_layer(self: Any, x: Tensor) -> Tensor:
    layer, self.first = self.first, nn.Identity()
    try:
        return self.last(layer(self.first(x)))
    finally:
        self.first = layer


@hostile
def parameters_by_name(self: Any, x: Tensor) -> Tensor:
    kernel = dict(self.named_parameters())["first.weight"]
    return self.last(x @ kernel.t()) + x @ self.state_dict()["last.weight"].t()


@hostile
def a_penalty_of_all_weights(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)) * sum(value.square().sum() for value in self.parameters()) / 100


@hostile
def a_weight_by_its_data(self: Any, x: Tensor) -> Tensor:
    return self.last(x @ self.first.weight.data.t()) * len(self.first.weight.tolist())


@hostile
def rounded_weights(self: Any, x: Tensor) -> Tensor:
    rounded = torch.fake_quantize_per_tensor_affine(self.first(x).float(), 0.1, 0, -128, 127)
    return self.last(F.linear(rounded.double(), (self.first.weight * 8).round() / 8))


@hostile
def a_seed_in_forward(self: Any, x: Tensor) -> Tensor:
    noise = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    return self.last(self.first(x) + noise)


@hostile
def dense_layers_by_keywords(self: Any, x: Tensor) -> Tensor:
    return F.linear(input=F.linear(x, weight=self.first.weight, bias=None), weight=self.last.weight)


@hostile
def asks_for_the_mode_of_gradients(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)) if torch.is_grad_enabled() else self.last(x.tanh())


@hostile
def strides_by_hand(self: Any, x: Tensor) -> Tensor:
    return self.last(torch.as_strided(self.first(x).contiguous(), (len(x), 6), (6, 1)))
