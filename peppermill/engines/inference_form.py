"""What is called: the network as a function of its weights, traced if possible, or as it is.

A network that torch.fx cannot trace whole (it branches on values, takes several inputs, has hooks) is called as it is,
and so is every network whose traced form gives other outputs on inputs and weights that it was not traced with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.engines import autocast
from peppermill.engines.network_shell import Shells, attributes_of, same_objects
from peppermill.plumbing.nested import output_tensor
from peppermill.plumbing.networks import device_of
from peppermill.plumbing.warnings import warn_user
from peppermill.types import Params

CHECKED_ITEMS = 4  # of a batch, on which a plan is compared with the network itself

#: How far the two may differ, relative to the largest output: rounding in another order, on a GPU that of TF32.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}
CUDA_TOLERANCE = 2e-2


class PlainForm:
    """The network as it is; the weights are a member's parameters by name."""

    def __init__(self, model: nn.Module, precision: str | None) -> None:
        self.shells, self.reason = Shells(model), ""  # the reason why it is not traced
        self.device, self.precision = device_of(model), precision
        self.attributes = attributes_of(model)

    def fold(self, params: Params) -> Params:
        return params

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return True

    def is_current(self) -> bool:
        """Whether every attribute is still the same, unless each call reads them anew."""
        reads_anew = not self.shells.is_steady and not self.shells.aliases
        return reads_anew or same_objects(self.attributes, attributes_of(self.shells.model))

    def __call__(self, weights: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        with autocast(self.device, self.precision):
            return output_tensor(self.shells(weights, args, kwargs)).clone()  # it may be a buffer of the network


def forms_of(
    model: nn.Module, selected: Sequence[str], precision: str | None, args: Any, kwargs: Any
) -> tuple[PlainForm, Any]:
    """The plain network, and the TracedForm if it gives the same outputs, on a second, different batch too."""
    from peppermill.engines.traced_form import TracedForm, kind_of, unusual_arguments  # which imports this file

    plain = PlainForm(model, precision)
    if _is_random(plain, args, kwargs):
        plain.reason = "its outputs are random"
        warn_user(
            f"this {type(model).__name__} gives other outputs when it is called again on the same inputs, so every "
            "number includes chance. Did its code leave out `training=self.training` in `F.dropout`?"
        )
    elif unusual_arguments(args, kwargs):
        plain.reason = "its input is not one tensor of real numbers"
    elif any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        plain.reason = "it has hooks"
    if plain.reason:
        return plain, plain
    for channels_last in (True, False) if args[0].ndim == 4 else (False,):
        try:
            form = TracedForm(plain, selected, channels_last)
            form.agreed[kind_of(args[0])] = form.agrees(args[0])
            if form.takes(args, kwargs):
                return plain, form
            plain.reason = "the traced network gives other outputs than the network"
            if not channels_last:
                warn_user(
                    f"this {type(model).__name__} gives other outputs when torch.fx traces it than when it is called, "
                    "so its members run as it is, one after another: the numbers are right, the time may be longer."
                )
        except Exception as error:
            reason = str(error).partition("\n")[0][:120]
            plain.reason = f"torch.fx cannot trace it ({type(error).__name__}: {reason})"
    return plain, plain


def _is_random(plain: PlainForm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the network gives other outputs when it is called again."""
    try:
        if all(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
            args = tuple(value[:CHECKED_ITEMS] for value in args)
            kwargs = {name: value[:CHECKED_ITEMS] for name, value in kwargs.items()}
        return not agree(plain({}, args, kwargs), plain({}, args, kwargs))
    except Exception:  # a network for batches of one size only, or its own error, which its first pass raises again
        return False


def different(x: Tensor) -> Tensor:
    """Other inputs of the same shape: what was baked in from one batch shows on another."""
    return 1.25 * x.flip(0) + 0.1


def moved_weight(weight: Tensor, number: int) -> Tensor:
    """Other weights of the same size, in one piece of memory: what was baked in from the network's own shows."""
    places = torch.arange(weight.numel(), dtype=torch.float32, device=weight.device)
    wave = places.add_(number).remainder_(2.7).sub_(1.35).view_as(weight)  # equal weights move apart
    size = float(weight.norm()) / weight.numel() ** 0.5 or 1.0
    return wave.mul_(0.05 * size).add_(weight).to(weight.dtype)


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether two forms of one network give the same outputs, up to rounding."""
    largest = expected.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-30)
    tolerance = TOLERANCES.get(expected.dtype, 0.0)
    tolerance = max(tolerance, CUDA_TOLERANCE) if expected.is_cuda and expected.dtype != torch.float64 else tolerance
    if found.shape != expected.shape:
        return False
    close = ((found - expected).abs() <= tolerance * largest) | (found == expected) | (found.isnan() & expected.isnan())
    return bool(close.all())
