"""A convolution that does the work of what follows it: the same numbers in fewer operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peppermill.engines import joining
from peppermill.engines.capture import Recording
from peppermill.engines.graphs import Graphs
from peppermill.engines.joined import MOST_KINDS, Joined
from peppermill.engines.joining import channels_last, convolution_relu, convolution_sum_relu, join, plain_convolution
from peppermill.engines.loop import Loop, member_predictions
from peppermill.engines.members import members_of
from peppermill.engines.recorded import record
from peppermill.likelihood import Categorical
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.perturbation import Perturbation


def conv(inputs: int, outputs: int, side: int = 3, bias: bool = False, **more: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, side, padding=side // 2, bias=bias, **more)


class Block(nn.Module):
    """As in a ResNet: the sum of two branches, each with a norm, and a ReLU."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.norm1, self.relu = conv(4, 6, bias=True), nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        self.second, self.norm2 = conv(6, 6, groups=2), nn.BatchNorm2d(6, affine=False)
        self.shortcut, self.norm3 = conv(4, 6, 1), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.norm3(self.shortcut(x))
        out = self.norm2(self.second(self.relu(self.norm1(self.first(x)))))
        if self.kind == "in place":
            out += kept
        elif self.kind == "other way round":
            out = kept + out
        elif self.kind == "broadcast":
            out = out + kept.mean(dim=1, keepdim=True)
        elif self.kind == "used again":
            return self.relu(out + kept) + out
        else:
            out = out + kept
        return self.relu(out)


class Small(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.stem, self.norm, self.pool = conv(3, 4, stride=2), nn.BatchNorm2d(4), nn.MaxPool2d(2)
        self.block, self.last, self.head = Block(kind), conv(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.pool(torch.relu(self.norm(self.stem(x)))))
        return self.head(self.last(x).mean(dim=(2, 3)))  # type: ignore[no-any-return]


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = Small(kind).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
            if module.affine:
                nn.init.normal_(module.weight)  # negative scales too
                nn.init.normal_(module.bias)
    return model


#: What becomes of the five convolutions: how many end in a ReLU, how many in a sum and a ReLU, how many in neither.
KINDS = {
    "plain": (2, 1, 2),
    "in place": (2, 1, 2),
    "other way round": (2, 1, 2),
    "broadcast": (2, 0, 3),
    "used again": (2, 0, 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_operations_give_the_same_numbers(kind: str) -> None:
    model = network(kind)
    images = torch.randn(2, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        recording = record(lambda: model(images), [images])
        assert join(recording) > 0
        targets = [node.target for node in recording.graph.nodes]
        found = tuple(targets.count(one) for one in (convolution_relu, convolution_sum_relu, plain_convolution))
        assert found == KINDS[kind]
        assert not any("conv" in str(one) or "batch_norm" in str(one) for one in targets if str(one).startswith("aten"))
        for shown in (images, images + 1):
            torch.testing.assert_close(recording.compiled()(shown), model(shown), rtol=1e-4, atol=1e-5)


def engine_of(name: str) -> Joined | Graphs:
    return Joined() if name == "joined" else Graphs(capture=again_and_again)


@pytest.mark.parametrize("name", ["joined", "graphs"])
@pytest.mark.parametrize("parameters", ["conv", "all"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_members_in_fewer_operations_are_those_of_the_loop(kind: str, parameters: str, name: str) -> None:
    """With norms among what is perturbed, and after a norm was changed in place."""
    model, images = network(kind), torch.randn(2, 3, 16, 16)
    perturbation = Perturbation(select(model, parameters), Noise(), 4)
    engine = engine_of(name)
    for _ in range(2):
        for shown in (images, images + 1):
            found, expected = (
                member_predictions(members_of(model, perturbation, 0.05), Categorical(), (shown,), {}, one)
                for one in (engine, Loop())
            )
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert engine.report == name
        model.norm.running_mean.add_(1)  # type: ignore[operator, union-attr]


@torch.no_grad()
def test_what_writes_to_the_inputs_of_a_convolution_comes_after_it() -> None:
    """The sum waits for the shortcut; a convolution joined to it must not see what was written meanwhile."""

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.shortcut = conv(3, 3), nn.BatchNorm2d(3), conv(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = x + 1
            out = self.norm(self.conv(x))
            x.mul_(3)
            return torch.relu(out + self.shortcut(x)).mean(dim=(2, 3))

    torch.manual_seed(0)
    model, images = Writing().eval(), torch.randn(2, 3, 8, 8)
    recording = record(lambda: model(images), [images])
    join(recording)
    torch.testing.assert_close(recording.compiled()(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["joined", "graphs"])
@torch.no_grad()
def test_a_network_that_will_not_have_channels_last_keeps_its_form(name: str) -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = conv(3, 4), nn.Linear(4 * 25, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.conv(x)).view(len(x), -1))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, images = Viewing().eval(), torch.randn(2, 3, 5, 5)
    perturbation, engine = Perturbation(select(model, "kernels"), Noise(), 4), engine_of(name)
    found, expected = (
        member_predictions(members_of(model, perturbation, 0.05), Categorical(), (images,), {}, one)
        for one in (engine, Loop())
    )
    torch.testing.assert_close(found, expected)
    assert engine.report == name


class Copying(nn.Module):
    """A network that computes with weights of its own making: torch does not see that they are made of the given."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = conv(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        kernel = torch.from_numpy(self.conv.weight.detach().numpy().copy())
        return self.head(torch.relu(nn.functional.conv2d(x, kernel)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["joined", "graphs"])
@torch.no_grad()
def test_weights_that_are_copied_unseen_are_not_taken_for_constants(name: str) -> None:
    torch.manual_seed(0)
    model, images, engine = Copying().eval(), torch.randn(2, 3, 5, 5), engine_of(name)
    perturbation = Perturbation(select(model, "kernels"), Noise(), 4)
    found, expected = (
        member_predictions(members_of(model, perturbation, 0.5), Categorical(), (images,), {}, one)
        for one in (engine, Loop())
    )
    torch.testing.assert_close(found, expected)
    assert len(found.unique(dim=0)) == 4


@torch.no_grad()
def test_hooks_are_called_for_every_member() -> None:
    model, engine, called = network("plain"), Joined(), list[int]()
    model.get_submodule("stem").register_forward_hook(lambda *given: called.append(1))
    perturbation = Perturbation(select(model, "conv"), Noise(), 4)
    for _ in range(2):
        images = torch.randn(2, 3, 16, 16)
        member_predictions(members_of(model, perturbation, 0.05), Categorical(), (images,), {}, engine)
    assert len(called) == 8
    assert engine.report == "loop, because the network has hooks, which may do more than compute"


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_channels_come_last_however_many_there_are(channels: int) -> None:
    """Of one channel both orders are the same in memory, and torch takes the usual one unless strides say otherwise."""
    images = torch.randn(2, channels, 4, 5)
    found = channels_last(images)
    assert torch.equal(found, images)
    assert found.stride() == (20 * channels, 1, 5 * channels, channels)
    assert F.conv2d(found, channels_last(torch.randn(6, channels, 3, 3))).stride()[1] == 1


@pytest.mark.parametrize("size", [1, 3])
@torch.no_grad()
def test_gray_images_run_joined_with_channels_last(size: int) -> None:
    """Convolution, ReLU, norm and pooling as in the paper's networks, then a flattening in the order of channels."""
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.MaxPool2d(2)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(5 * 4 * 4, 3)).eval()
    members = members_of(model, Perturbation(select(model, "kernels"), Noise(), 4), 0.1)
    images, engine = torch.randn(size, 1, 12, 12), Joined()
    found, expected = (member_predictions(members, Categorical(), (images,), {}, one) for one in (engine, Loop()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert engine.report == "joined"
    (known,) = engine.kept.store(members).prepared["joined"].values()
    assert known.form is channels_last


@torch.no_grad()
def test_batches_of_many_kinds_are_joined_up_to_a_few() -> None:
    model, engine = network("plain"), Joined()
    perturbation = Perturbation(select(model, "conv"), Noise(), 4)
    for size in range(1, MOST_KINDS + 3):
        members, images = members_of(model, perturbation, 0.05), torch.randn(size, 3, 16, 16)
        found, expected = (member_predictions(members, Categorical(), (images,), {}, one) for one in (engine, Loop()))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert engine.report.startswith("joined" if size <= MOST_KINDS else "loop, because these are inputs of more")


@torch.no_grad()
def test_weights_are_prepared_once_for_each_member_and_sigma(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folding of a kernel, counted: five convolutions, four of them with a norm; four members."""
    folded = []
    monkeypatch.setattr(joining, "_scale", lambda *given, was=joining._scale: folded.append(1) or was(*given))
    model, engine, images = network("plain"), Joined(), torch.randn(2, 3, 16, 16)
    perturbation = Perturbation(select(model, "conv"), Noise(), 4)
    counts = []
    for sigma in (0.05, 0.05, 0.1, 0.1):
        folded.clear()
        member_predictions(members_of(model, perturbation, sigma), Categorical(), (images,), {}, engine)
        counts.append(len(folded))
    assert counts == [5 * 8, 0, 4 * 8, 0]  # a kernel and a bias for each norm; the first time it is tried once more


def again_and_again(jobs: list, device: torch.device) -> Recording:  # type: ignore[type-arg]
    outputs = torch.cat([job() for job in jobs])
    return Recording(
        outputs, lambda: outputs.copy_(torch.cat([job() for job in jobs])), begin=lambda: None, end=lambda: None
    )
