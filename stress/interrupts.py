"""Ctrl-C at random moments: the network, the data and torch stay as they were, and the next prediction is right."""

from __future__ import annotations

import random
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm
from stress.networks import NETWORKS
from stress.reference import digest


class Deep(nn.Module):
    """Sixty layers, and a configuration object beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1)) for _ in range(60))
        self.config, self.head = SimpleNamespace(scale=0.5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + self.config.scale * layer(x).tanh()
        return self.head(x)


def jobs(folder: Path) -> list[tuple[str, nn.Module, Any, Callable[[], Any]]]:
    """What is interrupted, by name: the network, its data and the call."""
    torch.manual_seed(0)
    found: list[tuple[str, nn.Module, Any, Callable[[], Any]]] = []
    networks = {"deep": (Deep().double().eval(), torch.randn(8, 6).double())}
    for name in ("LSTM, two ways", "mlp with ReLU", "keeps something of its weights", "old spectral norm", "hooks"):
        networks[name] = NETWORKS[name]()
    for name, (model, x) in networks.items():
        data, pep = (x, torch.arange(8) % 3), pm.PepEnsemble.at_sigma(model, 0.1, size=3)
        calls: dict[str, Callable[[], Any]] = {
            "fit": lambda model=model, data=data: pm.fit(model, data, size=2),
            "predict": lambda model=model, x=x: pm.PepEnsemble.at_sigma(model, 0.1, size=3)(x),
            "gradients": lambda pep=pep, x=x: pep(x.clone().requires_grad_()).sum(),
            "evaluate": lambda model=model, pep=pep, data=data: pm.evaluate(pep, data),
            "save": lambda pep=pep: pep.save(folder / "pep.json"),
            "analysis": lambda model=model, data=data: pm.local_analysis(model, data, probes=3),
        }
        if name == "deep":
            calls["dropout"] = lambda model=model, x=x: pm.McDropout(model, 5)(x)
        found += [(f"{call} of {name}", model, data, job) for call, job in calls.items()]
    return found


def run(seed: int, count: int, deadline: float) -> dict[str, Any]:
    generator, faults = random.Random(seed), list[str]()
    found = {"cases": 0, "completed": 0, "changed": 0, "wrong": 0, "gradients_off": 0}
    old = signal.signal(signal.SIGALRM, _interrupt)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        with tempfile.TemporaryDirectory() as folder:
            chosen = jobs(Path(folder))
            states = {id(model): (digest(model), digest(data)) for _, model, data, _ in chosen}
            right, seconds = {}, {}
            for name, model, (x, _), job in chosen:
                started = time.monotonic()
                job()
                seconds[name] = time.monotonic() - started
                right[name] = _prediction(model, x)
            while found["cases"] < count and time.monotonic() < deadline:
                name, model, data, job = generator.choice(chosen)
                found["cases"] += 1
                found["completed"] += interrupted(job, generator.uniform(0, 1.2 * seconds[name]))
                found["gradients_off"] += not torch.is_grad_enabled()
                torch.set_grad_enabled(True)
                fault = ""
                if states[id(model)] != (digest(model), digest(data)):
                    fault = "changed"
                elif found["cases"] % 10 == 0 and not torch.equal(right[name], _prediction(model, data[0])):
                    fault = "wrong"
                if fault:
                    found[fault] += 1
                    faults.append(f"{fault} after an interrupt in {name}")
                    print(faults[-1], flush=True)
                    states[id(model)] = digest(model), digest(data)
    finally:
        signal.signal(signal.SIGALRM, old)
    return {**found, "faults": faults}


def interrupted(job: Callable[[], Any], delay: float) -> bool:
    """Whether the job came to its end before the interrupt."""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-5))
            job()
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return False


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _prediction(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return pm.PepEnsemble.at_sigma(model, 0.1, size=3)(x)
