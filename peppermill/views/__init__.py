"""Views of the inputs: member j sees view j mod V, so that antithetic twins see different ones; one row for each view.

Where a network was trained with mirrored pictures, a mirror image is worth more than noise, at no extra pass. Where it
was not, a mirror image ruins the result: try views on validation data (`pm.calibrate` does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from peppermill.plumbing.nested import as_arguments, map_tensors
from peppermill.types import Inputs
from peppermill.views.flips import horizontal_flip, vertical_flip


@dataclass(frozen=True)
class View:
    """One view: its name, a line of help, and the function that makes it from a batch of inputs.

    The function gets the inputs as the network takes them: a tensor, a tuple or a dict.
    """

    name: str
    help: str
    function: Callable[[Any], Any]

    def seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with this view of the inputs."""
        inputs: Inputs = kwargs if kwargs and not args else args[0] if len(args) == 1 else args
        changed = self.function(inputs)
        if changed is inputs:
            return args, kwargs
        before, after = _shapes(inputs), _shapes(changed)
        if before != after:
            raise ValueError(
                f"the view {self.name!r} turns inputs of shapes {before} into {after}: a view must keep every shape."
            )
        extra = kwargs if inputs is not kwargs else {}
        args, kwargs = as_arguments(changed)
        return args, {**kwargs, **extra}


IDENTITY = View("identity", "the inputs as they are", lambda inputs: inputs)

#: The views by name. A new one is one function and one row.
VIEWS = {
    row.name: row
    for row in (
        View("horizontal_flip", "pictures mirrored left to right", horizontal_flip),
        View("vertical_flip", "pictures mirrored top to bottom", vertical_flip),
    )
}

#: What users write: one name, one function of a batch, or several of them.
ViewsLike: TypeAlias = "str | Callable[[Any], Any] | Sequence[str | Callable[[Any], Any]] | None"


def views_named(views: ViewsLike) -> tuple[View, ...]:
    """The plain inputs first, then these views; empty if there are none."""
    if views is None or views == ():
        return ()
    chosen = []
    for view in (views,) if isinstance(views, (str, View)) or callable(views) else tuple(views):
        if isinstance(view, str) and view not in VIEWS:
            raise ValueError(f"`views={view!r}` is unknown: choose from {', '.join(VIEWS)}, or give a function.")
        if isinstance(view, str):
            chosen.append(VIEWS[view])
        elif isinstance(view, View):
            chosen.append(view)
        elif callable(view):
            chosen.append(View(getattr(view, "__name__", "view"), "a function of yours", view))
        else:
            raise TypeError(f"`views={view!r}` is neither the name of a view nor a function of a batch.")
    return (IDENTITY, *(view for view in chosen if view is not IDENTITY))


def _shapes(inputs: Inputs) -> list[list[int]]:
    found: list[list[int]] = []
    map_tensors(lambda tensor: found.append(list(tensor.shape)), inputs)
    return found


def saved_names(views: tuple[View, ...]) -> list[str]:
    """The names under which views are saved; a function of the user's has none."""
    names = [view.name for view in views if view is not IDENTITY]
    for view in views:
        if view is not IDENTITY and VIEWS.get(view.name) is not view:
            raise ValueError(
                f"the view {view.name!r} is a function, and files hold names: add a row to "
                "`peppermill.views.VIEWS` before fitting, and before loading."
            )
    return names
