"""What is called: the network as a function of its weights, with batch norms folded and images channels last.

`torch.fx` records the network once. Its weights become arguments, each batch norm is folded into the layer before or
after it, and images and kernels are laid out channels last. `fold` turns a member's parameters into the weights of that
function, once per member. It serves every engine and every precision.

A network that torch.fx cannot trace whole (it branches on values, takes several inputs, has hooks) is called as it is,
and so is every network whose traced form gives other outputs on inputs and weights that it was not traced with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from peppermill.engines import PRECISIONS, autocast
from peppermill.engines.network_shell import Shells, attributes_of, is_written, same_objects
from peppermill.plumbing.nested import output_tensor
from peppermill.plumbing.networks import device_of
from peppermill.plumbing.warnings import warn_user
from peppermill.types import Params

CHECKED_ITEMS = 4  # of a batch, on which a plan is compared with the network itself

#: How far the two may differ, relative to the largest output: rounding in another order, on a GPU that of TF32.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}
CUDA_TOLERANCE = 2e-2


@dataclass(frozen=True)
class Norm:
    """A batch norm, x -> scale * x + shift, by the names of its arrays: mean, variance, weight and bias."""

    arrays: tuple[str | None, ...]
    epsilon: float

    def scale_and_shift(self, state: Params) -> tuple[Tensor, Tensor]:
        values: list[Any] = [state[name] if name else None for name in self.arrays]
        mean, variance, weight, bias = values
        scale = (_wide(variance) + self.epsilon).rsqrt() * (1 if weight is None else weight)
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
        kind, weight = found[0].dtype, _wide(found[0])
        shift: Any = 0.0 if found[1] is None else _wide(found[1])
        if self.before:
            scale, added = (value.view(-1, *[1] * (weight.ndim - 2)) for value in self.before.scale_and_shift(state))
            shift = shift + (weight * added).flatten(1).sum(dim=1)
            weight = weight * scale
        if self.after:
            scale, added = self.after.scale_and_shift(state)
            shift = shift * scale + added
            weight = weight * scale.view(-1, *[1] * (weight.ndim - 1))
        return [weight.to(kind), shift.to(kind)]


def _wide(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32))


class PlainForm:
    """The network as it is; the weights are a member's parameters by name."""

    is_traced = False

    def __init__(self, model: nn.Module, precision: str | None) -> None:
        self.shells, self.reason = Shells(model), ""  # the reason why it is not traced
        self.device, self.precision = device_of(model), precision
        self.attributes = attributes_of(model)

    def fold(self, params: Params) -> Params:
        return params

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return True

    def is_current(self) -> bool:
        """Whether every attribute is still the same, unless each call reads them anew."""
        reads_anew = not self.shells.is_steady and not self.shells.aliases
        return reads_anew or same_objects(self.attributes, attributes_of(self.shells.model))

    def __call__(self, weights: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        with autocast(self.device, self.precision):
            return output_tensor(self.shells(weights, args, kwargs)).clone()  # it may be a buffer of the network


class TracedForm:
    """The network as a graph of torch.fx; the weights are the graph's arguments before its input."""

    is_traced = True

    def __init__(self, plain: PlainForm, selected: Sequence[str], channels_last: bool) -> None:
        from peppermill.engines.norm_folding import fuse_relu, with_arguments  # read only when a network is traced
        from peppermill.engines.recorder import Recorder

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
        if self.device.type == "cuda" and is_float32 and not self.precision and not torch.is_autocast_enabled("cuda"):
            fuse_relu(self.graph)
        self.function = fx.GraphModule(nn.Module(), self.graph)
        self.run = self.function.forward  # without the checks for hooks of a call of the module

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
            return output_tensor(self.run(*weights, self.laid_out(args[0])))

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
        if _unusual_arguments(args, kwargs):
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


def forms_of(
    model: nn.Module, selected: Sequence[str], precision: str | None, args: Any, kwargs: Any
) -> tuple[PlainForm, PlainForm | TracedForm]:
    """The plain network, and the traced one if it gives the same outputs, on a second, different batch too."""
    plain = PlainForm(model, precision)
    if _is_random(plain, args, kwargs):
        plain.reason = "its outputs are random"
        warn_user(
            f"this {type(model).__name__} gives other outputs when it is called again on the same inputs, so every "
            "number includes chance. Did its code leave out `training=self.training` in `F.dropout`?"
        )
    elif _unusual_arguments(args, kwargs):
        plain.reason = "its input is not one tensor of real numbers"
    elif any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        plain.reason = "it has hooks"
    if plain.reason:
        return plain, plain
    for channels_last in (True, False) if args[0].ndim == 4 else (False,):
        try:
            form = TracedForm(plain, selected, channels_last)
            form.agreed[kind_of(args[0])] = form.agrees(args[0])
            if form.takes(args, kwargs):
                return plain, form
            plain.reason = "the traced network gives other outputs than the network"
            if not channels_last:
                warn_user(
                    f"this {type(model).__name__} gives other outputs when torch.fx traces it than when it is called, "
                    "so its members run as it is, one after another: the numbers are right, the time may be longer."
                )
        except Exception as error:
            reason = str(error).partition("\n")[0][:120]
            plain.reason = f"torch.fx cannot trace it ({type(error).__name__}: {reason})"
    return plain, plain


def _is_random(plain: PlainForm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the network gives other outputs when it is called again."""
    try:
        if all(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
            args = tuple(value[:CHECKED_ITEMS] for value in args)
            kwargs = {name: value[:CHECKED_ITEMS] for name, value in kwargs.items()}
        return not agree(plain({}, args, kwargs), plain({}, args, kwargs))
    except Exception:  # a network for batches of one size only, or its own error, which its first pass raises again
        return False


def _unusual_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs) or len(args) != 1 or not isinstance(args[0], Tensor) or not args[0].is_floating_point()


def kind_of(x: Tensor) -> Any:
    """Inputs of one kind go through the same operations."""
    return x.shape[1:], x.dtype, len(x) > 1


def different(x: Tensor) -> Tensor:
    """Other inputs of the same shape: what was baked in from one batch shows on another."""
    return 1.25 * x.flip(0) + 0.1


def moved_weight(weight: Tensor, number: int) -> Tensor:
    """Other weights of the same size, in one piece of memory: what was baked in from the network's own shows."""
    places = torch.arange(weight.numel(), dtype=torch.float32, device=weight.device)
    wave = places.add_(number).cos_().view_as(weight)  # equal weights move apart
    size = float(weight.norm()) / weight.numel() ** 0.5 or 1.0
    return wave.mul_(0.05 * size).add_(weight).to(weight.dtype)


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether two forms of one network give the same outputs, up to rounding."""
    largest = expected.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-30)
    tolerance = TOLERANCES.get(expected.dtype, 0.0)
    tolerance = max(tolerance, CUDA_TOLERANCE) if expected.is_cuda and expected.dtype != torch.float64 else tolerance
    if found.shape != expected.shape:
        return False
    close = ((found - expected).abs() <= tolerance * largest) | (found == expected) | (found.isnan() & expected.isnan())
    return bool(close.all())
