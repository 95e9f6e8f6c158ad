"""Networks as the paper built them; a network trained beside others is the network that a plain loop trains."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor, nn

from experiments.table2.small_networks import NETWORKS, cifar_cnn, initialize, mnist_cnn, mnist_mlp
from experiments.table2.training import Schedule, mixed, train

SHAPES = {"mnist_mlp": (1, 28, 28), "mnist_cnn": (1, 28, 28), "cifar_cnn": (3, 32, 32)}


def made(name: str, items: int) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(5)
    return torch.rand(items, *SHAPES[name], generator=generator), torch.randint(10, (items,), generator=generator)


@pytest.mark.parametrize(
    ("build", "classes", "parameters"),
    [
        # dense: 784*200+200, 200*200+200 twice; batch norm: 2*200 three times; output: 200*classes+classes
        (mnist_mlp, 10, 157_000 + 2 * 40_200 + 1_200 + 2_010),
        # conv: 9*32+32, 9*32*64+64; dense: 9216*128+128, 128*64+64; batch norm: 2*(32+64+128+64); output
        (mnist_cnn, 10, 320 + 18_496 + 1_179_776 + 8_256 + 576 + 650),
        # conv: 27*16+16, 144*16+16, 144*32+32, 288*32+32; dense: 1152*128+128; batch norm: 2*(16+16+32+32+128)
        (cifar_cnn, 10, 448 + 2_320 + 4_640 + 9_248 + 147_584 + 448 + 1_290),
        (cifar_cnn, 100, 448 + 2_320 + 4_640 + 9_248 + 147_584 + 448 + 12_900),
    ],
)
def test_the_networks_have_the_parameters_of_the_papers_layers(build: type, classes: int, parameters: int) -> None:
    assert sum(p.numel() for p in build(classes).parameters()) == parameters


def test_kernels_are_glorot_uniform_and_biases_zero() -> None:
    network = initialize(mnist_cnn(), 17)
    for layer, inputs, outputs in ((network.conv2, 32 * 9, 64 * 9), (network.dense1, 9216, 128)):
        limit = math.sqrt(6 / (inputs + outputs))
        assert float(layer.weight.detach().abs().max()) == pytest.approx(limit, rel=1e-3)
        assert float(layer.weight.detach().std()) == pytest.approx(limit / math.sqrt(3), rel=0.02)
        assert not layer.bias.any()


def test_batch_norm_follows_the_relu_with_keras_settings() -> None:
    for network, momentum in ((mnist_mlp(), 0.01), (mnist_cnn(), 0.1), (cifar_cnn(), 0.1)):
        layers = list(network)
        norms = [k for k, layer in enumerate(layers) if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))]
        assert all(isinstance(layers[k - 1], nn.ReLU) for k in norms)
        assert {(layers[k].eps, layers[k].momentum) for k in norms} == {(1e-3, momentum)}


def test_dropout_is_where_the_paper_put_it() -> None:
    places = {
        name: [n for n, layer in build(10, True).named_children() if isinstance(layer, nn.Dropout)]
        for name, build in NETWORKS.items()
    }
    assert places == {
        "mnist_mlp": ["dense1_dropout", "dense2_dropout", "dense3_dropout"],
        "mnist_cnn": ["conv2_dropout", "dense1_dropout", "dense2_dropout"],
        "cifar_cnn": ["conv3_dropout", "conv4_dropout", "dense1_dropout"],
    }


@pytest.mark.parametrize(
    ("name", "momentum"),
    [
        ("mnist_mlp", None),
        ("mnist_mlp", 0.9),
        pytest.param("cifar_cnn", None, marks=pytest.mark.slow),
        pytest.param("mnist_cnn", None, marks=pytest.mark.slow),
    ],
)
def test_a_network_is_trained_as_a_plain_loop_trains_it(name: str, momentum: float | None) -> None:
    """150 items: a batch of 128 and one of 22; another learning rate in the second epoch."""
    (images, labels), rates = made(name, 150), (1e-3, 3e-4)
    images = images.double()  # Adam magnifies the rounding of gradients near 0

    def build() -> nn.Sequential:
        return NETWORKS[name](10, False).double()

    found = train(build, images, labels, [17, 18], Schedule(rates, momentum, keep=(1,)))[1]
    network = initialize(build(), 18).train()
    adam, sgd = torch.optim.Adam(network.parameters(), eps=1e-7), torch.optim.SGD(network.parameters(), momentum=0.9)
    optimizer = adam if momentum is None else sgd
    for epoch, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        total = 0.0
        for chosen in torch.randperm(150, generator=Generator().manual_seed(mixed(18, epoch, 1))).split(128):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            total += len(chosen) * loss.item()
        assert found.losses[epoch] == pytest.approx(total / 150, rel=1e-6)
        for key, value in network.state_dict().items():
            torch.testing.assert_close(found.states[epoch + 1][key], value, rtol=1e-5, atol=1e-7)


def test_a_network_with_dropout_does_not_depend_on_its_neighbours_or_on_the_global_generator() -> None:
    images, labels = made("mnist_mlp", 140)
    schedule = Schedule((1e-3, 1e-3))

    def trained(*seeds: int) -> list[dict[str, Tensor]]:
        torch.manual_seed(len(seeds))
        found = train(lambda: mnist_mlp(dropout=True), images, labels, seeds, schedule)
        return [one.states[2] for one in found]

    together, alone = trained(17, 18)[1], trained(18)[0]
    assert all(torch.equal(together[key], alone[key]) for key in alone)


def test_dropout_halves_the_activations_and_doubles_the_rest() -> None:
    """A network without dropout learns the items; with dropout at 1/2 its training loss is higher."""
    images, labels = made("mnist_mlp", 256)
    schedule = Schedule((2.5e-3,) * 4)
    plain, dropped = (
        train(lambda dropout=dropout: mnist_mlp(dropout=dropout), images, labels, [17], schedule)[0].losses[-1]
        for dropout in (False, True)
    )
    assert dropped > plain + 0.5
