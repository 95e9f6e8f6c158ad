"""Networks of every kind that we could think of, small and seeded: plain ones, and ones whose code is hostile.

`NETWORKS[name]()` builds one with its inputs. What a network must give is what copies of it give; only those in
`REFUSED` and `RANDOM` are meant to be refused or warned about.
"""

from __future__ import annotations

import math
import os
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

FEATURES, CLASSES = 6, 3
GLOBAL_SCALE, GLOBAL_TABLE = 0.5, {"scale": 0.7}
NETWORKS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {}
REFUSED = {"a lock", "a closure around a layer"}
RANDOM = {"functional dropout", "noise in forward", "numpy noise in forward"}


def add(name: str, build: Callable[[], nn.Module], *shape: int, inputs: Callable[[], Any] | None = None) -> None:
    """A row of the zoo: 8 items of a shape, or inputs of another kind; all in float64."""

    def built() -> tuple[nn.Module, Any]:
        torch.manual_seed(len(name))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old weight norm, nested tensors
            model = build().double().eval()
        for value in model.parameters():
            if value.ndim < 2:
                nn.init.uniform_(value, 0.3, 1.0)
        for buffer_name, value in model.named_buffers():
            if "running" in buffer_name:
                nn.init.uniform_(value, 0.5, 1.5)
        return model, inputs() if inputs else torch.randn(8, *(shape or (FEATURES,)), dtype=torch.float64)

    NETWORKS[name] = built


def hostile(function: Callable[..., Any]) -> Callable[..., Any]:
    """A network with two dense layers, `self.first` and `self.last`, and this forward."""

    class Hostile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)
            self.alpha = nn.Parameter(torch.tensor(0.4))
            self.gates = nn.Parameter(torch.rand(2, FEATURES))
            self.register_buffer("table", torch.rand(64, FEATURES))
            self._scale, self.pair, self.items, self.config = 1.5, (0.5, 2.0), [0.5], types.SimpleNamespace(scale=0.3)
            self.array = np.array([1.5])
            self.cache: dict[str, Any] = {}

    Hostile.forward = function
    add(function.__name__.replace("_", " "), Hostile)
    return function


# Plain networks

for kind in (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid),
    *(nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softsign, nn.PReLU, nn.LogSigmoid, nn.Tanhshrink),
    *(nn.RReLU, nn.Softshrink, nn.Hardshrink),
):
    add(f"mlp with {kind.__name__}", lambda kind=kind: nn.Sequential(nn.Linear(6, 8), kind(), nn.Linear(8, 3)))


def pooled() -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)


for name, norm in {
    "batch norm": lambda: nn.BatchNorm2d(4),
    "batch norm without scale": lambda: nn.BatchNorm2d(4, affine=False),
    "batch norm without statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "instance norm": lambda: nn.InstanceNorm2d(4, affine=True),
    "instance norm with statistics": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "layer norm": lambda: nn.LayerNorm([4, 6, 6]),
    "local response norm": lambda: nn.LocalResponseNorm(2),
    "dropout": lambda: nn.Dropout2d(),
    "alpha dropout": lambda: nn.AlphaDropout(),
}.items():
    add(
        f"{name} after", lambda n=norm: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), n(), nn.ReLU(), *pooled()), 2, 6, 6
    )
    add(
        f"{name} before",
        lambda n=norm: nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), n(), nn.Conv2d(4, 4, 3), *pooled()),
        *(2, 6, 6),
    )

for name, layer in {
    "stride": lambda: nn.Conv2d(4, 4, 3, stride=2),
    "same padding": lambda: nn.Conv2d(4, 4, 3, padding="same"),
    "reflected padding": lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    "dilation": lambda: nn.Conv2d(4, 4, 2, dilation=2),
    "groups": lambda: nn.Conv2d(4, 4, 3, groups=2),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4),
    "no bias": lambda: nn.Conv2d(4, 4, 3, bias=False),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 3, stride=2),
    "max pool": lambda: nn.MaxPool2d(2),
    "average pool": lambda: nn.AvgPool2d(2),
    "norm pool": lambda: nn.LPPool2d(2, 2),
    "upsampled": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "unfolded": lambda: nn.Sequential(nn.Flatten(2), nn.Unflatten(2, (6, 6))),
}.items():
    add(
        f"convolutions, {name}",
        lambda layer=layer: nn.Sequential(
            *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), layer(), nn.BatchNorm2d(4)),
            *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
        ),
        *(2, 6, 6),
    )
add("one dimension", lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(24, 3)), 2, 8)
add(
    "three dimensions",
    lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), nn.Flatten(), nn.Linear(16, 3)),
    1,
    3,
    3,
    3,
)
add("pixels as items", lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1)), 2, 5, 5)
add("pixel shuffle", lambda: nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.PixelShuffle(2)), 2, 4, 4)


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 5, batch_first=True, **options), nn.LazyLinear(CLASSES)
        self(torch.zeros(2, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


for kind in (nn.LSTM, nn.GRU, nn.RNN):
    add(kind.__name__, lambda kind=kind: Recurrent(kind), 3, 4)
    add(f"{kind.__name__}, two ways", lambda kind=kind: Recurrent(kind, bidirectional=True, num_layers=2), 3, 4)
add("LSTM with projection", lambda: Recurrent(nn.LSTM, proj_size=3), 3, 4)


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 5)
        for k in range(3):
            state = self.cell(x[:, k], state)
        return self.head(state)


class Attention(nn.Module):
    """Attention over tokens by torch's own layer, by products, or by einsum."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.mixed, self.head = how, nn.Linear(8, 24), nn.Linear(8, CLASSES)
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)
        self.position = nn.Parameter(torch.rand(1, 4, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.position
        query, key, value = self.mixed(x).chunk(3, dim=-1)
        if self.how == "layer":
            x = self.layer(x, x, x)[0]
        elif self.how == "fused":
            x = F.scaled_dot_product_attention(query, key, value)
        elif self.how == "einsum":
            weights = torch.einsum("bqd,bkd->bqk", query, key).div(math.sqrt(8)).softmax(-1)
            x = torch.einsum("bqk,bkd->bqd", weights, value)
        else:
            x = (query @ key.transpose(1, 2)).softmax(dim=-1) @ value
        return self.head(x.mean(dim=1))


add("cells in a loop", Cells, 3, 4)
for how in ("layer", "fused", "einsum", "products"):
    add(f"attention by {how}", lambda how=how: Attention(how), 4, 8)


class Pooled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean(dim=1)


for first in (True, False):
    add(
        f"encoder, norm {'first' if first else 'last'}",
        lambda first=first: Pooled(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first), nn.Linear(8, 3)
        ),
        *(4, 8),
    )
add("dense over tokens", lambda: Pooled(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)), 3, 4)
add(
    "as many items as members", lambda: Pooled(nn.Linear(4, 3)), inputs=lambda: torch.randn(4, 4, 4, dtype=torch.double)
)
add(
    "classes for each token",
    lambda: nn.Sequential(nn.Linear(4, 3), nn.Softsign(), nn.Flatten(1), nn.Linear(9, 3)),
    3,
    4,
)


# Inputs and outputs of other kinds


class Tokens(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 6, **options), nn.Linear(6, CLASSES)

    def forward(self, words: Tensor, mask: Tensor | None = None) -> Any:
        found = self.words(words)
        return {"logits": self.head((found if mask is None else found * mask.unsqueeze(-1)).mean(dim=1))}


def words() -> Tensor:
    return torch.randint(0, 9, (8, 5))


add("words", Tokens, inputs=words)
add("words of bounded norm", lambda: Tokens(max_norm=0.5), inputs=words)
add("words with padding", lambda: Tokens(padding_idx=0), inputs=words)
add("words and a mask by name", Tokens, inputs=lambda: {"words": words(), "mask": torch.rand(8, 5).double()})
add("words and a mask", Tokens, inputs=lambda: (words(), torch.rand(8, 5).double()))
add("bags of words", lambda: nn.Sequential(nn.EmbeddingBag(9, 6), nn.Linear(6, 3)), inputs=words)
add("bilinear", lambda: nn.Bilinear(6, 6, 3), inputs=lambda: (torch.randn(8, 6).double(), torch.randn(8, 6).double()))


class Returns(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(FEATURES, CLASSES), form

    def forward(self, x: Tensor) -> Any:
        found = self.layer(x)
        forms = {"object": types.SimpleNamespace(logits=found), "list": [found, x], "tuple": (found, None)}
        return forms[self.form]


for form in ("object", "list", "tuple"):
    add(f"returns a {form}", lambda form=form: Returns(form))


# Weights that are computed


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


def parametrized() -> nn.Module:
    layer = nn.Linear(6, 6)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer, nn.Linear(6, 3))


for name, norm in {
    "weight norm": parametrizations.weight_norm,
    "old weight norm": nn.utils.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "old spectral norm": nn.utils.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}.items():
    add(name, lambda norm=norm: nn.Sequential(norm(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 3)))
add("symmetric", parametrized)


def tied() -> nn.Module:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(6, 3))


def repeated() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3))


class CircularLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({"a": nn.BatchNorm1d(6), "b": nn.BatchNorm1d(6)})
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, CLASSES)])
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))])

    def forward(self, x: Tensor) -> Tensor:
        for norm, scale in zip(self.norms.values(), self.scales, strict=True):
            x = torch.tanh(norm(self.layers[0](x)) * scale)
        return self.layers[1](x)


add("tied weights", tied)
add("one layer twice", repeated)
add("one layer under two norms", CircularLayers)
add("frozen layers", lambda: nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.ReLU(), nn.Linear(6, 3)))


# Hostile code


@hostile
def lengths_as_a_list(self: Any, x: Tensor) -> Tensor:
    lengths = (x[:, 0].abs() * 3).long().clamp(1, 6).tolist()
    return self.last(torch.stack([F.pad(row[:k], (0, 6 - k)) for row, k in zip(self.first(x), lengths, strict=True)]))


@hostile
def numpy_inside(self: Any, x: Tensor) -> Tensor:
    values = x.detach().numpy()
    return self.last(self.first(torch.from_numpy(values - values.mean(axis=1, keepdims=True))))


@hostile
def an_array_by_protocol(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) * float(np.asarray(x).max()))


@hostile
def a_branch_on_values(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)) if x.sum() > 0 else self.last(x)


@hostile
def a_branch_on_the_batch_size(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)) if len(x) > 4 else self.last(x)


@hostile
def a_branch_on_the_type(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)) if isinstance(x, Tensor) else self.last(x)


@hostile
def a_loop_until_it_converges(self: Any, x: Tensor) -> Tensor:
    state = x
    for _ in range(50):
        after = torch.tanh(self.first(state) / 4 + x)
        if (after - state).abs().max() < 1e-3:
            break
        state = after
    return self.last(state)


@hostile
def an_early_exit(self: Any, x: Tensor) -> Tensor:
    early = self.last(x)
    sure = early.softmax(dim=1).amax(dim=1) > 0.5
    return torch.where(sure.unsqueeze(1), early, self.last(self.first(x).relu()))


@hostile
def experts_for_some_rows(self: Any, x: Tensor) -> Tensor:
    chosen = self.last(x).argmax(dim=1)
    found = torch.zeros_like(x)
    for k in chosen.unique().tolist():
        found[chosen == k] = self.first(x[chosen == k]) * (k + 1)
    return self.last(found)


@hostile
def shapes_from_values(self: Any, x: Tensor) -> Tensor:
    rows, columns = (x > 0).nonzero(as_tuple=True)
    return self.last(self.first(x).index_add(0, rows, x[rows, columns].unsqueeze(1).expand(-1, 6)))


@hostile
def repeated_rows(self: Any, x: Tensor) -> Tensor:
    counts = (x[:, 0] > 0).long() + 1
    many = self.first(x).repeat_interleave(counts, dim=0)
    return self.last(torch.stack([part.mean(dim=0) for part in many.split(counts.tolist())]))


@hostile
def boxes_from_values(self: Any, x: Tensor) -> Tensor:
    start = int(x.abs().argmax()) % 4
    return self.last(F.pad(self.first(x)[:, start : start + 3], (0, 3)))


@hostile
def returns_its_own_buffer(self: Any, x: Tensor) -> Tensor:
    self.table[: len(x), :3] = self.last(self.first(x))
    return self.table[: len(x), :3]


@hostile
def keeps_something_of_its_weights(self: Any, x: Tensor) -> Tensor:
    if "kernel" not in self.cache:
        self.cache["kernel"] = self.first.weight.t()
    return self.last(x @ self.cache["kernel"])


@hostile
def keeps_an_attribute_of_its_weights(self: Any, x: Tensor) -> Tensor:
    if not hasattr(self, "kernel"):
        self.kernel = self.first.weight.detach() * 2
    return self.last(x @ self.kernel)


@hostile
def counts_its_calls(self: Any, x: Tensor) -> Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    self.table += 1
    return self.last(self.first(x)) * self.calls


@hostile
def a_running_mean_in_evaluation(self: Any, x: Tensor) -> Tensor:
    self.table.mul_(0.9).add_(0.1 * x.mean())
    return self.last(self.first(x) + self.table[0])


@hostile
def a_configuration_object(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) * self.config.scale) * self.items[0]


@hostile
def private_attributes_and_tuples(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) * self._scale) * self.pair[1]


@hostile
def an_array_as_attribute(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)) * float(self.array[0])


@hostile
def globals(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) * GLOBAL_SCALE) * GLOBAL_TABLE["scale"]


def helper(x: Tensor) -> Tensor:
    return x * GLOBAL_SCALE


@hostile
def a_helper_that_reads_a_global(self: Any, x: Tensor) -> Tensor:
    return self.last(helper(self.first(x)))


@hostile
def the_environment(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)) * float(os.environ.get("STRESS_SCALE", "2"))


@hostile
def a_weight_as_a_number(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)) * float(self.alpha)


@hostile
def a_branch_on_a_weight(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)) if self.first.weight.sum() > 0 else self.last(x)


@hostile
def weights_by_numpy(self: Any, x: Tensor) -> Tensor:
    return self.last(x @ torch.from_numpy(self.first.weight.detach().numpy().T.copy()))


@hostile
def a_gate(self: Any, x: Tensor) -> Tensor:
    return self.last(x + self.alpha * self.first(x))


@hostile
def standardized_weights(self: Any, x: Tensor) -> Tensor:
    weight = self.first.weight
    return self.last(F.linear(x, (weight - weight.mean(dim=1, keepdim=True)) / weight.std(), self.first.bias))


@hostile
def weights_made_of_weights(self: Any, x: Tensor) -> Tensor:
    return self.last(F.linear(x, self.first.weight @ self.first.weight.T, bias=self.first.bias))


@hostile
def weights_made_of_the_input(self: Any, x: Tensor) -> Tensor:
    return self.last(torch.bmm(self.first(x).unsqueeze(1), x.unsqueeze(2) * x.unsqueeze(1)).squeeze(1))


@hostile
def parameters_that_are_added(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) * self.gates[0] + self.gates[1])


@hostile
def a_table_that_is_looked_up(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) + self.table[: x.shape[0]])


@hostile
def sorted_features(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x).sort(dim=1).values.cumsum(dim=1))


@hostile
def the_batch_is_centered(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x - x.mean(dim=0)))


@hostile
def writes_to_its_input(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x.sub_(0.5).div_(0.5)))


@hostile
def writes_to_its_input_by_index(self: Any, x: Tensor) -> Tensor:
    x[:, 0] = 0
    return self.last(self.first(x))


@hostile
def writes_to_its_input_by_numpy(self: Any, x: Tensor) -> Tensor:
    x.numpy()[:, 1] *= 2
    return self.last(self.first(x))


@hostile
def writes_to_its_input_by_an_out_argument(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(torch.mul(x, 2, out=x)))


@hostile
def an_exception_as_control_flow(self: Any, x: Tensor) -> Tensor:
    try:
        return self.last(x.reshape(-1, 7))
    except RuntimeError:
        return self.last(self.first(x))


@hostile
def arguments_with_defaults(self: Any, x: Tensor, scale: float = 2.0, *, shift: Any = None) -> Tensor:
    return self.last(self.first(x) * scale) + (0 if shift is None else shift)


@hostile
def clips_its_weights(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.first.weight.clamp_(-0.3, 0.3)
    return self.last(self.first(x))


@hostile
def clips_its_weights_by_data(self: Any, x: Tensor) -> Tensor:
    self.first.weight.data.clamp_(-0.3, 0.3)
    return self.last(self.first(x))


@hostile
def functional_dropout(self: Any, x: Tensor) -> Tensor:
    return self.last(F.dropout(self.first(x)))


@hostile
def noise_in_forward(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) + torch.randn_like(x))


@hostile
def numpy_noise_in_forward(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)) * float(np.random.rand())


class InPlaceFirst(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LeakyReLU(0.3, inplace=True), nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))


class Hooked(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 6), nn.Linear(6, 3))
        self[0].register_forward_hook(lambda module, inputs, output: output * 2)
        self[1].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))


class ClassAttribute(nn.Sequential):
    factor, table = 3.0, {"shift": 0.5}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor + self.table["shift"]


class Property(nn.Sequential):
    @property
    def factor(self) -> float:
        return GLOBAL_SCALE * 4

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


def with_lock() -> nn.Module:
    import threading

    model = nn.Sequential(nn.Linear(6, 3))
    model.lock = threading.Lock()
    return model


def with_closure() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 3))
    inner = model[0]
    model.forward = lambda x: inner(x)
    return model


for name, build in {
    "an activation in place first": InPlaceFirst,
    "hooks": Hooked,
    "class attributes": lambda: ClassAttribute(nn.Linear(6, 3)),
    "a property": lambda: Property(nn.Linear(6, 3)),
    "a lock": with_lock,
    "a closure around a layer": with_closure,
}.items():
    add(name, build)
