"""Products on a CPU with weights in the order that oneDNN likes best; torch keeps these operations for its compiler.

`torch.mm` brings weights into that order in each call. Here that is a step of its own, which depends on the weights
alone and is made once (`prepared.py`).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

ENOUGH_WEIGHTS = 2**18  # of a product, for which a call of oneDNN costs less than it saves
ENOUGH_ROWS = 8  # of a product for each member


def packs(weight: Tensor) -> bool:
    """Whether there are such products for weights of this kind."""
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    return plain and bool(torch._C._get_mkldnn_enabled()) and _works()


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(inputs [..., in] @ weight [out, in].T + bias)."""
    rows = inputs.numel() // inputs.shape[-1]
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, activation, [], "")
    return outputs


def linear_of_each(inputs: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Member j on its own inputs: [rows, m, in], weights [m, out, in] and bias [m, out] -> [rows, m, out].

    One convolution in m groups, over an image of rows x 1 pixels with m * in channels.
    """
    rows, members, width = inputs.shape
    image = inputs.view(1, rows, 1, members * width).permute(0, 3, 1, 2)
    kernel, ones = weight.reshape(-1, width, 1, 1), ([0, 0], [1, 1], [1, 1])
    packed = torch.ops.mkldnn._reorder_convolution_weight(kernel, *ones, members, list(image.shape))
    given = (image, packed, bias.reshape(-1), *ones, members)
    outputs: Tensor = torch.ops.mkldnn._convolution_pointwise(*given, activation, [], "")
    return outputs.permute(0, 2, 3, 1).reshape(rows, members, -1)


@cache
@torch.no_grad()
def _works() -> bool:
    """Tried once: the operations are no promise of torch's."""
    with torch.inference_mode(False):
        inputs, weight, bias = torch.arange(24.0).view(4, 2, 3), torch.arange(12.0).view(2, 2, 3), torch.ones(2, 2)
        expected = torch.einsum("rmi,moi->rmo", inputs, weight) + bias
        try:
            one = linear(inputs[:, 0], weight[0], bias[0], "none")
            each = linear_of_each(inputs, weight, bias, "relu")
        except (AttributeError, RuntimeError):
            return False
        return torch.allclose(one, expected[:, 0]) and torch.allclose(each, expected.relu())
