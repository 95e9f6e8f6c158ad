"""One member at a time, in fewer operations: convolutions do the work of the norms, sums and ReLUs behind them.

The loop calls the network; this engine records once what the network does with inputs of a kind, joins what can be
joined (`joining.py`), and runs that for every member; what no perturbed weight touches, once for all (`shared.py`). A
network in which nothing can be joined or shared runs in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from peppermill.data import map_tensors, output_tensor
from peppermill.old_engines.borrowed import Call, borrow
from peppermill.old_engines.engine import Group
from peppermill.old_engines.joining import Form, channels_last, join
from peppermill.old_engines.kept import Store, room_on, signature, tensors_of
from peppermill.old_engines.lent import Lent, finish
from peppermill.old_engines.loop import OrLoop
from peppermill.old_engines.members import WITHOUT_GRADIENTS, Members, is_exact, needs_gradients
from peppermill.old_engines.memory import in_parts
from peppermill.old_engines.prepared import Plan, plan_of
from peppermill.old_engines.recorded import NotRecordable, Recording, record
from peppermill.old_engines.shared import Common, shared_plan
from peppermill.types import Params

MOST_KINDS = 4  # of inputs: batches of one size, the last batch of the data, and a few more
NOTHING = "there is nothing to join"


class Joined(OrLoop):
    """One member after another, as the loop has them."""

    name: ClassVar[str] = "joined"

    def _own_groups(self, members: Members, args: Any, kwargs: Any, keep: bool) -> Iterator[Group]:
        store = self.kept.store(members)
        call = borrow(members.model, None, store.has_shell)
        keeps = keep and store.most() >= 2 * members.count
        common = Common(room_on(members.device) if self.room.items is None else 0.0)
        plans = store.prepared.setdefault("joined", {})
        for member in range(members.count):
            params = store.member(members.sigma, member, keep)
            ready = _kept(store, members.sigma, member) if keeps else {}
            yield partial(self._outputs, JoinedMember(call, params, plans, ready, common, kept=keeps))
            del params, ready  # or two members would be alive while the next one is made

    def _unsuitable(self, members: Members, args: Any, kwargs: Any, keep: bool) -> str:
        if members.count == 1:
            return "there is one member" if members.sigma else "sigma is 0"
        if needs_gradients(members, args, kwargs):
            return WITHOUT_GRADIENTS
        if self.precision is not None or not is_exact(members):
            return "in low precision other sums would be other numbers"
        store = self.kept.store(members)
        if store.state.hooked:
            return "the network has hooks, which may do more than compute"
        known = store.prepared.get("joined", {})
        refused = [one for one in known.values() if isinstance(one, str)]
        return refused[0] if refused else "" if store.most() >= 2 else "the weights of two members do not fit"

    def _outputs(self, member: JoinedMember, args: Any, kwargs: Any) -> Tensor:
        outputs = in_parts(member, args, kwargs, self.room).unsqueeze(0)
        self.report = f"loop, because {member.refused}" if member.refused else "joined"
        return outputs


class JoinedMember:
    """A network with one member's weights: `plans` by kind of inputs, for all members; `ready` with these weights."""

    def __init__(
        self,
        call: Call,
        params: Params,
        plans: dict[Any, Any],
        ready: dict[Any, Any],
        common: Common | None = None,
        kept: bool = False,
    ) -> None:
        self.call, self.params, self.plans, self.ready, self.kept = call, params, plans, ready, kept
        self.common, self.refused = common or Common(0.0), ""

    @torch.no_grad()
    def __call__(self, args: Any, kwargs: Any) -> Tensor:
        kind, inputs = signature(args, kwargs), tensors_of(args, kwargs)
        if kind not in self.ready:
            found = _plan(self.plans, kind, self.call, self.params, args, kwargs)
            if isinstance(found, str):
                self.refused = found
                return output_tensor(self.call(self.params, args, kwargs))
            with torch.inference_mode(False):
                prepared = found.plan.prepare(*self.params.values())
            run = partial(found.plan.run, *prepared)
            self.ready[kind] = found, Lent([*prepared, *found.plan.fixed]).first(run) if self.kept else run
        known, run = self.ready[kind]
        formed = list(map(known.form, inputs))
        shared = self.common.of(inputs, lambda: known.share(*formed)) if known.share else ()
        return run(*shared, *formed)  # type: ignore[no-any-return]


class Known(NamedTuple):
    """How a network computes on inputs of one kind: brought into a form, what all members share, and the rest."""

    form: Form
    share: Callable[..., tuple[Tensor, ...]] | None
    plan: Plan


def _kept(store: Store, sigma: float, member: int) -> dict[Any, Any]:
    """What was prepared of a member's weights before; of the last sigma."""
    known = store.prepared.setdefault("joined weights", {})
    if known.get("sigma") != sigma:
        known.clear()
        known["sigma"] = sigma
    found: dict[Any, Any] = known.setdefault((sigma, member), {})  # another thread may have changed the sigma by now
    return found


def _plan(plans: dict[Any, Any], kind: Any, call: Call, params: Params, args: Any, kwargs: Any) -> Known | str:
    """How the network computes on inputs of this kind, found once; or why it is called instead."""
    if kind not in plans:
        if kind is None:
            return "an argument is neither a tensor nor a plain value"
        if len(plans) >= MOST_KINDS:
            return f"these are inputs of more than {MOST_KINDS} kinds"
        made = _made(call, params, args, kwargs)
        finish(next(iter(params.values())).device)
        plans[kind] = made
    found: Known | str = plans[kind]
    return found


def _made(call: Call, params: Params, args: Any, kwargs: Any) -> Known | str:
    reason = NOTHING
    for form in (channels_last, Tensor.detach):
        try:
            with torch.inference_mode(False):
                formed, named = map_tensors(form, (args, kwargs))
                found = _tried(call, params, formed, named, form)
            return found or NOTHING
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # it depends on values, or will not have its images in this form
            reason = f"the network cannot be recorded ({type(error).__name__}: {str(error).splitlines()[0][:150]})"
    return reason


def _tried(call: Call, params: Params, args: Any, kwargs: Any, form: Form) -> Known | None:
    """Recorded, made shorter, and run once; nothing where it is not shorter."""
    recording = recorded(call, params, args, kwargs)
    halves = shared_plan(recording, len(params), form)
    if halves is None and not join(recording, form):
        return None
    share, plan = halves or (None, plan_of(recording, len(params)))
    formed = tensors_of(args, kwargs)
    plan.run(*plan.prepare(*params.values()), *(share(*formed) if share else ()), *formed)
    return Known(form, share, plan)


def joined_recording(call: Call, params: Params, args: Any, kwargs: Any, form: Form) -> Recording | None:
    """What the network does with these weights and inputs in fewer operations; nothing where none are fewer."""
    recording = recorded(call, params, args, kwargs)
    return recording if join(recording, form) else None


def recorded(call: Call, params: Params, args: Any, kwargs: Any) -> Recording:
    """What the network does with these weights and inputs, which come first."""
    inputs = [*params.values(), *tensors_of(args, kwargs)]
    recording = record(lambda: output_tensor(call(params, args, kwargs)), inputs)
    recording.clean()
    given = islice(recording.graph.nodes, len(params))
    if not all(node.users for node in given):  # a copy was made where torch does not see it: Keras, for one
        raise NotRecordable("it does not compute with the very weights that it is given")
    return recording
