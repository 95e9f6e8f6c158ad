"""CUDA graphs with the members on parallel streams, for small batches: the GPU is full, and nothing is launched twice.

A graph is captured for inputs of each kind and belongs to one state of the network and one sigma; the members' weights
stay where the graph reads them. What cannot be captured (a network that waits for the GPU, or computes on the CPU) runs
in the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from peppermill.data import map_tensors, output_tensor
from peppermill.old_engines.borrowed import Call, borrow
from peppermill.old_engines.capture import Capture, Jobs, capture_on_cuda, quickest
from peppermill.old_engines.engine import Group
from peppermill.old_engines.joined import joined_recording
from peppermill.old_engines.joining import channels_last
from peppermill.old_engines.kept import Kept, Store, signature, tensors_of
from peppermill.old_engines.lent import Lent
from peppermill.old_engines.loop import OrLoop
from peppermill.old_engines.members import WITHOUT_GRADIENTS, Members, is_exact, needs_gradients
from peppermill.old_engines.memory import Room
from peppermill.old_engines.prepared import plan_of
from peppermill.old_engines.recorded import Recording as Operations
from peppermill.old_engines.together import Each, Together
from peppermill.types import Params

MOST_GRAPHS = 8  # kinds of inputs whose graphs are kept


class Captured:
    """All members on inputs of one kind: inputs are copied to where the graph reads them, outputs are copied off."""

    @torch.no_grad()
    def __init__(
        self, members: Members, precision: str | None, store: Store, capture: Capture, args: Any, kwargs: Any
    ) -> None:
        self.store, self.lock = store, threading.Lock()
        with torch.inference_mode(False):  # tensors of inference mode cannot be written to outside of it
            call = borrow(members.model, precision, store.has_shell)
            self.weights = [store.member(members.sigma, member, keep=True) for member in range(members.count)]
            # a replay may come before it is known that the network was moved: what the graph reads must still be there
            self.alive = [value.detach() for value in (*members.model.parameters(), *members.model.buffers())]
            plain = precision is not None or not is_exact(members)
            ways = None if plain else self._joined(call, args, kwargs)
            self.recording = quickest(ways or [partial(self._jobs, call, args, kwargs)], capture, members.device)
            prepared = [job.args for job in self.recording.jobs]
            self.lent = Lent(_tensors([self.args, self.kwargs, self.weights, self.alive, prepared]))

    @torch.no_grad()
    def __call__(self, args: Any, kwargs: Any) -> Tensor:
        with self.lock:
            self.lent.read()
            self.recording.begin()
            for static, given in zip(tensors_of(self.args, self.kwargs), tensors_of(args, kwargs), strict=True):
                static.copy_(given)
            self.recording.replay()
            outputs = self.recording.outputs.clone()
            self.recording.end()
            return outputs

    def _jobs(self, call: Call, args: Any, kwargs: Any) -> Jobs:
        """A pass of each member."""
        self.args, self.kwargs = map_tensors(Tensor.clone, (args, kwargs))
        return [partial(self._pass, call, params) for params in self.weights]

    def _joined(self, call: Call, args: Any, kwargs: Any) -> list[Callable[[], Jobs]] | None:
        """The same in fewer operations, with images in the form that tensor cores take; nothing where it is no use.

        Members side by side, or all as one network: which is quicker depends on the network and the GPU.
        """
        self.args, self.kwargs = map_tensors(lambda value: channels_last(value).clone(), (args, kwargs))
        given = (call, self.weights[0], self.args, self.kwargs, channels_last)
        try:
            one, other = joined_recording(*given), joined_recording(*given)  # a plan changes its own
        except RuntimeError:  # a network that depends on values, or will not have its images in this form
            return None
        if one is None or other is None:
            return None
        self.alive += [*one.fixed(), *other.fixed()]
        return [partial(self._side_by_side, one), partial(self._as_one, other)]

    def _side_by_side(self, recording: Operations) -> Jobs:
        """A job for each member."""
        plan, inputs = plan_of(recording, len(self.weights[0])), tensors_of(self.args, self.kwargs)

        def job(kept: tuple[Tensor, ...]) -> Tensor:
            return plan.run(*kept, *inputs).unsqueeze(0)

        return [partial(job, plan.prepare(*params.values())) for params in self.weights]

    def _as_one(self, recording: Operations) -> Jobs:
        """One job for all members."""
        together = Together(recording, len(self.weights[0]))
        return [partial(together.run, together.kept(self.weights), tensors_of(self.args, self.kwargs))]

    def _pass(self, call: Call, params: Params) -> Tensor:
        return output_tensor(call(params, self.args, self.kwargs)).unsqueeze(0)


class Graphs(OrLoop):
    """All members at once, as one CUDA graph."""

    name: ClassVar[str] = "graphs"

    def __init__(
        self,
        precision: str | None = None,
        kept: Kept | None = None,
        room: Room | None = None,
        capture: Capture = capture_on_cuda,
    ) -> None:
        super().__init__(precision, kept, room)
        self.capture = capture
        self.captured: dict[Any, Captured | str] = {}
        self.lock = threading.Lock()

    def _own_groups(self, members: Members, args: Any, kwargs: Any, keep: bool) -> Iterator[Group]:
        yield partial(self._outputs, members)

    def _unsuitable(self, members: Members, args: Any, kwargs: Any, keep: bool) -> str:
        if members.sigma == 0:
            return "sigma is 0"
        if not keep:
            return "in a pass over data the weights change too often"
        if signature(args, kwargs) is None:
            return "an argument is neither a tensor nor a plain value"
        return WITHOUT_GRADIENTS if needs_gradients(members, args, kwargs) else ""

    def knows(self, members: Members, kind: Any) -> bool:
        """Whether there is a graph for inputs of this kind, of whatever state of the network."""
        return bool(self.captured) and isinstance(self.captured.get(_key(members, kind)), Captured)

    def _outputs(self, members: Members, args: Any, kwargs: Any) -> Tensor:
        kind = _key(members, signature(args, kwargs))
        known = self.captured.get(kind)
        early = known(args, kwargs) if isinstance(known, Captured) else None
        store = self.kept.store(members)  # looks, while the GPU works, whether the network is still the same
        if isinstance(known, Captured) and early is not None and known.store is store:
            self.report = "graphs"
            return early
        found = self._captured(members, store, kind, args, kwargs)
        if isinstance(found, Captured):
            self.report = "graphs"
            return found(args, kwargs)
        self.report = f"loop, because {found}"
        return torch.cat([group(args, kwargs) for group in self.loop.groups(members, args, kwargs, keep=True)])

    def _captured(self, members: Members, store: Store, kind: Any, args: Any, kwargs: Any) -> Captured | str:
        """The graph for inputs of this kind, or why there is none; graphs of an older state of the network go."""
        with self.lock:
            self.captured = {k: v for k, v in self.captured.items() if isinstance(v, str) or v.store is store}
            if kind not in self.captured:
                while len(self.captured) >= MOST_GRAPHS:
                    del self.captured[next(iter(self.captured))]
                self.captured[kind] = _try(members, self.precision, store, self.capture, args, kwargs)
            return self.captured[kind]


def _tensors(tree: Any) -> list[Tensor]:
    """What a graph reads."""
    found = (one.value if isinstance(one, Each) else one for one in tree_leaves(tree))
    return [one for one in found if isinstance(one, Tensor)]


def _key(members: Members, kind: Any) -> tuple[Any, ...]:
    return kind, members.sigma, members.key


def _try(
    members: Members, precision: str | None, store: Store, capture: Capture, args: Any, kwargs: Any
) -> Captured | str:
    if members.count > store.most():
        return f"the weights of {members.count} members do not fit"
    try:
        return Captured(members, precision, store, capture, args, kwargs)
    except RuntimeError as error:
        return f"the network cannot be captured ({type(error).__name__}: {str(error).splitlines()[0][:150]})"
