"""What `torch.compile` sees of an ensemble: m plain calls that it can follow, with weights made out of its sight."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from peppermill.data import output_tensor
from peppermill.foreign import functional_call
from peppermill.old_engines.borrowed import lowered
from peppermill.old_engines.engine import Engine
from peppermill.old_engines.members import Members
from peppermill.plumbing.devices import device_of
from peppermill.types import Likelihood, Params


def compiled_predictions(members: Members, likelihood: Likelihood, args: Any, kwargs: Any, engine: Engine) -> Tensor:
    """Every member's prediction for one batch, [m, ...]."""
    call = lowered(partial(functional_call, members.model), device_of(members.model), engine.precision)
    outputs = [output_tensor(call(params, args, kwargs)) for params in _weights(members, engine)]
    return torch.stack([likelihood.predict(one) for one in outputs])


@_disable_dynamo
def _weights(members: Members, engine: Engine) -> list[Params]:
    store = engine.kept.store(members)
    return [store.member(members.sigma, member, keep=members.sigma != 0) for member in range(members.count)]
