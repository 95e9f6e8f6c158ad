"""Views of the inputs: member j sees view j mod V, so that antithetic twins see different ones; one row for each view.

Where a network was trained with mirrored pictures, a mirror image is worth more than noise, at no extra pass. Where it
was not, a mirror image ruins the result: try views on validation data (`pm.calibrate` does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from peppermill.plumbing.nested import as_arguments, map_tensors, shapes_of
from peppermill.types import Inputs

CHANNELS = (1, 3, 4)  # of a picture as it is stored


@dataclass(frozen=True)
class View:
    """One view: its name, a line of help, and the function that makes it from a batch of inputs.

    The function gets the inputs as the network takes them: a tensor, a tuple or a dict; (args, kwargs) if a call has
    both. A method `undo(outputs, inputs)` of it turns outputs [members, batch, ...] back, as labels of pixels need.
    """

    name: str
    help: str
    function: Callable[[Any], Any]

    def seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with this view of the inputs."""
        before, changed = shapes_of((args, kwargs)), self.function(_inputs(args, kwargs))
        after = shapes_of(changed)
        if before != after:
            raise ValueError(
                f"the view {self.name!r} turns inputs of shapes {before} into {after}: a view must keep every shape."
            )
        return changed if args and kwargs else as_arguments(changed)

    def outputs(self, call: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The outputs of `call`, [members, batch, ...], for this view, turned back."""
        found = call(*self.seen(args, kwargs))
        undo = getattr(self.function, "undo", None)
        return undo(found, _inputs(args, kwargs)) if undo else found


@dataclass(frozen=True)
class Flip:
    """Pictures seen in a mirror: `dimension` is -1 for left to right, -2 for top to bottom."""

    dimension: int

    def __call__(self, inputs: Inputs) -> Inputs:
        """The inputs with every picture [B, C, H, W] in them mirrored."""
        picture_shapes(inputs)
        flipped: Inputs = map_tensors(lambda t: t.flip(self.dimension) if t.ndim == 4 else t, inputs)
        return flipped

    def undo(self, outputs: Tensor, inputs: Inputs) -> Tensor:
        """Outputs for every pixel, [members, B, H, W] with classes somewhere, mirrored back; for a picture, as is."""
        size, sizes = picture_shapes(inputs)[0][2:], list(outputs.shape[2:])
        places = [k for k in range(len(sizes) - 1) if sizes[k : k + 2] == size]
        if places:  # of two, the later one: classes come before the pixels
            return outputs.flip(2 + places[-1] + 2 + self.dimension)
        if sum(length > 1 for length in sizes) > 1:
            raise ValueError(
                f"outputs of shape {list(outputs.shape[1:])} for pictures of {size} pixels are neither for pictures "
                "nor for pixels, so they cannot be flipped back: leave `views` out, or give a function of a batch that "
                "has a method `undo(outputs, inputs)`."
            )
        return outputs


def picture_shapes(inputs: Inputs) -> list[list[int]]:
    """The shapes of the pictures in the inputs, at least one."""
    shapes = shapes_of(inputs)
    pictures = [shape for shape in shapes if len(shape) == 4]
    if not pictures or any(shape[-1] in CHANNELS and shape[1] not in CHANNELS for shape in pictures):
        raise ValueError(
            f"inputs of shapes {shapes} hold no pictures [batch, channels, height, width] to flip: leave `views` out, "
            "or give a function of a batch, such as `lambda x: x.flip(2)` for [batch, height, width, channels]."
        )
    return pictures


def unchanged(inputs: Inputs) -> Inputs:
    """The inputs as they are."""
    return inputs


IDENTITY = View("identity", "the inputs as they are", unchanged)

#: The views by name. A new one is one function and one row.
VIEWS = {
    row.name: row
    for row in (
        View("horizontal_flip", "pictures mirrored left to right", Flip(-1)),
        View("vertical_flip", "pictures mirrored top to bottom", Flip(-2)),
    )
}

#: What users write: one name, one function of a batch, or several of them.
ViewsLike: TypeAlias = "str | Callable[[Any], Any] | Sequence[str | Callable[[Any], Any]] | None"


def views_named(views: ViewsLike) -> tuple[View, ...]:
    """The inputs as they are first, then these views; empty if there are none."""
    given: Sequence[Any] = views if isinstance(views, (list, tuple)) else () if views is None else (views,)
    chosen = []
    for view in given:
        if isinstance(view, str) and view not in VIEWS:
            raise ValueError(f"`views={view!r}` is unknown: choose from {', '.join(VIEWS)}, or give a function.")
        if isinstance(view, (str, View)):
            chosen.append(VIEWS[view] if isinstance(view, str) else view)
        elif callable(view):
            chosen.append(View(getattr(view, "__name__", type(view).__name__), "a function of yours", view))
        else:
            raise TypeError(f"`views={view!r}` is neither the name of a view nor a function of a batch.")
    return (IDENTITY, *(view for view in chosen if view != IDENTITY)) if chosen else ()


def saved_names(views: tuple[View, ...]) -> list[str]:
    """The names under which views are saved; a function of the user's has none."""
    for view in views:
        if view not in (IDENTITY, VIEWS.get(view.name)):
            raise ValueError(
                f"the view {view.name!r} is a function, and files hold names: add a row to "
                "`peppermill.views.VIEWS` before fitting, and before loading."
            )
    return [view.name for view in views if view != IDENTITY]


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    if args and kwargs:
        return args, kwargs
    return kwargs or (args[0] if len(args) == 1 else args)
