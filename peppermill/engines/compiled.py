"""`engine="compile"`: the traced network compiled by Inductor; and what `torch.compile` sees of an ensemble."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from peppermill.engines import Members, Plan, autocast
from peppermill.engines.inference_form import agree, different
from peppermill.engines.member_weights import MemberWeights
from peppermill.engines.network_shell import shell_of
from peppermill.plumbing.nested import output_tensor
from peppermill.plumbing.networks import device_of
from peppermill.types import Params
from peppermill.views import View


def compiled(weights: MemberWeights, members: Members, x: Tensor) -> Plan:
    """One member after another through the compiled network; the first call takes as long as the compiler does."""

    def is_right() -> bool:
        form, other = weights.form, different(x)
        run: Any = torch.compile(form.function)
        with autocast(form.device, form.precision):
            found = run(*form.fold({}), form.laid_out(other))
        agrees = agree(found, weights.plain({}, (other,), {}))
        form.run = run if agrees else form.run
        return agrees

    agrees = weights.once("compile", is_right)
    return "compile" if agrees else "loop, because the compiled network gives other outputs", None


def compiled_outputs(members: Members, precision: str | None, args: Any, kwargs: Any) -> Tensor:
    """Inside `torch.compile(pep)`: m plain calls that the compiler can follow, with weights made out of its sight."""
    found = []
    shell, by_view = _prepared(members)
    for view, weights in by_view:

        def outputs(args: Any, kwargs: Any, weights: list[Params] = weights) -> Tensor:
            with autocast(device_of(shell), precision):
                calls = [torch.func.functional_call(shell, params, args, kwargs) for params in weights]
            return torch.stack([output_tensor(one) for one in calls])

        found.append(view.outputs(outputs, args, kwargs))
    return torch.cat(found)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _prepared(members: Members) -> tuple[nn.Module, list[tuple[View, list[Params]]]]:
    """A structure of our own around the network's tensors, and each view with the weights of its members."""
    weights = [(view, list(part.perturbation().members(part.sigma))) for view, part in members.parts()]
    return shell_of(members.model), weights
