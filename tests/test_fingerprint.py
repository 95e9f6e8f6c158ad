from __future__ import annotations

import re

import networks
import pytest
import torch
from torch import nn

from peppermill.fingerprint import difference, fingerprint


def changed(model, change):
    with torch.no_grad():
        change(model)
    return model


def add_to_weight(model):
    model[0].weight[0, 0, 1, 1] += 1e-6


def add_to_buffer(model):
    model[1].running_mean[2] += 1e-6


def exchange_two_weights(model):
    model[7].weight[[0, 1]] = model[7].weight[[1, 0]]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            lambda: networks.mlp(),
            "it has 4 arrays with 83 numbers, the saved one has 16 with 421: another architecture",
        ),
        (lambda: nn.Sequential(networks.cnn()), "its arrays have other names or shapes: another architecture"),
        (lambda: networks.cnn().double(), "its numbers are float64,int64, the saved one's are float32,int64: convert"),
        (
            lambda: networks.cnn(seed=1),
            "its parameters have other values: it was trained further, or from another seed",
        ),
        (lambda: changed(networks.cnn(), add_to_weight), "its parameters have other values"),
        (lambda: changed(networks.cnn(), exchange_two_weights), "its parameters have other values"),
        (lambda: changed(networks.cnn(), add_to_buffer), "but its buffers .* have other values"),
    ],
)
def test_what_differs_is_said_in_words(other, text):
    found = difference(fingerprint(networks.cnn()), fingerprint(other()))
    assert re.search(text, found), found


def test_the_same_weights_have_the_same_fingerprint():
    assert difference(fingerprint(networks.cnn()), fingerprint(networks.cnn())) == ""


def test_what_does_not_change_predictions_does_not_change_the_fingerprint():
    """Gradients, requires_grad, memory layout, the mode."""
    before = fingerprint(networks.cnn())
    model = networks.cnn().train().requires_grad_(False)
    model[0].weight.data = model[0].weight.data.to(memory_format=torch.channels_last)
    model[4].weight.grad = torch.ones_like(model[4].weight)
    assert fingerprint(model) == before


def test_a_shape_is_part_of_the_architecture():
    """Six numbers either way."""
    first, second = nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False)
    assert "other names or shapes" in difference(fingerprint(first), fingerprint(second))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_type_has_a_fingerprint(dtype):
    model = networks.cnn(dtype=dtype)
    assert fingerprint(model) == fingerprint(networks.cnn(dtype=dtype))
    assert str(dtype).removeprefix("torch.") in fingerprint(model).types


def test_a_fingerprint_is_pinned():
    """A file saved by one version must be read by the next: zeros in a layer of known shape."""
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    found = fingerprint(model)
    # sha256 of "weight[2, 2]bias[2]", of 24 zero bytes, and of nothing
    assert found.architecture == "89d71929f3106e53"
    assert found.parameters == "9d908ecfb6b256de"
    assert found.buffers == "e3b0c44298fc1c14"
    assert (found.tensors, found.numbers, found.types) == (2, 6, "float32")
