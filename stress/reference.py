"""PEP in the plainest way: the same network again, with noise added to its weights, for one member after another."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm


@torch.no_grad()
def member_log_probs(build: Callable[[], nn.Module], pep: pm.PepEnsemble, inputs: Any) -> Tensor:
    """ln p(y; x, theta_j) of every member, [m, ...], from new networks and copies of the inputs."""
    found = []
    for member in range(pep.size):
        changed, own = build(), copy.deepcopy(inputs)
        for name, value in changed.named_parameters():
            if name in pep.recipe.selected:
                value += pep.sigma * pep.recipe.noise.draw(name, member, value).to(value.dtype)
        found.append(logits(called(changed, own)).clone().log_softmax(dim=1))
    return torch.stack(found)


def called(network: Any, inputs: Any) -> Any:
    """`network(x)`, `network(*x)` for a tuple, `network(**x)` for a dict."""
    if isinstance(inputs, dict):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, tuple) else network(inputs)


def logits(outputs: Any) -> Tensor:
    if isinstance(outputs, dict):
        return outputs["logits"]
    return getattr(outputs, "logits", outputs[0] if isinstance(outputs, (tuple, list)) else outputs)


def digest(value: Any) -> str:
    """A digest of a network (tensors, their objects, modes, attributes) or of a batch."""
    words = hashlib.sha256()
    if isinstance(value, nn.Module):
        for path, module in value.named_modules():
            words.update(f"{path} {type(module).__name__} {module.training} {sorted(vars(module))}".encode())
        for name, tensor in (*value.named_parameters(remove_duplicate=False), *value.named_buffers()):
            words.update(f"{name} {id(tensor)} {tensor.requires_grad} {type(tensor).__name__}".encode())
            words.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Tensor):
        words.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    else:
        for part in value.values() if isinstance(value, dict) else value:
            words.update(digest(part).encode())
    return words.hexdigest()
