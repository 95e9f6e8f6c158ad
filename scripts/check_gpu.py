"""The engines on a GPU, in one go: checks first, then measurements. `python scripts/check_gpu.py --out DIR`.

Needs torch, torchvision and this package, and no pytest. Checks print a line each; the table comes last. A check that
fails stops nothing, so that one visit to a GPU tells everything; the exit code is the number of failures.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peppermill as pm
import peppermill.demo
from peppermill.engines.choose import engine_of
from peppermill.engines.loop import member_predictions
from peppermill.engines.members import members_of
from peppermill.likelihood import Categorical
from peppermill.noise import Noise
from peppermill.paper.machine import Machine, precision
from peppermill.parameters import select
from peppermill.perturbation import Perturbation

ROOT = Path(__file__).resolve().parents[1]
SIZE, SIGMA = 10, 0.02


class Attentive(nn.Module):
    """[batch, 5, 64] -> [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(inputs).mean(dim=1))
        return logits


class Recurrent(nn.Module):
    """[batch, 5, 64] -> [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence, self.head = nn.LSTM(64, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrence(inputs)[0][:, -1])
        return logits


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    """A network of each kind, in float64 so that a difference is a mistake and not a rounding; with its inputs."""
    from torchvision.models import resnet18

    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.BatchNorm1d(50), nn.Linear(50, 10))
    found = {"mlp": (mlp, (64,)), "resnet18": (resnet18(), (3, 64, 64))}
    found |= {"transformer": (Attentive(), (5, 64)), "lstm": (Recurrent(), (5, 64))}
    return {k: (m.double().eval().cuda(), torch.randn(8, *s).double().cuda()) for k, (m, s) in found.items()}


def predictions(model: nn.Module, inputs: Tensor, engine: object, sigma: float = SIGMA) -> Tensor:
    perturbation = Perturbation(select(model, "kernels"), Noise(), SIZE)
    with torch.no_grad():
        return member_predictions(members_of(model, perturbation, sigma), Categorical(), (inputs,), {}, engine)  # type: ignore[arg-type]


def check_noise() -> str:
    """Words are equal; a Gaussian may differ in its last bit, about one in 1e8."""
    like = torch.empty(10_000_019)
    here, there = (Noise(seed=3).draw("layer.weight", 1, one) for one in (like, like.cuda()))
    assert int((here != there.cpu()).sum()) <= 5
    return "the noise of the CPU"


def check_engine(name: str, kind: str) -> str:
    """The loop on the CPU is the measure; twice, for a graph is captured first and replayed then."""
    model, inputs = networks()[kind]
    engine, here = engine_of(name), copy.deepcopy(model).cpu()
    for shown in (inputs, inputs + 1):
        expected = predictions(here, shown.cpu(), engine_of("loop"))
        worst = float((predictions(model, shown, engine).cpu() - expected).abs().max())
        assert worst < 1e-9, f"differs by {worst:.2g}"
    return engine.report


def check_change(name: str) -> str:
    """Weights written in place, replaced, and loaded are noticed."""
    model, inputs = networks()["resnet18"]
    engine = engine_of(name)
    predictions(model, inputs, engine)
    for change in (
        lambda: model.fc.weight.add_(0.5),  # type: ignore[operator, union-attr]
        lambda: setattr(model.fc, "bias", nn.Parameter(model.fc.bias.detach() + 1)),  # type: ignore[union-attr, operator]
        lambda: model.bn1.running_mean.add_(1),  # type: ignore[operator, union-attr]
    ):
        with torch.no_grad():
            change()
        expected = predictions(model, inputs, engine_of("loop"))
        assert float((predictions(model, inputs, engine) - expected).abs().max()) < 1e-9
    return engine.report


def check_threads(name: str) -> str:
    """Four threads on streams of their own, one engine."""
    model, _ = networks()["resnet18"]
    parts = list(torch.randn(4, 2, 3, 64, 64).double().cuda())
    expected = [predictions(model, part, engine_of("loop")) for part in parts]
    engine = engine_of(name)
    torch.cuda.synchronize()

    def work(number: int) -> float:
        with torch.cuda.stream(torch.cuda.Stream()):
            found = torch.stack([predictions(model, parts[number], engine) for _ in range(20)])
            torch.cuda.current_stream().synchronize()
        return float((found - expected[number]).abs().max())

    with ThreadPoolExecutor(4) as pool:
        worst = list(pool.map(work, range(4)))
    assert max(worst) < 1e-9, f"differ by {worst}"
    return engine.report


def check_dropped(name: str) -> str:
    """What is kept goes (another sigma, changed weights) and its memory is used again, while a slow stream reads it."""
    model, inputs = networks()["resnet18"]
    engine, slow = engine_of(name), torch.cuda.Stream()
    expected = [predictions(model, inputs, engine) for _ in range(2)][-1]
    torch.cuda.synchronize()
    with torch.cuda.stream(slow):
        torch.cuda._sleep(4_000_000_000)  # two seconds, by the clock of the GPU
        found = predictions(model, inputs, engine)
    waits = not slow.query()
    for _ in range(2):
        predictions(model, inputs, engine, 2 * SIGMA)
        with torch.no_grad():
            model.fc.weight.mul_(1)  # type: ignore[operator, union-attr]
        shapes = [(*many, *value.shape) for value in model.parameters() for many in ((), (SIZE,), (), (SIZE,))]
        overwritten = [inputs.new_full(shape, torch.nan) for shape in shapes]
    assert waits, "what was to be slow was done before anything was dropped: nothing was tried"
    slow.synchronize()
    worst = float((found - expected).abs().max())
    assert worst < 1e-9, f"differs by {worst} after {len(overwritten)} tensors were written"
    return engine.report


def check_memory() -> str:
    """A batch that does not fit is cut; half of the card is taken first, so that this is quick."""
    model = nn.Sequential(nn.Conv2d(3, 512, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    model = model.eval().cuda()
    free = torch.cuda.mem_get_info()[0]
    held = torch.empty(int(free - 6 * 2**30), dtype=torch.uint8, device="cuda")
    try:
        inputs = torch.randn(256, 3, 128, 128, device="cuda")  # 8.6 GB of activations
        found = predictions(model, inputs, engine_of("loop"))
        expected = torch.cat([predictions(model, part, engine_of("loop")) for part in inputs.split(32)], dim=1)
    finally:
        del held
    assert torch.allclose(found, expected, atol=1e-3)
    return "in parts"


def check_fit(temperature: bool) -> str:
    """`fit` finds on the GPU what it finds on the CPU, and both ensembles say the same of new items.

    Without TF32: ten bits of every product move sigma* by a percent or two, and its log-likelihood by next to nothing.
    """
    shown = peppermill.demo.test()[0][:200]
    with precision(Machine(precision="float32")):
        here, there = (
            pm.fit(peppermill.demo.network().to(device), peppermill.demo.validation(), size=4, temperature=temperature)
            for device in ("cpu", "cuda")
        )
        with torch.no_grad():
            worst = float((here(shown) - there(shown.cuda()).cpu()).abs().max())
    assert abs(here.sigma - there.sigma) <= 1e-3 * here.sigma, f"sigma is {here.sigma} and {there.sigma}"
    assert worst < 1e-3, f"differs by {worst:.2g}"
    return f"sigma {there.sigma:.5f}, on the CPU {here.sigma:.5f}; predictions differ by {worst:.1g}"


def check_kernel() -> str:
    """Our convolution of all members, exactly and with TF32, against torch's in float64."""
    from peppermill.engines.kernels import convolve

    worst = {"ieee": 0.0, "tf32": 0.0}
    for way in worst:
        for channels, side, outputs, kernel, stride in ((64, 56, 256, 1, 1), (128, 28, 128, 3, 2), (20, 7, 33, 3, 1)):
            images = torch.randn(SIZE, 2, side, side, channels, device="cuda")
            kernels = torch.randn(SIZE, outputs, kernel, kernel, channels, device="cuda") / channels**0.5
            found = convolve(images, kernels, None, None, stride, kernel // 2, False, way)
            each = zip(images.double().movedim(4, 2), kernels.double().movedim(4, 2), strict=True)
            expected = torch.stack([conv2d(one, own, None, stride, kernel // 2) for one, own in each]).movedim(2, 4)
            worst[way] = max(worst[way], float((found - expected).abs().max() / expected.abs().max()))
    assert worst["ieee"] < 1e-5, f"differs by {worst['ieee']:.2g}"
    assert worst["tf32"] < 5e-3, f"with TF32 differs by {worst['tf32']:.2g}"
    return f"differs by {worst['ieee']:.1g}, with TF32 by {worst['tf32']:.1g}"


def check_as_one() -> str:
    """Members side by side or as one network, whichever was quicker, in float32."""
    model, inputs = (one.float() for one in networks()["resnet18"])
    expected = predictions(model, inputs, engine_of("loop"))
    worst = float((predictions(model, inputs, engine_of("graphs")) - expected).abs().max())
    assert worst < 0.05, f"differs by {worst:.2g}"  # TF32, in other orders
    return f"differs by {worst:.1g}"


def check_nccl() -> str:
    """The command line under torchrun, sums by NCCL."""
    demo = ["python:peppermill.demo:network", "python:peppermill.demo:validation"]
    with TemporaryDirectory() as folder:
        command = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "-m", "peppermill", "fit", *demo]
        options = ["--device", "cuda", "--size", "4", "--out", f"{folder}/pep.json"]
        subprocess.run([sys.executable, *command, *options], check=True, cwd=ROOT, capture_output=True)
        sigma: float = json.loads(Path(folder, "pep.json").read_text())["sigma"]
    return f"sigma {sigma:.5f}"


def checks() -> dict[str, Callable[[], str]]:
    found: dict[str, Callable[[], str]] = {"noise": check_noise, "memory": check_memory}
    found |= {"fit": lambda: check_fit(False), "fit with T": lambda: check_fit(True), "torchrun": check_nccl}
    found |= {"convolution of all members": check_kernel, "graphs in float32": check_as_one}
    for name in ("loop", "joined", "vmap", "graphs", "auto"):
        for kind in ("mlp", "resnet18", "transformer", "lstm"):
            found[f"{name} on {kind}"] = lambda name=name, kind=kind: check_engine(name, kind)  # type: ignore[misc]
        found[f"{name}, network changed"] = lambda name=name: check_change(name)  # type: ignore[misc]
        found[f"{name}, dropped"] = lambda name=name: check_dropped(name)  # type: ignore[misc]
        found[f"{name}, threads"] = lambda name=name: check_threads(name)  # type: ignore[misc]
    return found


def _wanted(words: list[str]) -> dict[str, Callable[[], str]]:
    return {name: check for name, check in checks().items() if any(word in name for word in words)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--rounds", default="5")
    parser.add_argument("--only-checks", action="store_true")
    parser.add_argument("--checks", default="", help="only the checks whose names have one of these words")
    arguments = parser.parse_args()
    failed, lines = 0, []
    for name, check in _wanted(arguments.checks.split(",")).items():
        start = time.perf_counter()
        try:
            outcome = f"right ({check()})"
        except Exception:
            failed, outcome = failed + 1, "WRONG"
            traceback.print_exc()
        lines.append(f"{name:28s} {outcome}, {time.perf_counter() - start:.1f} s")
        print(lines[-1], flush=True)
    if not arguments.only_checks:
        command = [sys.executable, "-m", "benchmarks.engines", "--device", "cuda", "--rounds", arguments.rounds]
        failed += subprocess.run([*command, "--out", str(arguments.out)], check=False).returncode != 0
    print("\n".join(lines))
    print(f"{failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
