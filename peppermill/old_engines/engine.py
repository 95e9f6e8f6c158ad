"""The contract of engines: the members of a network go in, functions from inputs to the members' outputs come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

from torch import Tensor

from peppermill.old_engines.kept import Kept
from peppermill.old_engines.members import Members

#: Some members, ready to be asked: (args, kwargs) of one batch -> their outputs, [group, ...].
Group = Callable[[Any, Any], Tensor]


class Engine(Protocol):
    """How m members run. All engines give the same numbers, up to the rounding of the last bits."""

    name: ClassVar[str]
    precision: str | None
    kept: Kept

    @property
    def report(self) -> str:
        """What ran last, and why, where it is not what the engine's name says."""
        ...

    def groups(self, members: Members, args: Any, kwargs: Any, keep: bool = False) -> Iterator[Group]:
        """All members, in order, in groups of one or more, for batches like this one.

        `keep` says that the same members will be asked for again, so that their weights are worth keeping.
        """
        ...
