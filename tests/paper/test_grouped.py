"""Convolutions of several networks by our own kernels, which Triton's interpreter runs without a GPU."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Generator
from torch.nn import functional as F

from peppermill.paper.folding import Folded
from peppermill.paper.grouped import is_suitable
from peppermill.paper.networks import NETWORKS
from peppermill.paper.stacked import entered, forward, stack

#: Networks, images, channels before and after, sides, padding.
CASES = [(2, 3, 16, 32, (6, 5), 0), (3, 2, 32, 16, (5, 7), 1), (2, 2, 16, 64, (4, 4), 1), (2, 40, 64, 32, (5, 4), 0)]


def test_the_kernels_are_the_convolution_of_each_network_and_its_gradients() -> None:
    """The interpreter is asked for before Triton is imported, hence in a process of its own."""
    pytest.importorskip("triton", minversion="3.9")  # before, its interpreter does not count with numpy 2
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    found = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert found.stdout.splitlines() == ["right"] * (2 * len(CASES) + 2), found.stderr


def convolved_and_back(case: tuple[int, int, int, int, tuple[int, int], int], compiled: bool) -> None:
    """Against torch's convolution of groups, as it is and within a traced function."""
    from peppermill.paper.grouped import convolve_groups

    count, batch, inputs, outputs, sides, padding = case
    generator = Generator().manual_seed(0)
    images = torch.randn(batch, count * inputs, *sides, generator=generator, requires_grad=True)
    kernels = torch.randn(count, outputs, inputs, 3, 3, generator=generator, requires_grad=True)
    expected = F.conv2d(images, kernels.flatten(0, 1), padding=padding, groups=count)
    gradient = torch.randn(expected.shape, generator=generator)
    run = torch.compile(convolve_groups, backend="aot_eager") if compiled else convolve_groups
    found = run(images, kernels, padding)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    both = [torch.autograd.grad(one, (images, kernels), gradient) for one in (found, expected)]
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)
    print("right")


def pooled_by_the_kernel(sides: tuple[int, int]) -> None:
    from peppermill.paper.grouped_kernels import pooled

    images = torch.randn(3, 16, *sides).contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(pooled(images), F.max_pool2d(images, 2), rtol=0, atol=0)
    print("right")


@pytest.mark.parametrize("name", ["mnist_cnn", "cifar_cnn"])
def test_vectors_in_the_order_of_channels_last_give_the_same_logits(name: str) -> None:
    network, generator = NETWORKS[name](10, False), Generator().manual_seed(1)
    state = stack(network, (1, 2, 3))
    for key in (key for key in state if "running" in key):
        state[key] = torch.rand(state[key].shape, generator=generator) + 0.5
    images = torch.rand(5, *((1, 28, 28) if name == "mnist_cnn" else (3, 32, 32)), generator=generator)
    (found,) = Folded(list(network.named_children()), state, channels_last=True).run(state, [entered(images, 3)])
    torch.testing.assert_close(found, forward(network, state, images), rtol=1e-4, atol=1e-5)


def test_only_images_on_a_gpu_are_convolved_by_our_kernels() -> None:
    assert not is_suitable(torch.zeros(1, 32, 8, 8), torch.zeros(2, 16, 16, 3, 3))


if __name__ == "__main__":
    torch.backends.cudnn.allow_tf32 = False
    for one in CASES:
        convolved_and_back(one, compiled=False)
        convolved_and_back(one, compiled=True)
    for sides in ((7, 6), (4, 8)):
        pooled_by_the_kernel(sides)
