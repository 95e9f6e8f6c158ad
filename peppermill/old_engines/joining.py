"""A convolution with what follows it as one operation: a batch norm, the sum with another branch, a ReLU.

For one item a GPU computes each of these faster than it starts the next. In evaluation a norm is a scale and a shift of
each channel: it goes into the kernel and the bias, once for each set of weights; the sum and the ReLU are cuDNN's.
Only where that cannot change what anybody else sees: whatever is left out has no other user.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F

from peppermill.old_engines.recorded import Recording, written

#: How images and kernels lie in memory.
Form = Callable[[Tensor], Tensor]

_aten = torch.ops.aten
_CONVOLUTION = _aten.convolution.default
_NORMS = (_aten.cudnn_batch_norm.default, _aten.native_batch_norm.default)
_RELUS = (_aten.relu.default, _aten.relu_.default)
_SUMS = (_aten.add.Tensor, _aten.add_.Tensor)


class _Tail(NamedTuple):
    """What follows a convolution: its last operation, the norm, the other part of the sum, whether a ReLU ends it."""

    last: Node
    norm: Node | None = None
    other: Node | None = None
    relu: bool = False


def join(recording: Recording, kernel_form: Form | None = None) -> int:
    """Change the recorded operations in place; how many convolutions do the work of others now.

    With a form, kernels are brought into it, once for each set of weights.
    """
    joined = 0
    recording.clean()
    for node in [node for node in recording.graph.nodes if node.target is _CONVOLUTION and _is_plain(node)]:
        tail = _tail(node)
        joined += tail.last is not node
        _replace(recording, node, tail, kernel_form)
    return joined


def _tail(convolution: Node) -> _Tail:
    """As much as can follow at once."""
    normed = _with_norm(convolution)
    tails = (_with_relu(_with_sum(normed)), _with_relu(normed), normed, _Tail(convolution))
    return next(tail for tail in tails if tail and _is_undisturbed(convolution, tail.last))


def _with_relu(tail: _Tail | None) -> _Tail | None:
    relu = _only_user(tail.last) if tail else None
    return tail._replace(last=relu, relu=True) if tail and relu is not None and relu.target in _RELUS else None


def _with_sum(tail: _Tail) -> _Tail | None:
    """With the other branch, if one is added to the value, of the same shape."""
    added, value = _only_user(tail.last), tail.last
    if added is None or added.target not in _SUMS or len(added.args) != 2 or added.kwargs:
        return None
    others = [one for one in added.all_input_nodes if one is not value]
    own = added.args[0] is value or added.target is _SUMS[0]  # or it would write to the other branch
    same = len(others) == 1 and _shape(others[0]) == _shape(value) is not None
    return tail._replace(last=added, other=others[0]) if own and same else None


def _is_undisturbed(first: Node, last: Node) -> bool:
    """Whether nobody else writes to a tensor in between: the convolution is made later than it was, in place of all."""
    node, chain = first, {first}
    while node is not last:
        node = node.next
        if chain.intersection(node.all_input_nodes):
            chain.add(node)
        elif written(node):
            return False
    return True


def _with_norm(convolution: Node) -> _Tail:
    norm = _only_user(convolution)
    if norm is None or norm.target not in _NORMS or norm.args[0] is not convolution or norm.args[5]:
        return _Tail(convolution)
    first = _only_user(norm)  # of a norm's three results the first is the one that counts
    used = first is not None and first.target is operator.getitem and first.args[1] == 0
    return _Tail(first, norm) if used and first is not None else _Tail(convolution)


def _shape(node: Node) -> Any:
    if node.target is operator.getitem:
        return _shape(node.args[0].args[0])  # type: ignore[union-attr, arg-type]  # a norm keeps the shape
    placed = node.meta.get("placed")
    return placed[0] if placed else node.meta.get("shape")


def _is_plain(convolution: Node) -> bool:
    """Two-dimensional, and not transposed."""
    shape = _shape(convolution)
    return shape is not None and len(shape) == 4 and not convolution.args[6]


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _replace(recording: Recording, convolution: Node, tail: _Tail, kernel_form: Form | None) -> None:
    """One operation in the place of the last one: everything that it needs has been computed there."""
    inputs, kernel, bias, *how = convolution.args
    settings = (*how[:3], how[5])  # stride, padding, dilation, groups
    with recording.graph.inserting_before(tail.last):
        call = recording.graph.call_function
        norm = tail.norm.args[1:5] + tail.norm.args[7:8] if tail.norm else None
        if norm:
            kernel, bias = call(folded_kernel, (kernel, *norm)), call(folded_bias, (bias, *norm))
        kernel = call(kernel_form, (kernel,)) if kernel_form else kernel
        if tail.other is not None:
            joined = call(convolution_sum_relu, (inputs, kernel, bias, tail.other, *settings))
        else:
            joined = call(convolution_relu if tail.relu else plain_convolution, (inputs, kernel, bias, *settings))
    joined.meta["shape"] = _shape(tail.last)
    tail.last.replace_all_uses_with(joined)
    gone = [convolution]
    while gone[-1] is not tail.last:
        gone += gone[-1].users  # each has one
    for node in reversed(gone):
        recording.graph.erase_node(node)


def folded_kernel(
    kernel: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, epsilon: float
) -> Tensor:
    """The kernel of a convolution that does the work of the norm behind it."""
    return kernel * _scale(weight, variance, epsilon).view(-1, *[1] * (kernel.ndim - 1))


def folded_bias(
    own: Tensor | None, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, epsilon: float
) -> Tensor:
    """The bias of a convolution that does the work of the norm behind it."""
    moved = (-mean if own is None else own - mean) * _scale(weight, variance, epsilon)
    return moved if bias is None else moved + bias


def _scale(weight: Tensor | None, variance: Tensor, epsilon: float) -> Tensor:
    scale = (variance + epsilon).rsqrt()
    return scale if weight is None else scale * weight


def channels_last(value: Tensor) -> Tensor:
    """Images or kernels in the form in which convolutions are fast; of one channel, torch must be told by strides."""
    if value.ndim != 4:
        return value.detach()
    formed = value.detach().contiguous(memory_format=torch.channels_last)
    _, channels, height, width = value.shape
    return formed.as_strided(value.shape, (height * width, 1, width, 1)) if channels == 1 else formed


def plain_convolution(inputs: Tensor, kernel: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
    """A convolution and nothing more."""
    return F.conv2d(inputs, kernel, bias, *settings)


def convolution_relu(inputs: Tensor, kernel: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
    """A convolution and a ReLU."""
    if _has_cudnn(inputs):
        return torch.cudnn_convolution_relu(inputs, kernel, bias, *settings)
    return F.relu_(F.conv2d(inputs, kernel, bias, *settings))


def convolution_sum_relu(inputs: Tensor, kernel: Tensor, bias: Tensor | None, other: Tensor, *settings: Any) -> Tensor:
    """A convolution, the sum with another branch, and a ReLU."""
    if _has_cudnn(inputs):
        return torch.cudnn_convolution_add_relu(inputs, kernel, other, 1.0, bias, *settings)
    return F.relu_(F.conv2d(inputs, kernel, bias, *settings).add_(other))


def _has_cudnn(inputs: Tensor) -> bool:
    return inputs.is_cuda and inputs.dtype == torch.float32 and torch._C._has_cudnn
