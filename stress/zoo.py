"""Every network of the zoo, by every engine of a CPU, against copies of it: numbers, network and inputs."""

from __future__ import annotations

import copy
import random
import time
import warnings
from collections import Counter
from typing import Any

import torch

import peppermill as pm
from stress.networks import RANDOM, REFUSED
from stress.odd_networks import NETWORKS
from stress.reference import called, digest, logits, member_log_probs

ENGINES, RULES = ("auto", "loop", "vmap"), ("kernels", "all")
SIGMA, SIZE, TOLERANCE = 0.1, 4, 1e-9
COMPILED = ("mlp with GELU", "batch norm after", "attention by fused", "a gate")  # compiling takes seconds each


def run(seed: int, count: int, deadline: float) -> dict[str, Any]:
    """`count` networks, in an order by the seed."""
    names = list(NETWORKS)
    random.Random(seed).shuffle(names)
    outcomes, faults = Counter(), list[str]()
    done = 0
    for name in names[:count]:
        if time.monotonic() > deadline:
            break
        done += 1
        for engine in (*ENGINES, *(("compile",) if name in COMPILED else ())):
            for rule in RULES:
                outcome = tried(name, engine, rule)
                outcomes[outcome.partition(":")[0]] += 1
                if outcome.startswith("wrong"):
                    faults.append(f"{name}, {engine}, {rule}: {outcome}")
                    print(faults[-1], flush=True)
    return {"networks": done, "cases": sum(outcomes.values()), **outcomes, "faults": faults}


def tried(name: str, engine: str, rule: str) -> str:
    """What happened: right, refused, warned, or wrong and why."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        model, inputs = NETWORKS[name]()
        before = digest(model)
        pep = pm.PepEnsemble.at_sigma(model, SIGMA, size=SIZE, engine=engine, parameters=rule)
        for batch in batches(inputs):
            given = copy.deepcopy(batch)
            try:
                with torch.no_grad():
                    found = called(pep.member_log_probs, batch)
                    alone = logits(called(pep.with_sigma(0.0), batch))
            except TypeError as error:
                return "refused" if name in REFUSED and "cop" in str(error) else f"wrong: {error}"
            except Exception as error:
                return f"wrong: {type(error).__name__}: {str(error)[:100]}"
            if digest(batch) != digest(given):
                return "wrong: the inputs were changed"
            if digest(model) != before:
                return "wrong: the network was changed"
            if name in RANDOM:
                return "warned" if any("same inputs" in str(each.message) for each in said) else "wrong: silent"
            expected = member_log_probs(lambda: NETWORKS[name]()[0], pep, given)
            if found.shape != expected.shape or (found - expected).abs().max() > TOLERANCE:
                return f"wrong: members differ by {float((found - expected).abs().max()):.2g}"
            with torch.no_grad():
                plain = logits(called(NETWORKS[name]()[0], given)).log_softmax(dim=1)
            if (alone - plain).abs().max() > TOLERANCE:
                return "wrong: sigma = 0 is not the network"
    return "right"


def batches(inputs: Any) -> list[Any]:
    """The inputs, a batch of another length, one item, and other values."""
    changes = (
        lambda x: x,
        lambda x: x[:3],
        lambda x: x[1:2],
        lambda x: x.flip(0) * (-2 if x.is_floating_point() else 1),
    )
    return [_each(inputs, change) for change in changes]


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: change(part).clone() for key, part in value.items()}
    return tuple(change(part).clone() for part in value) if isinstance(value, tuple) else change(value).clone()
