"""The graph of a network at work: its weights are arguments, and images are channels last.

`fold` turns a member's parameters into the weights of the graph, once per member; it serves every engine and precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from peppermill.engines import PRECISIONS, autocast
from peppermill.engines.inference_form import CHECKED_ITEMS, PlainForm, agree, different, moved_weight
from peppermill.engines.network_shell import is_written
from peppermill.likelihood import at_least_float32
from peppermill.types import Params


@dataclass(frozen=True)
class Norm:
    """A batch norm, x -> scale * x + shift, by the names of its arrays: mean, variance, weight and bias."""

    arrays: tuple[str | None, ...]
    epsilon: float

    def scale_and_shift(self, state: Params) -> tuple[Tensor, Tensor]:
        values: list[Any] = [state[name] if name else None for name in self.arrays]
        mean, variance, weight, bias = values
        scale = (at_least_float32(variance) + self.epsilon).rsqrt() * (1 if weight is None else weight)
        return scale, (0 if bias is None else bias) - mean * scale


@dataclass(frozen=True)
class Argument:
    """Where arguments of the graph come from: one array, or weight and bias of a layer with norms folded in."""

    arrays: tuple[str | None, ...]
    before: Norm | None = None
    after: Norm | None = None

    def names(self) -> set[str]:
        return {name for part in (self, self.before, self.after) if part for name in part.arrays if name}

    def tensors(self, state: Params) -> list[Tensor | None]:
        """The arguments, linear in each of the arrays."""
        found: list[Any] = [state[name] if name else None for name in self.arrays]
        if not self.before and not self.after:
            return found
        kind, weight = found[0].dtype, at_least_float32(found[0])
        shift: Any = 0.0 if found[1] is None else at_least_float32(found[1])
        if self.before:
            scale, added = (value.view(-1, *[1] * (weight.ndim - 2)) for value in self.before.scale_and_shift(state))
            shift = shift + (weight * added).flatten(1).sum(dim=1)
            weight = weight * scale
        if self.after:
            scale, added = self.after.scale_and_shift(state)
            shift = shift * scale + added
            weight = weight * scale.view(-1, *[1] * (weight.ndim - 1))
        return [weight.to(kind), shift.to(kind)]


class TracedForm:
    """The graph; its weights are its arguments before its input."""

    def __init__(self, plain: PlainForm, selected: Sequence[str], channels_last: bool) -> None:
        from peppermill.engines.recorder import Recorder, fuse_relu, with_arguments  # which imports this file

        model, self.device, self.precision = plain.shells.model, plain.device, plain.precision
        self.state = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}
        self.plain, self.selected, self.channels_last = plain, selected, channels_last
        self.agreed: dict[Any, bool] = {}  # whether the network gives the same outputs, by the kind of inputs
        recorder = Recorder(model)
        self.graph, self.reads, self.modules = recorder.graph, [*recorder.reads.values()], [*model.modules()]
        self.arguments: list[tuple[Argument, list[Tensor | None] | None]] = []  # with the values of those that stay
        for argument, nodes in with_arguments(self.graph):
            varies = bool(argument.names() & set(selected))
            for node in nodes:
                node.meta["varies"] = varies
            self.arguments.append((argument, None if varies else self._tensors(argument, self.state)))
        is_float32 = all(value.dtype == torch.float32 for value in self.state.values() if value.is_floating_point())
        if self.device.type == "cuda" and is_float32 and not torch.is_autocast_enabled("cuda"):
            fuse_relu(self.graph)
        self.function = fx.GraphModule(nn.Module(), self.graph)
        self.run: Callable[..., Tensor] = self.function.forward  # without the checks for hooks of a call of the module

    def fold(self, params: Params) -> list[Tensor | None]:
        """The weights of the graph for these parameters; what they do not touch is shared by all members."""
        state, weights = {**self.state, **params}, list[Tensor | None]()
        for argument, fixed in self.arguments:
            weights += self._tensors(argument, state) if fixed is None else fixed
        return weights

    def is_current(self) -> bool:
        """Whether everything that the trace read has its value, and no module has a hook."""
        if any(module._forward_hooks or module._forward_pre_hooks for module in self.modules):
            return False
        return all(space.get(name) == value for space, name, value in self.reads)

    def __call__(self, weights: list[Tensor | None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        with autocast(self.device, self.precision):
            return self.run(*weights, self.laid_out(args[0]))

    def laid_out(self, value: Tensor) -> Tensor:
        """Images and kernels channels last, if that is the memory format of the form."""
        return value.contiguous(memory_format=torch.channels_last) if self.channels_last and value.ndim == 4 else value

    def _tensors(self, argument: Argument, state: Params) -> list[Tensor | None]:
        """A layer's weight and bias, in the precision of the form, or another array."""
        tensors = argument.tensors(state)
        low = PRECISIONS[self.precision] if self.precision and len(tensors) == 2 else None
        return [None if value is None else self.laid_out(value.to(low or value.dtype)) for value in tensors]

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these are arguments like those for which the network was traced, and it gives the right outputs."""
        if unusual_arguments(args, kwargs):
            return False
        if (kind := kind_of(args[0])) not in self.agreed:
            try:
                self.agreed[kind] = self.agrees(args[0])
            except Exception:  # of the network itself: the plain form, which runs next, raises it again
                self.agreed[kind] = False
        return self.agreed[kind]

    def agrees(self, x: Tensor) -> bool:
        """Whether the first items, and other inputs with other weights, give what they give in the plain form."""
        x, moved = x[:CHECKED_ITEMS], {name: moved_weight(self.state[name], k) for k, name in enumerate(self.selected)}
        for given, params in ((x, Params()), (different(x), moved)):
            copy = self.laid_out(given.clone())  # the network may get inputs that have the layout already
            found = self(self.fold(params), (copy,), {})
            if is_written(given, copy):
                raise TypeError("it writes to its input")
            if not agree(found, self.plain(params, (given,), {})):
                return False
        return True


def unusual_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether they are anything but one tensor of real numbers."""
    return bool(kwargs) or len(args) != 1 or not isinstance(args[0], Tensor) or not args[0].is_floating_point()


def kind_of(x: Tensor) -> Any:
    """Inputs of one kind go through the same operations."""
    return x.shape[1:], x.dtype, len(x) > 1


def convolution_relu(other: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None, *places: Any) -> Tensor:
    """ReLU(convolution + bias + other) in the precision of the weights: autocast does not know these operators."""
    if other is None:
        return torch.cudnn_convolution_relu(x.to(weight.dtype), weight, bias, *places)
    return torch.cudnn_convolution_add_relu(x.to(weight.dtype), weight, other.to(weight.dtype), 1.0, bias, *places)
