"""`engine="compile"`: the traced network compiled by Inductor; and what `torch.compile` sees of an ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.engines import Group, Members, autocast
from peppermill.engines.inference_form import TracedForm, agree, different
from peppermill.engines.loop import Runner, member_groups
from peppermill.engines.member_weights import MemberWeights
from peppermill.engines.network_shell import shell_of
from peppermill.plumbing.nested import output_tensor
from peppermill.plumbing.networks import device_of
from peppermill.types import Params
from peppermill.views import View


def compiled(runner: Runner, weights: MemberWeights, members: Members, args: Any, kwargs: Any) -> Iterator[Group]:
    """One member after another through the compiled network; the first call takes as long as the compiler does."""
    with weights.lock:
        if isinstance(weights.form, TracedForm) and "compiled" not in weights.prepared:
            plain, other = weights.form.run, (different(args[0]),)
            weights.form.run = weights.prepared["compiled"] = torch.compile(weights.form.function)
            params = weights.form.fold({})
            if not agree(weights.form(params, other, {}), weights.plain({}, other, {})):
                weights.form.run, weights.form.reason = plain, "the compiled network gives other outputs"
    runner.report = f"loop, because {weights.form.reason}" if weights.form.reason else "compile"
    return member_groups(runner, weights, members)


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
