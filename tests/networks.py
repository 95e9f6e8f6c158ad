"""Tiny networks with seeded weights, in evaluation mode, and data for them."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 6, 3


def seeded(build: Any, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """What `build` makes with its weights drawn from the seed, the global generator left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
    return model.to(dtype).eval()


def mlp(seed: int = 0, dtype: torch.dtype = torch.float32, classes: int = CLASSES) -> nn.Sequential:
    """[batch, 6] -> [batch, classes]."""
    layers = lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, classes))  # noqa: E731
    return seeded(layers, seed, dtype)


def cnn(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """[batch, 1, 6, 6] -> [batch, 3], with batch norm whose statistics are not those of a fresh layer."""
    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 5),
            nn.BatchNorm1d(5),
            nn.ReLU(),
            nn.Linear(5, CLASSES),
        ),
        seed,
        dtype,
    )
    for norm in (model[1], model[5]):
        norm.running_mean.copy_(torch.linspace(-0.2, 0.3, norm.num_features))
        norm.running_var.copy_(torch.linspace(0.5, 1.5, norm.num_features))
    return model


class TwoInputs(nn.Module):
    """Logits of `left` and `right`, each [batch, 6]; they differ, so that exchanging them is noticed."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(FEATURES, 4), nn.Linear(FEATURES, 4)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([self.left(left).tanh(), self.right(right).relu()], dim=-1))
        return logits


class Tied(nn.Module):
    """Two layers with one weight: `decoder.weight` is `encoder.weight`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.decoder.weight = self.encoder.weight
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.decoder(self.encoder(inputs).tanh()).tanh())
        return logits


class Wrapped(nn.Module):
    """A network that returns an object with `logits`, a dict, or a tuple."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.inner, self.form = nn.Linear(FEATURES, CLASSES), form

    def forward(self, inputs: Tensor) -> Any:
        logits = self.inner(inputs)
        forms = {"object": SimpleNamespace(logits=logits), "dict": {"logits": logits}, "tuple": (logits, inputs)}
        return forms[self.form]


class Interrupted(nn.Module):
    """A network whose forward pass raises from its n-th call on, whichever copy of it is called."""

    remaining = 0

    def __init__(self, inner: nn.Module, calls: int, error: BaseException) -> None:
        super().__init__()
        self.inner, self.error = inner, error
        Interrupted.remaining = calls

    def forward(self, inputs: Tensor) -> Tensor:
        Interrupted.remaining -= 1
        bool(inputs.isfinite().all())  # reads a value, so that nobody traces it
        if Interrupted.remaining < 0:
            raise self.error
        logits: Tensor = self.inner(inputs)
        return logits


def items(
    count: int = 20, shape: tuple[int, ...] = (FEATURES,), seed: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Standard normal inputs [count, *shape] and labels 0..2."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *shape, generator=generator, dtype=dtype)
    return inputs, torch.randint(CLASSES, (count,), generator=generator)


class Counting(nn.Module):
    """A network that counts the rows it is given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.counts = inner, []

    def forward(self, inputs: Tensor) -> Tensor:
        self.counts.append(len(inputs))
        return self.inner(inputs)


def overfitted(seed: int = 0) -> tuple[nn.Sequential, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A network trained to certainty on 60 items with noisy labels; its validation and test items, 300 each."""
    generator = torch.Generator().manual_seed(100 + seed)
    centers = torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (660,), generator=generator)
    inputs = centers[labels] + 1.5 * torch.randn(660, FEATURES, generator=generator)
    model = seeded(
        lambda: nn.Sequential(nn.Linear(FEATURES, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, CLASSES)),
        seed,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[:60]), labels[:60]).backward()
        optimizer.step()
    model.zero_grad()
    return model, (inputs[60:360], labels[60:360]), (inputs[360:], labels[360:])


def snapshot(model: nn.Module) -> dict[str, Any]:
    """All that must be the same after everything: the state, each module's mode, each parameter's requires_grad."""
    return {
        "state": copy.deepcopy(model.state_dict()),
        "modes": {name: module.training for name, module in model.named_modules()},
        "requires_grad": {name: value.requires_grad for name, value in model.named_parameters()},
        "identity": {name: id(value) for name, value in model.named_parameters(remove_duplicate=False)},
        "gradients": {name: value.grad is None for name, value in model.named_parameters()},
    }


def assert_untouched(model: nn.Module, before: dict[str, Any]) -> None:
    after = snapshot(model)
    assert {k: v for k, v in after.items() if k != "state"} == {k: v for k, v in before.items() if k != "state"}
    assert list(after["state"]) == list(before["state"])
    for name, value in before["state"].items():
        assert torch.equal(after["state"][name], value), f"{name} was changed"
