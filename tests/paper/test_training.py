"""Networks trained together are the networks that would have been trained alone, and a killed run goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from peppermill.paper import networks, training
from peppermill.paper.machine import Machine
from peppermill.paper.masks import Dropped, mixed
from peppermill.paper.networks import cifar_cnn, initialize, mnist_cnn, mnist_mlp
from peppermill.paper.stacked import State, block_diagonal, forward, stack, unstack
from peppermill.paper.trainer import Schedule, Sgd, Trainer
from peppermill.paper.training import train_together

SHAPES = {"mnist_mlp": (1, 28, 28), "mnist_cnn": (1, 28, 28), "cifar_cnn": (3, 32, 32)}
SEEDS = (17, 18, 19)


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
def test_the_networks_have_the_parameters_that_the_papers_layers_have(
    build: type, classes: int, parameters: int
) -> None:
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
    places = {name: [n for n, m in build(10, True).named_children() if isinstance(m, nn.Dropout)]
              for name, build in networks.NETWORKS.items()}  # fmt: skip
    assert places == {
        "mnist_mlp": ["dense1_dropout", "dense2_dropout", "dense3_dropout"],
        "mnist_cnn": ["conv2_dropout", "dense1_dropout", "dense2_dropout"],
        "cifar_cnn": ["conv3_dropout", "conv4_dropout", "dense1_dropout"],
    }


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("shared", [False, True])
def test_a_stack_computes_what_each_network_computes(name: str, shared: bool) -> None:
    network = networks.NETWORKS[name](10, False)
    state = stack(network, SEEDS)
    for key, value in state.items():
        if "running_mean" in key:
            value.normal_(generator=Generator().manual_seed(1))
    images = made(name, 12)[0]
    own = images.view(4, 3, *SHAPES[name])
    found = forward(network, state, images[:4] if shared else own)
    for index in range(3):
        alone = unstack(networks.NETWORKS[name](10, False), state, index)
        expected = alone(images[:4] if shared else own[:, index])
        torch.testing.assert_close(found[index].T, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(SHAPES))
def test_gradients_together_are_those_of_autograd_for_each_network(name: str) -> None:
    """In float64, in training mode: gradients, and batch-norm averages after the pass, network by network."""
    images, labels = made(name, 30)
    own, chosen = images.double().view(10, 3, *SHAPES[name]), labels.view(10, 3)
    network = networks.NETWORKS[name](10, False)
    state = {key: value.double() for key, value in stack(network, SEEDS).items()}
    params = {key: state[key].requires_grad_() for key, _ in network.named_parameters()}
    losses = nn.functional.cross_entropy(forward(network, state, own, training=True), chosen.T)
    gradients = torch.autograd.grad(losses, list(params.values()))
    for index, seed in enumerate(SEEDS):
        alone = initialize(networks.NETWORKS[name](10, False), seed).double().train()
        (nn.functional.cross_entropy(alone(own[:, index]), chosen[:, index]) / 3).backward()
        for gradient, parameter in zip(gradients, alone.parameters(), strict=True):
            torch.testing.assert_close(gradient[index], parameter.grad, rtol=1e-9, atol=1e-10)
        for key, value in alone.named_buffers():
            if not key.endswith("num_batches_tracked"):
                torch.testing.assert_close(state[key][index], value)


def test_kernels_on_a_block_diagonal_convolve_like_groups() -> None:
    generator = Generator().manual_seed(4)
    kernels, images = torch.rand(3, 5, 2, 3, 3, generator=generator), torch.rand(4, 3 * 2, 8, 8, generator=generator)
    expected = nn.functional.conv2d(images, kernels.flatten(0, 1), groups=3)
    torch.testing.assert_close(nn.functional.conv2d(images, block_diagonal(kernels)), expected)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_sgd_is_that_of_torch(momentum: float) -> None:
    ours, theirs = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    stepped = Sgd([ours], torch.tensor(0.1), momentum)
    reference = torch.optim.SGD([theirs], lr=0.1, momentum=momentum)
    for step in range(3):
        for value, optimizer in ((ours, stepped), (theirs, reference)):
            value.grad = (value.detach() - torch.arange(4)) * (step + 1)
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("name", "layer"), [("mnist_mlp", "dense2"), ("cifar_cnn", "dense1")])
def test_adam_has_keras_epsilon_and_the_moments_of_each_network(name: str, layer: str) -> None:
    """The first moment after one step is a tenth of the gradient of each network's own items."""
    images, labels = made(name, 20)
    build = networks.NETWORKS[name]
    trainer = Trainer(build(10, False), images, labels, SEEDS, Schedule((1e-3,), batch_size=10), Machine())
    chosen = torch.randint(20, (10, 3), generator=Generator().manual_seed(2))
    trainer.run(chosen)
    assert trainer.optimizer.param_groups[0]["eps"] == 1e-7  # type: ignore[union-attr]
    moments = trainer.optimizer.state[trainer.params[f"{layer}.weight"]]["exp_avg"]
    for index, seed in enumerate(SEEDS):
        alone = initialize(build(10, False), seed).train()
        nn.functional.cross_entropy(alone(images[chosen[:, index]]), labels[chosen[:, index]]).backward()
        expected = 0.1 * alone.get_submodule(layer).weight.grad
        torch.testing.assert_close(moments[index], expected, rtol=1e-3, atol=1e-5)


def test_a_batch_of_one_item_has_no_variance_and_is_refused() -> None:
    network = mnist_mlp()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        forward(network, stack(network, SEEDS), made("mnist_mlp", 3)[0].view(1, 3, 1, 28, 28), training=True)


def test_dropout_multiplies_the_activations_of_each_network_by_its_factors() -> None:
    """The last dropout is followed by the output layer alone; the others pass everything."""
    network, images = mnist_mlp(dropout=True), made("mnist_mlp", 4)[0]
    state = stack(network, SEEDS)
    drawn = (torch.rand(3, 4, 200, generator=Generator().manual_seed(8)) < 0.5).to(torch.uint8) * 2
    found = forward(network, state, images, masks=lambda name, shape: drawn if "3" in name else torch.ones(shape))
    for index in range(3):
        alone = unstack(mnist_mlp(dropout=True), state, index)
        expected = alone.output(alone[:-2](images) * drawn[index])
        torch.testing.assert_close(found[index].T, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dropout", "momentum"), [(False, None), (True, None), (False, 0.9)])
def test_a_seed_gives_the_same_network_alone_and_together(dropout: bool, momentum: float | None) -> None:
    images, labels = made("mnist_mlp", 150)  # one full batch of 128 and one of 22
    schedule = Schedule((1e-3, 5e-4), momentum=momentum)
    together = train_together(mnist_mlp(10, dropout), images, labels, SEEDS, schedule, Machine())
    for index, seed in enumerate(SEEDS):
        alone = train_together(mnist_mlp(10, dropout), images, labels, (seed,), schedule, Machine())
        torch.testing.assert_close(together.losses[:, index], alone.losses[:, 0], rtol=1e-4, atol=0)
        logits = [forward(mnist_mlp(), one.state, images)[k] for one, k in ((together, index), (alone, 0))]
        torch.testing.assert_close(*logits, rtol=0, atol=2e-3)


@pytest.mark.parametrize("dropout", [False, True])
def test_what_is_compiled_is_the_same_training(dropout: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler itself aside: what it is given computes the same, with the same masks, and is all but the output."""
    passes: list[set[str]] = []

    def compile_nothing(function: Callable[..., Tensor], dynamic: bool) -> Callable[..., Tensor]:
        def run(state: State, *more: Any) -> Tensor:
            passes.append(set(state))
            return function(state, *more)

        return run

    monkeypatch.setattr(torch, "compile", compile_nothing)
    images, labels = made("cifar_cnn", 150)  # one full batch of 128, compiled, and one of 22
    arguments = (cifar_cnn(10, dropout), images, labels, SEEDS, Schedule((1e-3,)))
    compiled, plain = (train_together(*arguments, Machine(compiled=given)) for given in (True, False))
    torch.testing.assert_close(compiled.state, plain.state, rtol=0, atol=0)
    assert len(passes) == 2  # one before the training, one in it
    assert all("conv1.weight" in names and "output.weight" not in names for names in passes)


def test_seeds_differ_in_weights_in_order_and_in_masks() -> None:
    images, labels = made("mnist_mlp", 128)
    trained = train_together(mnist_mlp(10, True), images, labels, (17, 18), Schedule((1e-3,)), Machine())
    assert not torch.equal(trained.state["dense1.weight"][0], trained.state["dense1.weight"][1])
    assert len({mixed(seed, epoch, part) for seed in range(17, 42) for epoch in range(30) for part in (1, 2)}) == 1500


def test_dropout_factors_are_0_or_2_half_of_the_time_and_new_each_time() -> None:
    dropped = Dropped((17, 18), "cpu")
    dropped("layer", (2, 100, 203))
    dropped.restart(0)
    dropped.refill(100)
    first = dropped("layer", (2, 100, 203)).clone()
    assert set(first.unique().tolist()) == {0, 2}
    assert float(first.float().mean()) == pytest.approx(1, abs=4 / math.sqrt(2 * 100 * 203))  # four standard errors
    dropped.refill(100)
    assert float((dropped("layer", (2, 100, 203)) == first).float().mean()) == pytest.approx(0.5, abs=0.01)
    assert float((first[0] == first[1]).float().mean()) == pytest.approx(0.5, abs=0.015)
    dropped.restart(0)
    dropped.refill(100)
    assert torch.equal(dropped("layer", (2, 100, 203)), first)


@pytest.mark.parametrize("momentum", [None, 0.9, 0.0])
def test_a_killed_run_continues_to_the_same_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, momentum: float | None
) -> None:
    monkeypatch.setattr(training, "PATIENCE", 0.0)  # a checkpoint after every epoch
    images, labels = made("mnist_mlp", 150)
    schedule = Schedule((1e-3,) * 4, momentum=momentum)

    def train(path: Path | None, kill_after: int = 9) -> training.Trained:
        def watch(epoch: int, _: object) -> None:
            if epoch > kill_after:
                raise KeyboardInterrupt

        return train_together(
            mnist_mlp(10, True), images, labels, SEEDS, schedule, Machine(),
            averaged=(1, 3, 4), checkpoint=path, watch=watch,
        )  # fmt: skip

    whole = train(None)
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(path, kill_after=2)
    continued = train(path)
    for name in ("state", "average"):
        for key, value in getattr(whole, name).items():
            assert torch.equal(getattr(continued, name)[key], value)
    assert torch.equal(continued.losses, whole.losses)
    read = train(path)  # the run is done: nothing is trained again
    assert torch.equal(read.state["dense1.weight"], whole.state["dense1.weight"])
    assert torch.equal(read.average["dense1.weight"], whole.average["dense1.weight"])


def test_a_run_can_begin_with_the_epochs_of_another(tmp_path: Path) -> None:
    images, labels = made("mnist_mlp", 150)

    def train(rates: tuple[float, ...], averaged: tuple[int, ...] = (), **more: Path) -> training.Trained:
        return train_together(
            mnist_mlp(), images, labels, SEEDS, Schedule(rates), Machine(), averaged=averaged, **more
        )  # fmt: skip

    train((1e-3, 1e-3), checkpoint=tmp_path / "short")
    whole = train((1e-3, 1e-3, 2e-3), (3,))
    said: list[int] = []
    continued = train_together(
        mnist_mlp(), images, labels, SEEDS, Schedule((1e-3, 1e-3, 2e-3)), Machine(),
        averaged=(3,), beginning=tmp_path / "short", watch=lambda epoch, _: said.append(epoch),
    )  # fmt: skip
    assert said == [3]
    assert torch.equal(continued.average["output.weight"], whole.average["output.weight"])
    other = train((2e-3, 1e-3, 2e-3), (3,), beginning=tmp_path / "short")  # another first rate: begun afresh
    assert not torch.equal(other.average["output.weight"], whole.average["output.weight"])


def test_the_average_is_the_mean_of_the_epochs_asked_for() -> None:
    images, labels = made("mnist_mlp", 150)
    seen: dict[int, Tensor] = {}

    def watch(epoch: int, state: dict[str, Tensor]) -> None:
        seen[epoch] = state["dense2.weight"].detach().clone()

    trained = train_together(
        mnist_mlp(), images, labels, SEEDS, Schedule((1e-3,) * 4), Machine(), averaged=(2, 4), watch=watch
    )
    torch.testing.assert_close(trained.average["dense2.weight"], (seen[2] + seen[4]) / 2)


def test_bfloat16_training_follows_float32_roughly() -> None:
    images, labels = made("mnist_mlp", 256)
    losses = [
        train_together(mnist_mlp(), images, labels, (17,), Schedule((1e-3,) * 3), Machine(precision=p)).losses[-1, 0]
        for p in ("float32", "bfloat16")
    ]
    assert float(losses[1]) == pytest.approx(float(losses[0]), rel=0.1)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="`precision='half'` must be float32, tf32 or bfloat16"):
        Machine(precision="half")


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    images, labels = made("mnist_mlp", 20)
    path = tmp_path / "run.safetensors"
    path.write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"run.safetensors is damaged .*: delete it to compute it again"):
        train_together(mnist_mlp(), images, labels, (17,), Schedule((1e-3,)), Machine(), checkpoint=path)


def test_networks_trained_in_another_arithmetic_are_trained_anew(tmp_path: Path) -> None:
    images, labels = made("mnist_mlp", 64)
    found = {}
    for precision in ("bfloat16", "float32"):
        machine, checkpoint = Machine(precision=precision), tmp_path / "networks.safetensors"
        trained = train_together(mnist_mlp(), images, labels, SEEDS, Schedule((1e-3,)), machine, checkpoint=checkpoint)
        found[precision] = trained.losses
    alone = train_together(mnist_mlp(), images, labels, SEEDS, Schedule((1e-3,)), Machine(precision="float32"))
    assert torch.equal(found["float32"], alone.losses)
    assert not torch.equal(found["float32"], found["bfloat16"])
