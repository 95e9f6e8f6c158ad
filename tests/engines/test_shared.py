"""What all members have in common is computed once, and only where nobody writes to it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from peppermill.data import Batches
from peppermill.engines import joining
from peppermill.engines.joined import Joined
from peppermill.engines.loop import Loop, member_predictions, run_members
from peppermill.engines.members import members_of
from peppermill.engines.shared import Common
from peppermill.likelihood import Categorical
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.perturbation import Perturbation


class Two(nn.Module):
    """Two convolutions beside each other and a head; what happens between them is the test's."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        value = self.first(x)
        if self.kind == "writes to what is common":
            value += self.second(x)
        elif self.kind == "writes to the inputs":
            value = value + self.second(x.mul_(1.0))
        else:
            value = value + self.second(x)
        return self.head(torch.relu(value).mean(dim=(2, 3)))  # type: ignore[no-any-return]


def made(kind: str, parameters: str) -> tuple[nn.Module, Perturbation]:
    torch.manual_seed(0)
    model = Two(kind).eval()
    return model, Perturbation(select(model, parameters), Noise(), 4)


@pytest.mark.parametrize("parameters", ["last_layer", "second", "kernels"])
@pytest.mark.parametrize("kind", ["plain", "writes to what is common", "writes to the inputs"])
@torch.no_grad()
def test_members_are_those_of_the_loop(kind: str, parameters: str) -> None:
    model, perturbation = made(kind, parameters)
    engine = Joined()
    for _ in range(2):
        images = torch.randn(5, 3, 6, 6)
        found, expected = (
            member_predictions(members_of(model, perturbation, 0.3), Categorical(), (images.clone(),), {}, one)
            for one in (engine, Loop())
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert len(found.unique(dim=0)) == 4


@pytest.mark.parametrize(("parameters", "count"), [("last_layer", 2 * 3), ("second", (1 + 4) * 3), ("kernels", 8 * 3)])
def test_a_convolution_that_is_not_perturbed_runs_once_for_each_batch(
    parameters: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batches, two convolutions, four members; the passes in which the network is recorded are not counted."""
    model, perturbation = made("plain", parameters)
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(14, 3, 6, 6, generator=generator), torch.randint(3, (14,), generator=generator)
    engine, calls, conv2d = Joined(), [], nn.functional.conv2d
    run_members(model, perturbation, 0.2, Batches(data, model, batch_size=5), Categorical(), lambda n: None, engine)
    monkeypatch.setattr(joining.F, "conv2d", lambda *given: (calls.append(1), conv2d(*given))[1])
    found, expected = (
        run_members(model, perturbation, 0.3, Batches(data, model, batch_size=5), Categorical(), lambda n: None, one)
        for one in (engine, Loop())
    )
    torch.testing.assert_close(found.averaged, expected.averaged, rtol=1e-4, atol=1e-5)
    assert len(calls) - 8 * 3 == count  # the loop's own: two for each of four members, on three batches


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    common, made = Common(2 * 40.0), []

    def make() -> tuple[Tensor, ...]:
        made.append(1)
        return (torch.zeros(10),)

    batches = [[torch.zeros(1)] for _ in range(3)]
    for _ in range(2):
        for batch in batches:
            common.of(batch, make)
    assert len(made) == 4  # two are remembered, the third is made again
