"""What perturbed weights do not touch is computed once for all members: the layers before the first perturbed one.

With `parameters="last_layer"` that is nearly the whole network, and ten members cost little more than one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from peppermill.old_engines.joining import Form, join
from peppermill.old_engines.lent import Lent
from peppermill.old_engines.prepared import Plan, graph_of, plan_of
from peppermill.old_engines.recorded import Recording, written

_aten = torch.ops.aten
_PRODUCTS = {_aten.convolution.default, _aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}


class SharedPlan(NamedTuple):
    """A plan in two parts: what all members have in common, from the inputs; and the rest, from that and the inputs."""

    share: Callable[..., Any]  # a tuple of tensors
    rest: Plan


def shared_plan(recording: Recording, weights: int, form: Form) -> SharedPlan | None:
    """The recorded operations, of whose inputs so many are weights; nothing where members have no product in common."""
    given = [node for node in recording.graph.nodes if node.op == "placeholder"]
    own = _dependent(recording, given[:weights])
    common = [node for node in recording.graph.nodes if node.op == "call_function" and node not in own]
    if not any(node.target in _PRODUCTS for node in common) or _is_written_to(recording, {*common, *given}):
        return None
    shown = [node for node in common if any(user in own for user in node.users)]
    (result,) = (node.args[0] for node in recording.graph.nodes if node.op == "output")
    others = [node for node in recording.graph.nodes if node.op == "call_function" and node in own]
    first = Recording(graph_of(given[weights:], common, tuple(shown)), recording.constants)
    rest = Recording(graph_of([*given[:weights], *shown, *given[weights:]], others, result), recording.constants)
    for node in list(rest.graph.nodes)[weights : weights + len(shown)]:
        placed = node.meta.pop("placed", None)  # what is joined may lie in another order
        node.meta["shape"] = placed[0] if placed else None
    join(first, form)
    join(rest, form)
    share = plan_of(first, 0)
    kept = share.prepare()
    run = Lent([*kept, *share.fixed]).first(partial(share.run, *kept))
    return SharedPlan(run, plan_of(rest, weights))


def _dependent(recording: Recording, weights: Sequence[Node]) -> set[Node]:
    """The nodes that differ between members."""
    found = set(weights)
    for node in recording.graph.nodes:
        if found.intersection(node.all_input_nodes):
            found.add(node)
    return found


def _is_written_to(recording: Recording, values: set[Node]) -> bool:
    """Whether some operation writes to one of these, other than to what it alone has just been given."""
    changed = ((node, value) for node in recording.graph.nodes for value in written(node))
    return any(value in values and (node not in values or len(value.users) > 1) for node, value in changed)


class Common:
    """What was computed of each batch for all members, as long as there is room for it."""

    def __init__(self, room: float) -> None:
        self.room = room
        self.known: dict[tuple[int, ...], tuple[Sequence[Tensor], tuple[Tensor, ...]]] = {}

    def of(self, batch: Sequence[Tensor], make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Made for this batch, or remembered; the batch is held, so that no other can have its place in memory."""
        key = tuple(map(id, batch))
        if key not in self.known:
            made = make()
            self.room -= sum(value.nbytes for value in made)
            if self.room < 0:
                return made
            self.known[key] = batch, made
        return self.known[key][1]
