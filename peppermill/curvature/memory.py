"""How many inputs are differentiated at once: as many as a budget of memory holds."""

from __future__ import annotations

import torch
from torch import Tensor

from peppermill.curvature.landscape import Landscape, part
from peppermill.types import Batch

BUDGET = 2**29  # bytes: leaves room for torch itself and the data within 2 GB
SHARE = 4  # of a GPU's free memory, one part in so many: a GPU needs many inputs at once to be fast


def inputs_at_once(landscape: Landscape, batch: Batch, copies: int, gradients: int = 0) -> int:
    """Inputs for which `copies` of their activations and `gradients` gradients each fit in the budget; at least one."""
    width = landscape.dtype.itemsize * landscape.dimensions
    return max(1, _budget(batch[1].device) // max(1, copies * _activation_bytes(landscape, batch) + gradients * width))


def _budget(device: torch.device) -> int:
    return max(BUDGET, torch.cuda.mem_get_info(device)[0] // SHARE) if device.type == "cuda" else BUDGET


def _activation_bytes(landscape: Landscape, batch: Batch) -> int:
    """What one input leaves in memory between forward and backward pass, weights not counted."""
    weights = {_address(value) for value in (*landscape.center.values(), *landscape.rest.values())}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    inputs, _ = part(batch, 0, 1)
    leaves = {name: value.detach().requires_grad_() for name, value in landscape.center.items()}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = landscape.outputs(leaves, inputs)
    del kept
    return sum(size for address, size in saved.items() if address not in weights)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
