"""Our own module objects around the user's tensors, so that the user's modules never carry other weights."""

from __future__ import annotations

import copy
import gc
import warnings
import zlib
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from peppermill.plumbing.nested import copied

GUARDED_BYTES = 2**27  # of weights: the first call of a network with more does not look whether it writes to them
MODULE_NAMES = {*vars(nn.Module())}  # the attributes in which torch keeps a module's own state
MAX_ATTRIBUTES = 100_000  # that are looked at, so that a network which holds its data set does not take for ever


def shell_of(model: nn.Module, held: dict[int, Tensor] | None = None) -> nn.Module:
    """A copy of the network's structure that shares its parameters and owns everything else, buffers included.

    Members run on the shell through `torch.func.functional_call`. Anything that happens during the call (an interrupt,
    another thread, a cache that the network fills, a hook that replaces a weight) affects only the shell. `held`
    replaces tensors of the network by their ids.
    """
    _refuse_closures(model)
    memo: dict[int, Any] = {id(value): value for value in model.parameters()}
    memo |= {id(value): value.detach().clone() for value in model.buffers()}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # torch copies no result of a computation
                memo[id(value)] = value.detach().clone()
    memo |= held or {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own code when it copies an exported program
            shell = copy.deepcopy(model, memo)
            for module in shell.modules():
                if type(module).train is not nn.Module.train and "train" not in vars(module):
                    module.train()  # drops what it keeps of its weights, as timm's LeViT does
                    module.eval()
            return shell
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(
            f"this {type(model).__name__} cannot be copied ({type(error).__name__}: {reason}), so its members cannot "
            "run beside it. Remove the attribute that cannot be copied, or define `__deepcopy__` on its class."
        ) from error


class Shells:
    """Calls of one network with other weights, from any number of threads: each call has a shell of its own.

    The first call shows whether the network is steady. One that changes itself (it counts, writes to its weights, or
    keeps something made of them) or holds a weight in several places gets a new shell and copies of its weights for
    every call, so that no member sees what another left behind. Tensors that the user's own calls left in it are
    forgotten, too, if the network can make them again.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.own, self.idle = model, dict(model.named_parameters()), list[nn.Module]()
        self.is_small = sum(value.nbytes for value in self.own.values()) <= GUARDED_BYTES
        self.aliases = _aliases(model)
        self.is_steady: bool | None = None  # unknown before the first call
        self.may_forget = True

    def __call__(self, params: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        weights = {**self.own, **params}  # all: `functional_call` leaves another weight in a module that occurs twice
        if self.is_steady:
            try:
                shell = self.idle.pop()
            except IndexError:
                shell = shell_of(self.model)
            outputs = functional_call(shell, weights, copied(args), copied(kwargs))
            self.idle.append(shell)  # only after success: an interrupted shell may hold a member's weights
            return outputs
        is_copied, held = self.is_small or bool(self.aliases), dict[int, Tensor]()
        copies = {name: value.clone() for name, value in weights.items()} if is_copied else weights
        for alias, name in self.aliases:
            start = alias.storage_offset() - self.own[name].storage_offset()
            held[id(alias)] = copies[name].as_strided(alias.shape, alias.stride(), start)
        shell = shell_of(self.model, held)
        forgotten = _kept_tensors(shell) if self.may_forget else []
        for space, name in forgotten:
            del space[name]
        before = attributes_of(shell) if self.is_steady is None else []
        try:
            outputs = functional_call(shell, copies, copied(args), copied(kwargs))
        except Exception:
            if not forgotten:
                raise
            outputs = None
        if forgotten and (outputs is None or len(_kept_tensors(shell)) < len(forgotten)):
            self.may_forget = False  # it does not make them again: they are data, not a cache
            return self(params, args, kwargs)
        if self.is_steady is None:
            written = is_copied and any(is_written(weights[name], copies[name]) for name in weights)
            self.is_steady = same_objects(before, attributes_of(shell)) and not written and not self.aliases
            self.idle += [shell] if self.is_steady else []
        return outputs


def is_written(before: Tensor, copy: Tensor) -> bool:
    """Whether a call that got this copy wrote to it; writes through numpy or `.data` show in the values alone."""
    same = torch.equal(before, copy) or bool(((before == copy) | before.isnan()).all())  # NaN equals NaN
    return (not copy.is_inference() and copy._version > 0) or not same


def _kept_tensors(model: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Where modules hold tensors that are neither parameters nor buffers, as attributes or in dicts."""
    spaces = [vars(module) for module in model.modules()]
    spaces += [
        value for space in spaces for name, value in space.items() if type(value) is dict and name not in MODULE_NAMES
    ]
    return [(space, name) for space in spaces for name, value in space.items() if isinstance(value, Tensor)]


def _aliases(model: nn.Module) -> list[tuple[Tensor, str]]:
    """The parameters that the network holds under other names, or views of them: as an attribute, in a list."""
    own = {value.untyped_storage().data_ptr(): name for name, value in model.named_parameters()}
    flat = {id(value) for module in model.modules() for value in getattr(module, "_flat_weights", ())}  # torch's own
    found = [value for value in attributes_of(model) if type(value) in (Tensor, nn.Parameter) and id(value) not in flat]
    pointers = [(value, value.untyped_storage().data_ptr()) for value in found if value.layout == torch.strided]
    return [(value, own[pointer]) for value, pointer in pointers if pointer and pointer in own]


def attributes_of(model: nn.Module) -> list[Any]:
    """Everything that a network holds beside its parameters: containers and objects are opened."""
    found: list[Any] = []
    pending = [
        value
        for module in model.modules()
        for name, value in vars(module).items()
        if name != "_parameters" and (name not in MODULE_NAMES or value)  # most of torch's own are empty
    ]
    seen: set[int] = set()
    while pending and len(found) < MAX_ATTRIBUTES:
        value = pending.pop()
        found.append(value)
        if id(value) in seen or isinstance(value, (nn.Module, type, FunctionType)):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found.append(0 if value.is_inference() else value._version)
        elif isinstance(value, np.ndarray):
            found.append(zlib.crc32(value.tobytes()))
        else:
            pending += gc.get_referents(value)
    return found


def same_objects(first: list[Any], second: list[Any]) -> bool:
    """Whether two lists hold the same objects, or equal whole numbers, in the same order."""
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(a is b or (type(a) is int and a == b) for a, b in pairs)


def _refuse_closures(model: nn.Module) -> None:
    """A method or hook that was replaced by a function which remembers the user's modules would still run these."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name in MODULE_NAMES and not name.startswith("_forward"):
                continue
            functions = [each for each in (value, *gc.get_referents(value)) if isinstance(each, FunctionType)]
            cells = [cell for function in functions for cell in function.__closure__ or ()]
            if any(isinstance(cell.cell_contents, (nn.Module, Tensor)) for cell in cells):
                raise TypeError(
                    f"`{path + '.' if path else ''}{name}` is a function that holds parts of the network, so a copy of "
                    f"this {type(model).__name__} would still call the original. Make it a method of a module."
                )
