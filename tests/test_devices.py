"""What must not depend on the device, checked where there is a GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import peppermill as pm
from peppermill.noise import LAWS, Noise

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")


def _network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.BatchNorm2d(8), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(72, 5)]
    return nn.Sequential(*layers).double().eval()


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(300, 1, 14, 14, dtype=torch.float64), torch.randint(0, 5, (300,))


@needs_gpu
@pytest.mark.parametrize("law", LAWS)
def test_the_noise_on_a_gpu_is_the_noise_on_the_cpu(law: str) -> None:
    """Words are equal; a Gaussian may differ in its last bit where float64 logarithms differ, about one in 1e8."""
    like = torch.empty(1_000_003)
    for member in (0, 1, 6):
        here = Noise(law, seed=3).draw("layer.weight", member, like)
        there = Noise(law, seed=3).draw("layer.weight", member, like.cuda()).cpu()
        assert (here != there).sum() <= 2
        assert torch.allclose(here, there, rtol=2**-22, atol=0)


@needs_gpu
def test_sigma_and_predictions_on_a_gpu_are_those_on_the_cpu() -> None:
    model = _network()
    here = pm.fit(model, _data(), temperature=True)
    there = pm.fit(copy.deepcopy(model).cuda(), _data(), temperature=True)
    assert there.sigma == here.sigma
    assert there.temperature == pytest.approx(here.temperature, rel=1e-9)
    inputs = _data()[0]
    assert torch.allclose(there(inputs.cuda()).cpu(), here(inputs), atol=1e-12)


@needs_gpu
def test_an_ensemble_saved_on_the_cpu_loads_on_a_gpu(tmp_path: object) -> None:
    model = _network()
    pep = pm.fit(model, _data())
    pep.save(f"{tmp_path}/pep.json")
    again = pm.load(f"{tmp_path}/pep.json", copy.deepcopy(model).cuda())
    assert again.sigma == pep.sigma
