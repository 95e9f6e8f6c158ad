"""What must not depend on the device, checked where there is a GPU."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

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
@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("engine", ["loop", "joined", "vmap", "graphs", "auto"])
def test_every_engine_on_a_gpu_gives_what_the_loop_gives_on_the_cpu(engine: str, precision: str | None) -> None:
    """Twice with other inputs, because a graph is captured the first time and replayed the second."""
    model = _network().float()
    pep = pm.fit(model, (_data()[0].float(), _data()[1]), size=4, engine="loop")
    there = pm.PepEnsemble(copy.deepcopy(model).cuda(), pep.recipe).with_engine(engine, precision)
    with torch.no_grad():
        for inputs in _data()[0].float().split(150):
            tolerance = 1e-3 if precision is None else 0.05
            assert torch.allclose(there(inputs.cuda()).cpu(), pep(inputs), atol=tolerance)
    assert engine in ("auto", there.engine.report)


@needs_gpu
def test_threads_on_streams_of_their_own_may_use_one_graph() -> None:
    model = _network().cuda()
    pep = pm.fit(model, _data(), size=4).with_engine("graphs")
    parts = [part.cuda() for part in _data()[0].split(75)]
    with torch.no_grad():
        expected = [pep.with_engine("loop")(part) for part in parts]

    def work(number: int) -> bool:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            found = [pep(parts[number]) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        return all(torch.allclose(one, expected[number], atol=1e-9) for one in found)

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@needs_gpu
def test_an_ensemble_saved_on_the_cpu_loads_on_a_gpu(tmp_path: object) -> None:
    model = _network()
    pep = pm.fit(model, _data())
    pep.save(f"{tmp_path}/pep.json")
    again = pm.load(f"{tmp_path}/pep.json", copy.deepcopy(model).cuda())
    assert again.sigma == pep.sigma
