"""Networks of many kinds, each with a batch of inputs: what an engine may meet."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

SCALE = 0.5  # a global that a forward reads


def normed(*layers: nn.Module) -> nn.Sequential:
    """Layers in evaluation mode whose batch norms have seen data; a scale may be negative."""
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, -1, 2)
                nn.init.normal_(module.bias)
    return model


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = normed(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.block = normed(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.relu(x + self.block(x)).mean(dim=(2, 3)))


class SharedConvolution(nn.Module):
    """One kernel under two norms: each use is folded with its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.norms = normed(nn.BatchNorm2d(2), nn.BatchNorm2d(2))
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = torch.tanh(norm(self.conv(x)))
        return self.head(x.mean(dim=(2, 3)))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) if bool(x.sum() > 0) else self.second(x)


class ReadsList(nn.Module):
    """Lengths read with `tolist`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x[:, 0].abs() * 3).long().clamp(1, 6).tolist()
        rows = [F.pad(row[:length], (0, 6 - length)) for row, length in zip(x, lengths, strict=True)]
        return self.layer(torch.stack(rows))


class ReadsNumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        values = np.asarray(x.numpy())
        return self.layer(torch.from_numpy(values - values.mean(axis=1, keepdims=True)))


class DataDependentShape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(1, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (x > 0).nonzero(as_tuple=True)
        features = self.layer(x[rows, columns].unsqueeze(1))
        return self.head(features.new_zeros(len(x), 4).index_add(0, rows, features))


class OwnBuffer(nn.Module):
    """Returns a view of a buffer that the next call overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("out", torch.zeros(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.out[: len(x)] = self.layer(x)
        return self.out[: len(x)]


class CachesWeights(nn.Module):
    """Keeps something made of its weights, as timm's LeViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.cache = nn.Linear(6, 3), {}

    def forward(self, x: Tensor) -> Tensor:
        if "kernel" not in self.cache:
            self.cache["kernel"] = self.layer.weight.t()
        return x @ self.cache["kernel"]


class Configured(nn.Module):
    """Reads an attribute of an object, a list and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.config = type("Config", (), {"scale": 2.0})()
        self.shifts, self.factors = [0.1], {"factor": 1.5}

    def forward(self, x: Tensor) -> Tensor:
        return self.config.scale * self.layer(x) * self.factors["factor"] + self.shifts[0] * x[:, :3]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrence, self.head = nn.LSTM(3, 4, num_layers=2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrence(x.view(-1, 2, 3))[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x.unsqueeze(1).expand(-1, 2, -1)).mean(dim=1))


class TwoLogits(nn.Module):
    """Returns a dict, and takes an optional mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"features": x, "logits": self.layer(x if mask is None else x * mask)}


class ReadsGlobal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return SCALE * self.layer(x)


class Hooked(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 3))
        self[0].register_forward_hook(lambda module, inputs, output: output * 2)


class Counter(nn.Module):
    """Changes an attribute and a buffer in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 3), 0
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.count += 1
        return self.layer(x)


def tied() -> nn.Module:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(6, 3))


def viewing() -> nn.Module:
    """Its `view` refuses images that are channels last."""

    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(48, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).view(x.shape[0], -1))

    return Viewing()


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = (6,)
    is_traced: bool = True
    is_dense: bool = False


IMAGE = (2, 6, 6)

ZOO = {
    "mlp": Case(lambda: normed(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 3)), is_dense=True),
    "mlp, norm first": Case(lambda: normed(nn.BatchNorm1d(6), nn.Linear(6, 3)), is_dense=True),
    "mlp, norm last": Case(lambda: normed(nn.Linear(6, 3, bias=False), nn.BatchNorm1d(3)), is_dense=True),
    "mlp, norm without scale": Case(
        lambda: normed(nn.Linear(6, 4), nn.BatchNorm1d(4, affine=False), nn.GELU(), nn.Dropout(), nn.Linear(4, 3)),
        is_dense=True,
    ),
    "layer norm": Case(lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))),
    "residual": Case(Residual, IMAGE),
    "norm between valid convolutions": Case(
        lambda: normed(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 3),
            nn.Flatten(),
            nn.Linear(64, 3),
        ),
        IMAGE,
    ),
    "norm before padding": Case(
        lambda: normed(
            nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        ),
        IMAGE,
    ),
    "groups": Case(
        lambda: normed(
            nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3)
        ),
        IMAGE,
    ),
    "one kernel, two norms": Case(SharedConvolution, IMAGE),
    "convolution in one dimension": Case(
        lambda: normed(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 3))
    ),
    "tied weights": Case(tied, is_dense=True),
    "parametrized": Case(lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 3))), is_traced=False),
    "view of an image": Case(viewing, IMAGE),
    "dict of outputs": Case(TwoLogits, is_dense=True),
    "old weight norm": Case(lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 3))), is_traced=False),
    "old spectral norm": Case(lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 3))), is_traced=False),
    "hook": Case(Hooked, is_traced=False),
    "branch on values": Case(Branching, is_traced=False),
    "values as a list": Case(ReadsList, is_traced=False),
    "shapes from values": Case(DataDependentShape, is_traced=False),
    "own buffer": Case(OwnBuffer, is_traced=False),
    "cache of weights": Case(CachesWeights, is_traced=False),
    "configuration object": Case(Configured, is_traced=False),
    "global": Case(ReadsGlobal, is_dense=True),
    "counter": Case(Counter, is_traced=False),
    "lstm": Case(Recurrent, is_traced=False),
    "attention": Case(Attentive, is_traced=False),
    "numpy": Case(ReadsNumpy, is_traced=False),
}


def network(name: str) -> tuple[nn.Module, Tensor]:
    """The network in float64, so that a difference is a mistake and not rounding; and 7 items."""
    torch.manual_seed(0)
    case = ZOO[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the old weight norm
        model = case.build()
    return model.double().eval(), torch.randn(7, *case.shape, dtype=torch.float64)
