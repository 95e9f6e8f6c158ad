"""Our own module objects around the user's tensors, so that the user's modules never carry other weights."""

from __future__ import annotations

import copy
import warnings
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn


def shell_of(model: nn.Module) -> nn.Module:
    """A copy of the network's structure that shares its parameters and owns everything else, buffers included.

    Members run on the shell through `torch.func.functional_call`. Whatever happens during the call (an interrupt,
    another thread, a cache that the network fills, a hook that replaces a weight) happens to the shell.
    """
    _refuse_closures(model)
    memo: dict[int, Any] = {id(value): value for value in model.parameters()}
    memo |= {id(value): value.detach().clone() for value in model.buffers()}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # torch copies no result of a computation
                memo[id(value)] = value.detach().clone()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own code when it copies an exported program
            return copy.deepcopy(model, memo)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(
            f"this {type(model).__name__} cannot be copied ({type(error).__name__}: {reason}), so its members cannot "
            "run beside it. Remove the attribute that cannot be copied, or define `__deepcopy__` on its class."
        ) from error


class Shells:
    """Calls of one network with other weights, from any number of threads: each call has a shell of its own."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.idle = [shell_of(model)]

    def __call__(self, params: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            shell = self.idle.pop()
        except IndexError:
            shell = shell_of(self.model)
        outputs = torch.func.functional_call(shell, params, args, kwargs)
        self.idle.append(shell)  # only after success: an interrupted shell may hold a member's weights
        return outputs


def _refuse_closures(model: nn.Module) -> None:
    """A function that replaced a method and remembers the user's modules would run these, whatever the shell holds."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            cells = value.__closure__ or () if isinstance(value, FunctionType) else ()
            if any(isinstance(cell.cell_contents, (nn.Module, Tensor)) for cell in cells):
                raise TypeError(
                    f"`{path + '.' if path else ''}{name}` is a function that holds parts of the network, so a copy of "
                    f"this {type(model).__name__} would still call the original. Make it a method of a module."
                )
