"""First calls from eight threads at once, around one and two ensembles of one network."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import torch
from torch import Tensor

import peppermill as pm
from stress.networks import NETWORKS
from stress.reference import digest, member_log_probs

THREADS, SECONDS = 8, 120  # a thread that takes longer hangs
NAMES = ("mlp with ReLU", "LSTM, two ways", "batch norm after", "a configuration object", "old weight norm")
NAMES += ("keeps something of its weights", "attention by layer", "writes to its input", "one layer twice")


def run(seed: int, count: int, deadline: float) -> dict[str, Any]:
    """At least `count` first calls, if there is time."""
    generator, faults, calls = random.Random(seed), list[str](), 0
    found = {"wrong": 0, "hang": 0, "changed": 0}
    expected: dict[Any, Any] = {}
    torch.set_num_threads(1)
    while calls < count and time.monotonic() < deadline:
        name, ensembles = generator.choice(NAMES), generator.choice((1, 2))
        model, x = NETWORKS[name]()
        before = digest(model)
        peps = [pm.PepEnsemble.at_sigma(model, 0.1 * (k + 1), size=3) for k in range(ensembles)]
        for pep in peps:
            if (name, pep.sigma) not in expected:
                with torch.no_grad():
                    expected[name] = NETWORKS[name]()[0](x.clone())
                expected[name, pep.sigma] = member_log_probs(lambda name=name: NETWORKS[name]()[0], pep, x)
        worst = together(peps, x, [expected[name, pep.sigma] for pep in peps], expected[name])
        calls += THREADS
        fault = "hang" if worst is None else "wrong" if worst > 1e-9 else "changed" if digest(model) != before else ""
        if fault:
            found[fault] += 1
            faults.append(f"{fault}: {name}, {ensembles} ensembles")
            print(faults[-1], flush=True)
    return {"cases": calls, **found, "faults": faults}


def together(peps: list[pm.PepEnsemble], x: Tensor, expected: list[Tensor], plain: Tensor) -> float | None:
    """The largest difference in any thread; None if one hangs."""
    start, worst = threading.Barrier(THREADS), list[float]()

    def work(number: int) -> None:
        start.wait()
        mine = number % len(peps)
        with torch.no_grad():
            try:
                worst.append(float((peps[mine].member_log_probs(x) - expected[mine]).abs().max()))
                worst.append(float((peps[mine].model(x.clone()) - plain).abs().max()))
            except Exception as error:
                print(type(error).__name__, error)
                worst.append(float("inf"))

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return max(worst) if not any(thread.is_alive() for thread in threads) else None
