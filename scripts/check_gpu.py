"""The engines on a GPU, in one go: checks first, then measurements. `python scripts/check_gpu.py --out DIR`.

Needs torch, torchvision and this package, and no pytest. Checks print a line each; the table comes last. A check that
fails stops nothing, so that one visit to a GPU shows everything; the exit code is the number of failures.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peppermill as pm

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


def ensemble(model: nn.Module, engine: str, sigma: float = SIGMA) -> pm.PepEnsemble:
    return pm.PepEnsemble.at_sigma(model, sigma, size=SIZE, engine=engine)


@torch.no_grad()
def predictions(pep: pm.PepEnsemble, inputs: Tensor) -> Tensor:
    return pep.member_log_probs(inputs)


def check_noise() -> str:
    """Words are equal; a Gaussian may differ in its last bit, about one in 1e8."""
    like = torch.empty(10_000_019)
    here, there = (pm.Noise(seed=3).draw("layer.weight", 1, one) for one in (like, like.cuda()))
    assert int((here != there.cpu()).sum()) <= 5
    return "the noise of the CPU"


def check_engine(name: str, kind: str) -> str:
    """The loop on the CPU is the measure; twice, for a graph is captured first and replayed then."""
    model, inputs = networks()[kind]
    pep, here = ensemble(model, name), ensemble(copy.deepcopy(model).cpu(), "loop")
    for shown in (inputs, inputs + 1):
        worst = float((predictions(pep, shown).cpu() - predictions(here, shown.cpu())).abs().max())
        assert worst < 1e-9, f"differs by {worst:.2g}"
    return pep.engine.report


def check_low_precision(name: str) -> str:
    """bfloat16 gives float32's probabilities to two digits, folded or not."""
    model, inputs = networks()["resnet18"]
    model, inputs = model.float(), inputs.float()
    exact, low = ensemble(model, name), ensemble(model, name).with_engine(name, "bfloat16")
    worst = float((predictions(low, inputs).exp() - predictions(exact, inputs).exp()).abs().max())
    assert worst < 0.03, f"differs by {worst:.2g}"
    return f"{low.engine.report}, probabilities differ by {worst:.1g}"


def check_change(name: str) -> str:
    """Weights written in place, replaced, and buffers written are noticed."""
    model, inputs = networks()["resnet18"]
    pep = ensemble(model, name)
    predictions(pep, inputs)
    for change in (
        lambda: model.fc.weight.add_(0.5),  # type: ignore[operator, union-attr]
        lambda: setattr(model.fc, "bias", nn.Parameter(model.fc.bias.detach() + 1)),  # type: ignore[union-attr, operator]
        lambda: model.bn1.running_mean.add_(1),  # type: ignore[operator, union-attr]
    ):
        with torch.no_grad():
            change()
        expected = predictions(ensemble(model, "loop"), inputs)
        assert float((predictions(pep, inputs) - expected).abs().max()) < 1e-9
    return pep.engine.report


def check_threads(name: str) -> str:
    """Four threads, one ensemble."""
    model, _ = networks()["resnet18"]
    parts = list(torch.randn(4, 2, 3, 64, 64).double().cuda())
    expected = [predictions(ensemble(model, "loop"), part) for part in parts]
    pep = ensemble(model, name)

    def work(number: int) -> float:
        found = torch.stack([predictions(pep, parts[number]) for _ in range(20)])
        return float((found - expected[number]).abs().max())

    with ThreadPoolExecutor(4) as pool:
        worst = list(pool.map(work, range(4)))
    assert max(worst) < 1e-9, f"differ by {worst}"
    return pep.engine.report


def check_copies(name: str, most: float, at_once: int) -> str:
    """Peak memory of a prediction beyond the plain passes that run at the same time, in copies of the weights."""
    from torchvision.models import resnet50

    model = resnet50().eval().cuda()
    inputs = torch.randn(2, 3, 224, 224, device="cuda")
    pep = ensemble(model, name)
    copy_bytes = sum(value.nbytes for value in pep.perturbation.center.values())
    peaks = []
    for call in (lambda: model(inputs), lambda: pep(inputs)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            call()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    copies, activations = (peaks[1] - at_once * peaks[0]) / copy_bytes, at_once * peaks[0] / copy_bytes
    text = f"{copies:.1f} copies of the selected weights, and {activations:.1f} for {at_once} members' activations"
    assert copies <= most, text
    return text


def check_memory() -> str:
    """A batch that does not fit is cut; most of the card is taken first, so that this is quick."""
    model = nn.Sequential(nn.Conv2d(3, 512, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    model = model.eval().cuda()
    free = torch.cuda.mem_get_info()[0]
    held = torch.empty(int(free - 6 * 2**30), dtype=torch.uint8, device="cuda")
    try:
        inputs = torch.randn(256, 3, 128, 128, device="cuda")  # 8.6 GB of activations
        pep = ensemble(model, "loop")
        found = predictions(pep, inputs)
        expected = torch.cat([predictions(pep, part) for part in inputs.split(32)], dim=1)
    finally:
        del held
    assert torch.allclose(found, expected, atol=1e-3)
    return "in parts"


def check_fit(temperature: bool) -> str:
    """`fit` finds on the GPU what it finds on the CPU, and both ensembles say the same of new items.

    Without TF32: ten bits of every product move sigma* by a percent or two, and its log-likelihood by next to nothing.
    """
    shown = pm.demo.test()[0][:200]
    torch.backends.cudnn.allow_tf32 = False
    try:
        here, there = (
            pm.fit(pm.demo.network().to(device), pm.demo.validation(), size=4, temperature=temperature)
            for device in ("cpu", "cuda")
        )
        with torch.no_grad():
            worst = float((here(shown) - there(shown.cuda()).cpu()).abs().max())
    finally:
        torch.backends.cudnn.allow_tf32 = True
    assert abs(here.sigma - there.sigma) <= 1e-3 * here.sigma, f"sigma is {here.sigma} and {there.sigma}"
    assert worst < 1e-3, f"differs by {worst:.2g}"
    return f"sigma {there.sigma:.5f}, on the CPU {here.sigma:.5f}; predictions differ by {worst:.1g}"


def check_nccl() -> str:
    """The command line under torchrun, rows gathered by NCCL."""
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
    found |= {"copies, auto": lambda: check_copies("auto", SIZE + 2, SIZE)}  # a graph runs all members at once
    found |= {"copies, loop": lambda: check_copies("loop", 2, 1)}
    for name in ("loop", "vmap", "graphs", "compile", "auto"):
        for kind in ("mlp", "resnet18", "transformer", "lstm"):
            found[f"{name} on {kind}"] = lambda name=name, kind=kind: check_engine(name, kind)  # type: ignore[misc]
        found[f"{name}, bfloat16"] = lambda name=name: check_low_precision(name)  # type: ignore[misc]
        found[f"{name}, network changed"] = lambda name=name: check_change(name)  # type: ignore[misc]
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
