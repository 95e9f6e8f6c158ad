"""All members of a small network in one go: `torch.func.vmap` over their weights, recorded for inputs of each kind.

What does not vectorise (a data-dependent branch, an operation without a batching rule) runs in the loop.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from peppermill.data import map_tensors, output_tensor
from peppermill.old_engines import layers
from peppermill.old_engines.borrowed import Shell, borrow, lowered
from peppermill.old_engines.engine import Group
from peppermill.old_engines.fused import fuse
from peppermill.old_engines.kept import Stack, Store, room_on, signature, tensors_of
from peppermill.old_engines.lent import finish
from peppermill.old_engines.looked import look_at
from peppermill.old_engines.loop import OrLoop
from peppermill.old_engines.members import WITHOUT_GRADIENTS, Members, is_exact, needs_gradients
from peppermill.old_engines.memory import halving
from peppermill.old_engines.packed import packs
from peppermill.old_engines.prepared import Plan, plan_of
from peppermill.old_engines.products import Product
from peppermill.old_engines.recorded import record

_PREPARING = threading.Lock()  # `warnings.catch_warnings` is not for two threads at once


class Vmap(OrLoop):
    """All members at once, or as many as fit."""

    name: ClassVar[str] = "vmap"

    def known(self, members: Members, args: Any, kwargs: Any, kind: Any) -> Group | None:
        """All members as one function of inputs, if it has run before on inputs of this kind.

        A pass of all members leaves a CPU's caches without a trace of Python: every question asked before the next one
        is worth a hundredth of it.
        """
        if needs_gradients(members, args, kwargs) or members.sigma == 0 or self.room.members is not None:
            return None
        found = self.kept.store(members).all_together(members.sigma, kind)
        self.report = self.name if found else self.report
        return (lambda args, kwargs: found(*tensors_of(args, kwargs))) if found else None

    def _own_groups(self, members: Members, args: Any, kwargs: Any, keep: bool) -> Iterator[Group]:
        store = self.kept.store(members)
        fit = min(store.most(), self.room.members or members.count)
        size = members.count if fit >= members.count else max(2, fit - fit % 2)  # antithetic pairs stay together
        for first in range(0, members.count, size):
            yield _Together(self, members, store, range(first, min(first + size, members.count)), keep)

    def _unsuitable(self, members: Members, args: Any, kwargs: Any, keep: bool) -> str:
        if members.count == 1:
            return "there is one member" if members.sigma else "sigma is 0"
        if needs_gradients(members, args, kwargs):
            return WITHOUT_GRADIENTS
        return "" if self.kept.store(members).most() >= 2 else "the weights of two members do not fit"


class _Together:
    """A group of members: one function of the inputs."""

    def __init__(self, engine: Vmap, members: Members, store: Store, which: range, keep: bool) -> None:
        self.engine, self.members, self.store, self.which, self.keep = engine, members, store, which, keep
        self.stacks: dict[range, Stack] = {}

    def __call__(self, args: Any, kwargs: Any) -> Tensor:
        kind = signature(args, kwargs)
        if self.engine.room.members is None and ("largest", kind) in self.store.prepared:
            ready = self._stack(self.which).ready.get(kind)
            if ready is not None:
                self.engine.report = "vmap"
                return ready(*tensors_of(args, kwargs))
        if kind is None:
            return self._one_by_one(self.which, args, kwargs, "an argument is neither a tensor nor a plain value")

        def attempt(size: int) -> Tensor:
            parts = [self.which[k : k + size] for k in range(0, len(self.which), size)]
            found = [self._part(part, kind, args, kwargs) for part in parts]
            return found[0] if len(found) == 1 else torch.cat(found)

        most = min(len(self.which), self.engine.room.members or len(self.which), self._fit(kind, args, kwargs))
        return halving(attempt, most, self.engine.room.fewer_members)

    def _fit(self, kind: Any, args: Any, kwargs: Any) -> int:
        """How many members' activations may be alive at once, an even number, by the largest tensor of one pass."""
        if ("largest", kind) not in self.store.prepared:
            call = borrow(self.members.model, self.engine.precision, self.store.has_shell)
            largest = look_at(partial(call, {}, args, kwargs)).bytes
            self.store.prepared["largest", kind] = int(room_on(self.members.device) // largest)
        fit: int = self.store.prepared["largest", kind]
        return max(1, fit - fit % 2)

    def _part(self, which: range, kind: Any, args: Any, kwargs: Any) -> Tensor:
        if len(which) == 1:
            return self._one_by_one(which, args, kwargs, "one member at a time")
        if "refused" in self.store.prepared:
            return self._one_by_one(which, args, kwargs, self.store.prepared["refused"])
        stack = self._stack(which)
        key = ("vmap", len(which), stack.paired, kind)
        if key not in self.store.prepared:
            made = _prepare(self.members, self.engine.precision, self.store.has_shell, stack, args, kwargs)
            finish(self.members.device)
            self.store.prepared[key] = made
        plan = self.store.prepared[key]
        if not isinstance(plan, Plan):
            self.store.prepared["refused"] = plan  # for inputs of every kind: each attempt costs many passes
            return self._one_by_one(which, args, kwargs, plan)
        self.engine.report = "vmap"
        return stack.prepared(kind, plan)(*tensors_of(args, kwargs))

    def _stack(self, which: range) -> Stack:
        if which not in self.stacks:
            self.stacks[which] = self.store.some(self.members.sigma, which.start, which.stop, self.keep)
        return self.stacks[which]

    def _one_by_one(self, which: range, args: Any, kwargs: Any, reason: str) -> Tensor:
        self.engine.report = f"loop, because {reason}"
        groups = self.engine.loop.groups(self.members, args, kwargs, self.keep, which)
        return torch.cat([group(args, kwargs) for group in groups])


def _prepare(
    members: Members, precision: str | None, in_shell: bool, stack: Stack, args: Any, kwargs: Any
) -> Plan | str:
    """A plan for inputs of this kind, or why there can be none."""
    if not in_shell:
        return "the network holds hooks or objects that cannot be shared between copies"
    with _PREPARING, warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        try:
            return _recorded(members, precision, stack, args, kwargs)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            return f"the network does not vectorise ({type(error).__name__}: {str(error).splitlines()[0][:150]})"


@torch.no_grad()
def _recorded(members: Members, precision: str | None, stack: Stack, args: Any, kwargs: Any) -> Plan:
    """Recorded twice: with products as one operation each, so that they can grow, and then as what they are made of."""
    exact = precision is None and is_exact(members)
    shell = Shell(members.model, layers.PRODUCTS | (layers.NORMS if exact else {}))
    _tell(shell, members, exact, stack.paired)
    call = lowered(shell, members.device, precision)
    args, kwargs = map_tensors(Tensor.detach, (args, kwargs))  # two arguments may be one tensor today, and two tomorrow
    inputs = [*stack.params.values(), *tensors_of(args, kwargs)]

    def all_members() -> Tensor:
        outputs: Tensor = torch.func.vmap(lambda params: output_tensor(call(params, args, kwargs)))(stack.params)
        return outputs

    recording = record(all_members, inputs, whole=True)
    fuse(recording)
    return plan_of(record(partial(recording.compiled(), *inputs), inputs), len(stack.params))


def _tell(shell: Shell, members: Members, exact: bool, paired: bool) -> None:
    """Tell the shell's layers whose weights differ between members how to multiply; let the norms compute theirs."""
    own: set[int] = set()
    for name, value in members.perturbation.center.items():
        for owner, key in shell.owners[name]:
            own.add(id(owner))
            if key == "weight" and isinstance(owner, tuple(layers.PRODUCTS.values())):
                center, signs = (value, value.new_tensor([[1.0], [-1.0]])) if exact and paired else (None, None)
                owner.__dict__["how"] = Product(owner, center, signs, exact and packs(value))
    for module in shell.copies.values():
        if exact and isinstance(module, layers.MemberNorm) and id(module) not in own:
            module.prepare()
