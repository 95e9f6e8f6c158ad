"""One member after another: the engine that is always right, and that every other one falls back to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from peppermill.engines import Group, Members, Plan
from peppermill.engines.inference_form import PlainForm
from peppermill.engines.member_weights import MemberWeights
from peppermill.perturbation import Perturbation
from peppermill.plumbing.networks import refuse_training_mode


def loop(weights: MemberWeights, members: Members, x: Tensor) -> Plan:
    """One perturbed copy of the selected weights is alive at a time, unless all of them are small."""
    return "loop", None


def member_groups(run: Callable[..., Tensor], weights: MemberWeights, members: Members) -> Iterator[Group]:
    """Groups of one member each; at sigma = 0 the network itself, bit for bit."""
    if members.sigma == 0:
        yield lambda args, kwargs: run(partial(weights.plain, {}), args, kwargs).unsqueeze(0)
        return
    for member in range(members.count):
        params = weights.member(members, member)

        def outputs(args: Any, kwargs: Any, member: int = member, params: Any = params) -> Tensor:
            if weights.form.takes(args, kwargs):
                return run(partial(weights.form, params), args, kwargs).unsqueeze(0)
            plain = weights.made(members, member)  # a batch unlike the one that chose the form
            return run(partial(weights.plain, plain), args, kwargs).unsqueeze(0)

        yield outputs
        del params, outputs  # or two members would be alive while the next one is made


def differentiable_groups(members: Members, precision: str | None) -> Iterator[Group]:
    """Members whose outputs can be differentiated with respect to the inputs and the network's own parameters."""
    refuse_training_mode(members.model)
    plain, own = PlainForm(members.model, precision), dict(members.model.named_parameters())
    perturbation = Perturbation({name: own[name] for name in members.selected}, members.noise, members.size)
    for params in perturbation.members(members.sigma):
        yield lambda args, kwargs, params=params: plain(params, args, kwargs).unsqueeze(0)  # type: ignore[misc]
