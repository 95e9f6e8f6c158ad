"""`engine="compile"`: the traced network compiled by Inductor; and what `torch.compile` sees of an ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from peppermill.engines import Group, Members
from peppermill.engines.inference_form import TracedForm, autocast
from peppermill.engines.loop import differentiable_groups, member_groups, wants_gradients
from peppermill.engines.member_weights import WeightCache
from peppermill.engines.out_of_memory import Room
from peppermill.plumbing.devices import device_of
from peppermill.plumbing.nested import output_tensor
from peppermill.types import Params


class Compiled:
    """One member after another through the compiled network; the first call takes as long as the compiler does."""

    def __init__(self, precision: str | None = None) -> None:
        self.precision, self.report = precision, "compile"
        self.cache, self.room = WeightCache(precision), Room()

    def __reduce__(self) -> Any:
        return type(self), (self.precision,)  # a copy starts with an empty cache

    def groups(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Group]:
        if wants_gradients(members, args, kwargs):
            self.report = "loop, because gradients may be wanted (use `torch.no_grad()`)"
            return differentiable_groups(members, self.precision)
        weights = self.cache.weights(members, args, kwargs)
        with weights.lock:
            if isinstance(weights.form, TracedForm) and not weights.prepared.setdefault("compiled", False):
                weights.form.run = torch.compile(weights.form.function)
                weights.prepared["compiled"] = True
        self.report = "compile" if weights.form.is_traced else f"loop, because {weights.form.reason}"
        return member_groups(weights, members, self.room)


def compiled_outputs(members: Members, precision: str | None, args: Any, kwargs: Any) -> Tensor:
    """Inside `torch.compile(pep)`: m plain calls that the compiler can follow, with weights made out of its sight."""
    with autocast(device_of(members.model), precision):
        outputs = [
            output_tensor(torch.func.functional_call(members.model, params, args, kwargs))
            for params in _member_params(members)
        ]
    return torch.stack(outputs)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _member_params(members: Members) -> list[Params]:
    return list(members.perturbation().members(members.sigma))
