"""Members over data that several processes share: each runs all members over its part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from peppermill.data import Batches, digest_of
from peppermill.old_engines.engine import Engine
from peppermill.old_engines.loop import MemberPass, run_members
from peppermill.parts import part_of
from peppermill.perturbation import Perturbation
from peppermill.plumbing.devices import state_of
from peppermill.processes.group import grouped
from peppermill.processes.results import agree, gather
from peppermill.types import Likelihood, Tick


def run_here(
    model: nn.Module,
    perturbation: Perturbation,
    sigma: float,
    data: Batches,
    likelihood: Likelihood,
    tick: Tick,
    engine: Engine | None = None,
) -> MemberPass:
    """All members at this sigma over data that belong to this process alone: its part may have no item that counts."""
    if data.source == []:
        none = no_items(data)
        return MemberPass(sigma, none.expand(perturbation.size, 0), none[:, None], none.long())
    return run_members(model, perturbation, sigma, data, likelihood, tick, engine)


def run_all(
    model: nn.Module,
    perturbation: Perturbation,
    sigma: float,
    data: Batches,
    likelihood: Likelihood,
    tick: Tick,
    engine: Engine | None = None,
) -> MemberPass:
    """The same over all the data, each process having done its part: every process gets the whole result."""
    mine = run_here(model, perturbation, sigma, part_of(data), likelihood, tick, engine)
    return _gathered(mine, data.argument) if grouped() else mine


def _gathered(mine: MemberPass, argument: str) -> MemberPass:
    different = 1 if mine.sigma == 0 else len(mine.member_log_likelihoods)  # at sigma = 0 all members are the network
    matrix = gather(mine.member_log_likelihoods[:different].T.contiguous()).T.contiguous()
    found = MemberPass(
        mine.sigma, matrix.expand(len(mine.member_log_likelihoods), -1), gather(mine.averaged), gather(mine.labels)
    )
    if not len(found.labels):
        raise ValueError(f"`{argument}` has no item that counts: every label is the ignored one.")
    return found


def no_items(part: Batches) -> Tensor:
    """The numbers of a process that has no item."""
    return torch.zeros(0, dtype=torch.float64, device=part.device)


def agree_on(predictor: Any, perturbation: Perturbation | None = None, **settings: Any) -> None:
    """Raise where the processes do not have the same network, members or settings."""
    if not grouped():
        return
    if isinstance(predictor, DistributedDataParallel):
        raise ValueError(
            "the network is wrapped in DistributedDataParallel, which talks to the other processes in every call: "
            "give the network in it, `model.module`."
        )
    facts = {"network": repr(predictor), "weights": f"those with digest {digest_of(list(state_of(predictor))):x}"}
    if perturbation is not None:
        facts |= {"`parameters`": ", ".join(perturbation.center)}
        facts |= {"`noise`": repr(perturbation.noise), "`size`": str(perturbation.size)}
    agree({**facts, **{f"`{name}`": value for name, value in settings.items()}})
