"""All members as one network, for batches so small that a member alone leaves a GPU idle.

What was recorded of one member is run for all: a convolution of all members is one operation, with the norm, sum and
ReLU that `joining.py` gave it; any other operation is `vmap`'s. A network with an operation that will not have that is
refused, and its members run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from peppermill.old_engines.joining import convolution_relu, convolution_sum_relu, plain_convolution
from peppermill.old_engines.prepared import parts_of
from peppermill.old_engines.recorded import Recording
from peppermill.types import Params

_aten = torch.ops.aten
_CONVOLUTIONS = (plain_convolution, convolution_relu, convolution_sum_relu)
#: Recorded looks at a tensor, where one of another order in memory may need a copy.
_LOOKS: dict[Any, Callable[..., Tensor]] = {
    _aten.view.default: torch.reshape,
    _aten._unsafe_view.default: torch.reshape,
}


class Each:
    """A tensor of each member, [m, ...]."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Together:
    """The recorded operations of one member, of whose inputs so many are weights, run for all members."""

    def __init__(self, recording: Recording, weights: int) -> None:
        before, self.graph = parts_of(recording, weights)
        self.prepare, self.constants = recording.compiled(before), recording.constants
        self.own = _own(before)

    def kept(self, members: Sequence[Params]) -> list[Each | Tensor]:
        """What is worth keeping: of each member's weights, and of those that all share, which are there once."""
        columns = zip(*(self.prepare(*params.values()) for params in members), strict=True)
        return [
            Each(_read_along_channels(torch.stack(column))) if own else column[0]
            for own, column in zip(self.own, columns, strict=True)
        ]

    def run(self, kept: Sequence[Each | Tensor], inputs: Sequence[Tensor]) -> Tensor:
        """The outputs of all members, [m, ...]."""
        values: dict[Any, Any] = {}
        given = iter([*kept, *inputs])
        for node in self.graph.nodes:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = self.constants[node.target]
            elif node.op == "call_function":
                values[node] = _applied(node.target, args, kwargs)
            else:
                result: Tensor = args[0].value
        return result


def _own(before: Graph) -> list[bool]:
    """Of each result of a graph, whether it depends on what the graph is given."""
    found: set[Node] = set()
    results: Any = ()
    for node in before.nodes:
        if node.op == "placeholder" or found.intersection(node.all_input_nodes):
            found.add(node)
        if node.op == "output":
            (results,) = node.args
    return [node in found for node in results]


def _applied(target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """One operation; of every member, where something in it belongs to members."""
    flat, form = tree_flatten((args, kwargs))
    own = [isinstance(one, Each) for one in flat]
    if not any(own):
        return target(*args, **kwargs)
    if target in _CONVOLUTIONS:
        return Each(_convolved(target, *args))

    def run(*given: Any) -> Any:
        args, kwargs = tree_unflatten(list(given), form)
        return _LOOKS.get(target, target)(*args, **kwargs)  # type: ignore[no-untyped-call]

    values = [one.value if isinstance(one, Each) else one for one in flat]
    found = torch.vmap(run, in_dims=tuple(0 if mine else None for mine in own))(*values)
    return tree_map_only(Tensor, Each, found)


def _convolved(target: Any, inputs: Any, kernels: Any, biases: Any, *more: Any) -> Tensor:
    """A convolution of every member, [m, batch, outputs, height, width]: one for a kernel or for images that all share,
    or one kernel of our own, or one of m times the groups."""
    *others, stride, padding, dilation, groups = more
    count = len(next(one.value for one in (inputs, kernels, biases, *others) if isinstance(one, Each)))
    if not isinstance(kernels, Each) and not isinstance(biases, Each):
        shown, *branches = (_spread(one, count).flatten(0, 1) for one in (inputs, *others))
        flat = target(shown, kernels, biases, *branches, stride, padding, dilation, groups)
        return torch.unflatten(flat, 0, (count, -1))
    kernels, biases, *others = (_spread(one, count) for one in (kernels, biases, *others))
    if not isinstance(inputs, Each) and groups == 1 and not others:
        flat = target(inputs, kernels.flatten(0, 1), _flat(biases), stride, padding, dilation, 1)
        return torch.unflatten(flat, 1, (count, -1)).transpose(0, 1)
    images, (other,) = _spread(inputs, count), others or (None,)
    simple = groups == 1 and list(dilation) == [1, 1] and stride[0] == stride[1] and padding[0] == padding[1]
    if simple and images.is_cuda and images.dtype == torch.float32 and find_spec("triton"):
        return _by_own_kernel(images, kernels, biases, other, stride[0], padding[0], target is not plain_convolution)
    added = () if other is None else (_beside(other),)
    settings = (stride, padding, dilation, groups * count)
    flat = target(_beside(images), kernels.flatten(0, 1), _flat(biases), *added, *settings)
    return torch.unflatten(flat, 1, (count, -1)).transpose(0, 1)


def _by_own_kernel(
    images: Tensor, kernels: Tensor, biases: Tensor | None, other: Tensor | None, stride: int, padding: int, relu: bool
) -> Tensor:
    from peppermill.old_engines.kernels import convolve

    precision = "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"  # as the user lets cuDNN compute
    seen, weights = (_read_along_channels(one).permute(0, 1, 3, 4, 2) for one in (images, kernels))
    others = None if other is None else other.permute(0, 1, 3, 4, 2).contiguous()
    flat = None if biases is None else biases.contiguous()
    return convolve(seen, weights.contiguous(), flat, others, stride, padding, relu, precision).permute(0, 1, 4, 2, 3)


def _spread(value: Any, count: int) -> Any:
    """Of each member: its own, or the one that all share."""
    return value.value if isinstance(value, Each) else value if value is None else value.expand(count, *value.shape)


def _flat(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.flatten()


def _beside(images: Tensor) -> Tensor:
    """The members' images [m, batch, channels, ...] as channels of one: [batch, m * channels, ...]."""
    return images.transpose(0, 1).flatten(1, 2)


def _read_along_channels(value: Tensor) -> Tensor:
    """Images or kernels of all members in a form in which the channels of one place lie together."""
    if value.ndim != 5 or value.stride(2) == 1:
        return value
    return value.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
