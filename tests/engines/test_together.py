"""All members as one network are the members one by one; and the kernel for that is a convolution."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from peppermill.data import output_tensor
from peppermill.engines.borrowed import borrow
from peppermill.engines.capture import Recording, quickest
from peppermill.engines.joined import joined_recording
from peppermill.engines.joining import channels_last
from peppermill.engines.recorded import Watching
from peppermill.engines.together import Together

MEMBERS = 3


class Residual(nn.Module):
    """[batch, 3, 12, 12] -> [batch, 5]: a shared first layer, a sum, groups, strides, pooling, an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 5, stride=2, padding=2, bias=False), nn.BatchNorm2d(8)
        self.first, self.first_norm = nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(12)
        self.grouped = nn.Conv2d(12, 12, 3, padding=1, groups=4)
        self.dilated = nn.Conv2d(12, 12, 3, padding=2, dilation=2)
        self.shortcut, self.head = nn.Conv2d(8, 12, 1, stride=2), nn.Linear(12, 5)
        self.pool, self.mean = nn.MaxPool2d(3, stride=1, padding=1), nn.AdaptiveAvgPool2d(1)

    def forward(self, images: Tensor) -> Tensor:
        seen = self.pool(F.relu(self.stem_norm(self.stem(images))))
        deep = self.grouped(F.relu(self.first_norm(self.first(seen))))
        joined = self.dilated(F.relu(deep + self.shortcut(seen)))
        logits: Tensor = self.head(torch.flatten(self.mean(joined), 1))
        return logits


class Dense(nn.Module):
    """[batch, 3, 12, 12] -> [batch, 5]: norms before convolutions, and concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.second, self.second_norm = nn.Conv2d(6, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(10, 5)

    def forward(self, images: Tensor) -> Tensor:
        seen = self.first(images)
        more = F.relu(self.second_norm(self.second(F.relu(self.norm(seen)))))
        logits: Tensor = self.head(torch.cat([seen, more], dim=1).mean(dim=(2, 3)))
        return logits


def made(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    network = build().eval()
    for value in (*network.parameters(), *network.buffers()):
        if value.is_floating_point():  # norms as after training: nothing is 0 or 1
            value.data.copy_(torch.rand_like(value) - (0.2 if value.ndim == 1 else 0.5)).add_(0.3 * (value.ndim == 1))
    return network


@pytest.mark.parametrize(
    ("build", "chosen"),
    [*product([Residual, Dense], ["", "head", "first", "weight"]), (Residual, "dilated"), (Dense, "norm")],
)
@pytest.mark.parametrize("batch", [1, 4])
@torch.no_grad()
def test_all_members_as_one_network_are_the_members_one_by_one(
    build: Callable[[], nn.Module], chosen: str, batch: int
) -> None:
    """Whichever weights are the members' own: layers before them are then the same for all."""
    network, images = made(build), channels_last(torch.randn(batch, 3, 12, 12))
    names = [name for name, _ in network.named_parameters() if chosen in name]
    members = [
        {name: network.get_parameter(name) + 0.1 * torch.randn_like(network.get_parameter(name)) for name in names}
        for _ in range(MEMBERS)
    ]
    recording = joined_recording(borrow(network, None, True), members[0], (images,), {}, channels_last)
    assert recording is not None
    together = Together(recording, len(names))
    kept = together.kept(members)
    for shown in (images, images + 1):
        expected = torch.stack([output_tensor(functional_call(network, one, (shown,))) for one in members])
        torch.testing.assert_close(together.run(kept, [shown]), expected, rtol=1e-4, atol=1e-4)


class Convolutions(Watching):
    """The shapes of the kernels with which anything is convolved, and how many images are."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[list[int], int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            self.seen.append((list(args[1].shape), len(args[0])))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("chosen", "images_seen"), [("head", 2), ("dilated", 2), ("first", 2 * MEMBERS)])
@torch.no_grad()
def test_what_all_members_share_is_there_once(chosen: str, images_seen: int) -> None:
    """The kernel of the grouped layer is nobody's own; its two images are, behind a layer that is."""
    network, images = made(Residual), channels_last(torch.randn(2, 3, 12, 12))
    names = [name for name, _ in network.named_parameters() if chosen in name]
    members = [{name: network.get_parameter(name) + number for name in names} for number in range(MEMBERS)]
    recording = joined_recording(borrow(network, None, True), members[0], (images,), {}, channels_last)
    assert recording is not None
    together = Together(recording, len(names))
    kept = together.kept(members)
    with Convolutions() as convolutions:
        together.run(kept, [images])
    assert [one for one in convolutions.seen if one[0][1:] == [3, 3, 3]] == [([12, 3, 3, 3], images_seen)]


def waiting(seconds: float) -> Callable[[], list[Callable[[], Tensor]]]:
    def job() -> Tensor:
        time.sleep(seconds)
        return torch.tensor([seconds])

    return lambda: [job]


def again(jobs: list[Callable[[], Tensor]], device: torch.device) -> Recording:
    return Recording(jobs[0](), lambda: jobs[0]() and None, begin=lambda: None, end=lambda: None)  # type: ignore[func-returns-value]


@pytest.mark.parametrize("waits", [(0.001, 0.01), (0.01, 0.001)])
def test_the_quickest_way_is_taken(waits: tuple[float, float]) -> None:
    found = quickest([waiting(one) for one in waits], again, torch.device("cpu"))  # type: ignore[arg-type]
    assert float(found.outputs) == pytest.approx(0.001)


def test_what_a_graph_reads_stays_alive_as_long_as_the_graph() -> None:
    """A CUDA graph holds addresses and no tensors: here a capture that holds nothing stands for it."""

    def forgetful(jobs: Any, device: torch.device) -> Recording:
        return Recording(torch.zeros(1), lambda: None, begin=lambda: None, end=lambda: None)

    weights = [torch.zeros(3), torch.zeros(3)]
    alive = [weakref.ref(one) for one in weights]
    ways = [lambda one=one: [partial(torch.sum, one)] for one in weights]  # type: ignore[misc]
    found = quickest(ways, forgetful, torch.device("cpu"))
    del ways, weights
    assert sum(one() is not None for one in alive) == 1  # that of the way that was taken
    del found
    assert not any(one() is not None for one in alive)


def test_a_way_that_does_not_work_is_not_taken_unless_it_is_the_only_one() -> None:
    def refused() -> list[Callable[[], Tensor]]:
        raise RuntimeError("vmap: no batching rule")

    found = quickest([waiting(0.0), refused], again, torch.device("cpu"))  # type: ignore[arg-type]
    assert float(found.outputs) == 0
    with pytest.raises(RuntimeError, match="no batching rule"):
        quickest([refused], again, torch.device("cpu"))  # type: ignore[arg-type]


#: Members, batch, channels, sides, outputs, side of the kernel, stride, padding.
CASES = [
    (3, 1, 20, (7, 6), 33, 3, 1, 1),
    (2, 2, 64, (9, 9), 16, 1, 2, 0),
    (2, 1, 5, (8, 8), 70, 5, 2, 2),
    (1, 3, 17, (4, 5), 40, 1, 1, 0),
]


def test_the_kernel_is_a_convolution_of_each_member() -> None:
    """Run by Triton's interpreter, which needs no GPU, but to be asked for before Triton is imported."""
    pytest.importorskip("triton", minversion="3.9")  # before, its interpreter does not count with numpy 2
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    found = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert found.stdout.splitlines() == ["right"] * 8 * len(CASES), found.stderr


def convolved_by_the_kernel(case: Any, shared: bool, other: bool, relu: bool) -> None:
    """Against torch's own; images of one member may be those of all, or lie between those of others."""
    from peppermill.engines.kernels import convolve

    members, batch, channels, sides, outputs, side, stride, padding = case
    torch.manual_seed(0)
    images = torch.randn(batch, *sides, 1 if shared else members, channels).permute(3, 0, 1, 2, 4)
    images = images.expand(members, *images.shape[1:])
    kernels, biases = torch.randn(members, outputs, side, side, channels), torch.randn(members, outputs)
    each = [
        F.conv2d(one.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), bias, stride, padding).permute(0, 2, 3, 1)
        for one, weight, bias in zip(images, kernels, biases, strict=True)
    ]
    others = torch.randn(torch.stack(each).shape) if other else None
    expected = torch.stack(each) + (0 if others is None else others)
    found = convolve(images, kernels, biases, others, stride, padding, relu, "ieee")
    torch.testing.assert_close(found, expected.relu() if relu else expected, rtol=1e-4, atol=1e-4)
    print("right")


if __name__ == "__main__":
    for arguments in product(CASES, (False, True), (False, True), (False, True)):
        convolved_by_the_kernel(*arguments)
