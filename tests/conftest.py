"""Fixtures that many tests share, and hypothesis set to repeat the same cases in every run."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import networks
import pytest
import torch
from hypothesis import HealthCheck, settings

try:
    torch.ops.load_library(next(Path(find_spec("torchvision").origin).parent.glob("_C*")))
except (OSError, AttributeError):
    # curvlinops brings torchvision, whose compiled operators do not load beside another build of torch: it then fails
    # to import, and torchmetrics with it, unless the two names exist.
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

os.environ["KERAS_BACKEND"] = "torch"  # read once, when Keras is first imported
os.environ["HF_HUB_OFFLINE"] = "1"  # as above; nothing is downloaded in a test, and nobody waits for five retries

torch.set_num_threads(1)  # networks this small gain nothing from a second thread, and on a busy machine lose a lot

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture
def mlp():
    return networks.mlp()


@pytest.fixture
def cnn():
    return networks.cnn()


@pytest.fixture
def two_inputs():
    """Takes a tuple (left, right) or a dict with `left` and `right`."""
    return networks.seeded(networks.TwoInputs)


@pytest.fixture
def tied():
    return networks.seeded(networks.Tied)


@pytest.fixture
def data():
    """Twenty items for `mlp` and `tied`."""
    return networks.items()


@pytest.fixture
def images():
    """Twenty items for `cnn`."""
    return networks.items(shape=(1, 6, 6))


@pytest.fixture(scope="session")
def overfitted():
    """(model, validation, test): a network that PEP improves. Not to be changed."""
    return networks.overfitted()
