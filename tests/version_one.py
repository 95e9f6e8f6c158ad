"""The networks and the data for which version one wrote the files in tests/fixtures/version-one.

Every number is a whole number divided by a power of two, so that the weights are the same bits on every machine and the
fingerprints in the files stay valid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FIXTURES = Path(__file__).parent / "fixtures" / "version-one"

FEATURES, CLASSES = 6, 3


def exact(shape: tuple[int, ...], seed: int, step: float) -> Tensor:
    """Whole numbers from -128 to 127, times `step`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=generator).float() * step


def network(outputs: int = CLASSES, shift: float = 0.0) -> nn.Sequential:
    """A network that is far too sure of itself, with a batch norm: [batch, 6] -> [batch, outputs]."""
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs)).eval()
    state = model.state_dict()
    for seed, (name, value) in enumerate(state.items()):
        if value.is_floating_point():
            shape = tuple(value.shape)
            state[name] = exact(shape, seed, 2**-6) + shift * exact(shape, 50 + seed, 2**-6)
    state["1.running_var"] = state["1.running_var"].abs() + 0.5
    state["1.weight"] = state["1.weight"].abs() + 0.5
    model.load_state_dict(state)
    return model


def yes_or_no() -> nn.Sequential:
    return network(1)


def regression() -> nn.Sequential:
    """Its log-variances lie near 0."""
    model = network(2)
    state = model.state_dict()
    state["3.weight"][1] /= 64
    model.load_state_dict(state)
    return model


def items(count: int = 120, seed: int = 100) -> tuple[Tensor, Tensor]:
    """Inputs and the answers of a network near the first, so that labels are wrong where it is unsure."""
    inputs = exact((count, FEATURES), seed, 2**-6)
    with torch.no_grad():
        return inputs, network(shift=0.375)(inputs).argmax(dim=1)


def many_items() -> tuple[Tensor, Tensor]:
    """Enough of them that a part guides the search."""
    return items(800, 300)


def test_items() -> tuple[Tensor, Tensor]:
    return items(60, 900)


def yes_or_no_items() -> tuple[Tensor, Tensor]:
    inputs, _ = items()
    with torch.no_grad():
        return inputs, (network(1, shift=0.375)(inputs).squeeze(1) > 0).float()


def regression_items() -> tuple[Tensor, Tensor]:
    inputs, _ = items()
    with torch.no_grad():
        return inputs, network(2, shift=0.125)(inputs)[:, 0]


def probe_inputs() -> Tensor:
    """The inputs for which version one's predictions are kept."""
    return exact((4, FEATURES), 500, 2**-6)


#: Each ensemble: the file's name, its network, its validation data, and what `fit` was given.
ENSEMBLES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "plain": (network, items, {"size": 6}),
    "joint": (network, items, {"size": 6, "temperature": True}),
    "two-stage": (network, many_items, {"size": 6}),
    "two-stage-joint": (network, many_items, {"size": 6, "temperature": True}),
    "golden": (network, items, {"size": 5, "iterations": 7}),
    "golden-joint": (network, items, {"size": 4, "search": "golden", "temperature": True, "lower": 0.01, "upper": 1.0}),
    "bernoulli": (yes_or_no, yes_or_no_items, {"size": 4, "likelihood": "bernoulli"}),
    "gaussian": (regression, regression_items, {"size": 4, "likelihood": "gaussian", "seed": 3}),
    "last-layer": (network, items, {"size": 4, "parameters": "last_layer"}),
    "uniform": (network, items, {"size": 4, "noise": "uniform", "antithetic": False, "seed": 7}),
}
