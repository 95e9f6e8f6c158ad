"""The engine that is always right: one member at a time, through `torch.func.functional_call`.

The user's network is read, never written: its own parameters are back in place after each call, also after an
exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.data import Batches, as_arguments, output_tensor
from peppermill.foreign import functional_call, in_training_mode, out_of_training_mode
from peppermill.perturbation import Perturbation
from peppermill.types import Batch, Likelihood, Params, Tick


@dataclass(frozen=True)
class MemberPass:
    """What one pass of all members over the data leaves behind: everything else is computed from it."""

    sigma: float
    member_log_likelihoods: Tensor  # ln L_i(theta_j), [m, N]
    averaged: Tensor  # the ensemble's prediction of eq. 9, [N, K]
    labels: Tensor  # [N]


@torch.no_grad()
def run_members(
    model: nn.Module, perturbation: Perturbation, sigma: float, data: Batches, likelihood: Likelihood, tick: Tick
) -> MemberPass:
    """All members at this sigma over all the data; in float64, so that no order of summing matters."""
    refuse_training_mode(model)
    parts = [_run_chunk(model, perturbation, sigma, chunk, likelihood, tick) for chunk in data.chunks()]
    matrices, averages, labels = zip(*parts, strict=True)
    matrix = torch.cat(matrices, dim=1)
    if not matrix.shape[1] and data.offset is None:
        raise ValueError(f"`{data.argument}` has no item that counts: every label is the ignored one.")
    return MemberPass(sigma, matrix.expand(perturbation.size, -1), torch.cat(averages), torch.cat(labels))


def member_predictions(
    model: nn.Module, perturbation: Perturbation, sigma: float, likelihood: Likelihood, args: Any, kwargs: Any
) -> Tensor:
    """Every member's prediction for one batch, [m, ...]; a single one where sigma is 0 and all are the same."""
    refuse_training_mode(model)
    predictions = []
    for params in perturbation.members(sigma):
        predictions.append(likelihood.predict(_outputs(model, params, args, kwargs)))
        del params  # or two members would be alive while the next one is made
    return torch.stack(predictions)


def refuse_training_mode(model: Any) -> None:
    """Dropout and batch statistics would add noise of their own, and batch norm would change the network."""
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if in_training_mode(module):
            where = f"its part `{name}` ({type(module).__name__}) is" if name else "it is"
            cure = out_of_training_mode(module)
            raise ValueError(f"the network cannot be used while {where} in training mode: {cure}.")


def _run_chunk(
    model: nn.Module, perturbation: Perturbation, sigma: float, chunk: list[Batch], likelihood: Likelihood, tick: Tick
) -> tuple[Tensor, Tensor, Tensor]:
    rows: list[Tensor] = []
    total, labels = None, torch.empty(0)
    for params in perturbation.members(sigma):
        predictions, labels = _run_member(model, params, chunk, likelihood, tick, check=not rows)
        del params  # as above
        if sigma == 0:
            _refuse_non_finite(predictions)
        rows.append(likelihood.log_likelihoods(predictions, labels))
        total = likelihood.accumulate(total, predictions)
    assert total is not None
    return torch.stack(rows), likelihood.average(total, len(rows)), labels


def _run_member(
    model: nn.Module, params: Params, chunk: list[Batch], likelihood: Likelihood, tick: Tick, check: bool
) -> tuple[Tensor, Tensor]:
    """One member over one chunk: predictions [n, K] and labels [n] of the items that count."""
    parts = []
    for inputs, labels in chunk:
        outputs = _outputs(model, params, *as_arguments(inputs))
        if check:
            likelihood.check(outputs, labels)
        predictions, counted = likelihood.items(likelihood.predict(outputs), labels)
        parts.append((predictions.to(_widest(predictions.device)), counted))
        tick(len(labels))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _outputs(model: nn.Module, params: Params, args: Any, kwargs: Any) -> Tensor:
    return output_tensor(functional_call(model, params, args, kwargs))


def _refuse_non_finite(predictions: Tensor) -> None:
    if not bool(predictions.isfinite().all()):
        raise ValueError(
            "the network itself, without any noise, gives outputs that are NaN or infinite on these data: check its "
            "weights and the inputs before calibrating it."
        )


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
