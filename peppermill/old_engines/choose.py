"""Which engine: one by name, or "auto", the fastest by rule.

The rule looks at the size of the largest tensor that one member makes. As long as those of all members together stay in
the cache (of a CPU) or leave a GPU half empty, running members together wins; beyond that it only moves more memory,
unless the first layer, whose inputs all members share, is most of the work. What runs together saves calls, not
multiplications: where convolutions are most of the work, members run one by one, in fewer operations.
A rule, and not a stopwatch, so that the same call gives the same bits every time; measurements are in docs/engines.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch

from peppermill.old_engines.borrowed import borrow
from peppermill.old_engines.engine import Engine, Group
from peppermill.old_engines.graphs import Graphs
from peppermill.old_engines.joined import Joined
from peppermill.old_engines.kept import Kept, Store, signature
from peppermill.old_engines.looked import look_at
from peppermill.old_engines.loop import Loop
from peppermill.old_engines.members import Members, check_precision, needs_gradients
from peppermill.old_engines.memory import Room
from peppermill.old_engines.vmap import Vmap

#: Bytes of the largest tensor of a pass, times m, up to which members run together.
TOGETHER_BYTES = {"cpu": 5 * 2**20, "cuda": 2**26}
#: On a CPU, beyond that too where the first product, of which antithetic pairs save 40 %, is so much of the whole.
SAVING_SHARE, SAVING_BYTES = 0.5, 2**26
#: On a CPU, multiplications in convolutions from which on these cost more than the calls that lead to them: with one
#: thread, and what each further one adds.
CONVOLVED, CONVOLVED_BY_THREAD = 10_000_000, 2_000_000
GRAPH_BYTES = 2**29


class Auto:
    """The engine that suits the network, the batch and the device."""

    name: ClassVar[str] = "auto"

    def __init__(self, precision: str | None = None) -> None:
        self.precision, self.kept, room = precision, Kept(), Room()
        self.graphs, self.vmap = Graphs(precision, self.kept, room), Vmap(precision, self.kept, room)
        self.engines: dict[str, Engine] = {
            "loop": Loop(precision, self.kept, room),
            "joined": Joined(precision, self.kept, room),
            "vmap": self.vmap,
            "graphs": self.graphs,
        }
        self.chosen = "loop"

    def __reduce__(self) -> Any:
        return type(self), (self.precision,)  # what is kept is not copied

    @property
    def report(self) -> str:
        """What ran last."""
        return self.engines[self.chosen].report

    def groups(self, members: Members, args: Any, kwargs: Any, keep: bool = False) -> Iterator[Group]:
        kind = signature(args, kwargs)
        graphed = keep and self.graphs.knows(members, kind)  # they look at the network while the GPU works, not before
        known = self.vmap.known(members, args, kwargs, kind) if keep and not graphed else None
        if known is not None:
            self.chosen = "vmap"
            return iter((known,))
        self.chosen = chosen = "graphs" if graphed else self._choice(members, args, kwargs, kind, keep)
        return self.engines[chosen].groups(members, args, kwargs, keep)

    def _choice(self, members: Members, args: Any, kwargs: Any, kind: Any, keep: bool) -> str:
        if members.count == 1 or kind is None or needs_gradients(members, args, kwargs):
            return "loop"
        store, key = self.kept.store(members), ("auto", kind, keep)
        if key not in store.prepared:
            store.prepared[key] = self._rule(members, store, args, kwargs, keep)
        choice: str = store.prepared[key]
        return choice

    def _rule(self, members: Members, store: Store, args: Any, kwargs: Any, keep: bool) -> str:
        device = members.device.type
        if device not in TOGETHER_BYTES or (device == "cpu" and not store.has_shell):
            return "joined"
        call = borrow(members.model, self.precision, store.has_shell)
        look = look_at(partial(call, {}, args, kwargs))
        together = members.count * look.bytes
        if device == "cuda" and keep and together <= GRAPH_BYTES:
            return "graphs"
        if device == "cpu" and look.convolved >= CONVOLVED + CONVOLVED_BY_THREAD * (torch.get_num_threads() - 1):
            return "joined"
        pairs = members.perturbation.noise.antithetic and self.precision is None
        saves = device == "cpu" and pairs and look.first_share >= SAVING_SHARE and together <= SAVING_BYTES
        return "vmap" if saves or together <= TOGETHER_BYTES[device] else "joined"


#: The engines that have a name. A new one is one file and one row here.
ENGINES: dict[str, Callable[[str | None], Engine]] = {
    "loop": Loop,
    "joined": Joined,
    "vmap": Vmap,
    "graphs": Graphs,
    "auto": Auto,
}


def engine_of(engine: str | Engine, precision: str | None = None) -> Engine:
    """A fresh engine of this name, which runs networks in this precision; an engine is itself."""
    if not isinstance(engine, str):
        return engine
    check_precision(precision)
    if engine not in ENGINES:
        raise ValueError(f"`engine={engine!r}` is unknown: choose one of {', '.join(ENGINES)}.")
    if engine == "graphs" and not torch.cuda.is_available():
        raise ValueError(
            '`engine="graphs"` needs a CUDA GPU, and torch finds none here: use `engine="auto"`, which takes graphs '
            "where there is one."
        )
    return ENGINES[engine](precision)
