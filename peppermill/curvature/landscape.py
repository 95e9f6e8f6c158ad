"""ln L_i as a function of the selected parameters: the function that this package differentiates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from peppermill.data import Batches
from peppermill.engines.network_shell import Shells
from peppermill.noise import Noise
from peppermill.parameters import Selection, select
from peppermill.plumbing.nested import as_arguments, map_tensors, output_tensor
from peppermill.plumbing.networks import as_network, explain_shapes, refuse_training_mode
from peppermill.types import Batch, Data, Inputs, Likelihood, Params

MEMORY_BYTES = 2**29  # for activations and gradients: leaves room for torch and the data within 2 GB
GPU_MEMORY_SHARE = 1 / 4  # of the free memory of a GPU, if that is more: a GPU is fast only on large batches


@dataclass(frozen=True)
class Landscape:
    """theta -> ln L_i(theta) around theta* on some data, in float32 at least.

    `center` is theta*, the selected parameters. `rest` holds the other parameters, and the buffers of another type,
    which stay as they are. `network` has shells, with buffers of their own: the user's modules are never called.
    """

    network: Shells
    likelihood: Likelihood
    center: Params
    rest: Params
    data: Batches

    @property
    def dimensions(self) -> int:
        """How many numbers theta has."""
        return sum(value.numel() for value in self.center.values())

    def outputs(self, params: Params, inputs: Inputs) -> Tensor:
        """The outputs of the network at theta for a batch of inputs."""
        args, kwargs = as_arguments(inputs)
        with explain_shapes(self.network.model):
            return output_tensor(self.network({**self.rest, **params}, args, kwargs))

    def of_items(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """ln L_i of the items that count, [n], from the outputs of the network."""
        return self.likelihood.log_likelihoods(*self.likelihood.items(self.likelihood.predict(outputs), labels))

    def gaussian_directions(self, count: int, seed: int) -> Iterator[Params]:
        """Probes v with the law of PEP's own noise, from a random stream that no ensemble uses."""
        noise = Noise("gaussian", antithetic=False, seed=seed)
        for probe in range(count):
            yield {
                name: noise.draw(f"probe {name}", probe, value).to(value.dtype) for name, value in self.center.items()
            }

    def axes(self) -> Iterator[Params]:
        """sqrt(d) e_k for k = 1..d: the mean of v^T A v over these directions is the trace of A."""
        for name, value in self.center.items():
            for position in range(value.numel()):
                direction = {other: torch.zeros_like(zeros) for other, zeros in self.center.items()}
                direction[name].view(-1)[position] = self.dimensions**0.5
                yield direction

    def parts(self, batch: Batch, activations: int, gradients: int = 0) -> Iterator[Batch]:
        """The batch in parts small enough for memory, with at least one input each.

        Every input needs memory for `activations` copies of its activations and for `gradients` gradients.
        """
        device = batch[1].device
        budget = MEMORY_BYTES
        if device.type == "cuda":
            budget = max(budget, int(GPU_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]))
        gradient_bytes = sum(value.nbytes for value in self.center.values())
        one_input = activations * self._activation_bytes(batch) + gradients * gradient_bytes
        size = max(1, budget // max(1, one_input))
        for start in range(0, len(batch[1]), size):
            yield slice_batch(batch, start, start + size)

    def _activation_bytes(self, batch: Batch) -> int:
        """What the forward pass of one input keeps for the backward pass, without the weights."""
        saved: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        inputs, _ = slice_batch(batch, 0, 1)
        leaves = {name: value.detach().requires_grad_() for name, value in self.center.items()}
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = self.outputs(leaves, inputs)
        del outputs  # keeps the saved tensors alive, so that no two of them share an address
        for value in (*self.center.values(), *self.rest.values()):
            saved.pop(value.untyped_storage().data_ptr(), None)
        return sum(saved.values())


def landscape_of(
    model: nn.Module, data: Data, parameters: Selection, likelihood: Likelihood, batch_size: int
) -> Landscape:
    """The landscape around the weights of the network. Half precision becomes float32."""
    network = as_network(model)
    refuse_training_mode(network)
    dtype = torch.float32
    for value in network.parameters():
        dtype = torch.promote_types(dtype, value.dtype) if value.is_floating_point() else dtype
    everything = {
        name: value.detach().to(dtype if value.is_floating_point() else value.dtype)
        for name, value in (*network.named_parameters(), *network.named_buffers())
    }
    center = {name: everything.pop(name) for name in select(network, parameters)}
    for name, value in network.named_buffers():  # the network may write to these; a shell has its own
        if everything[name].dtype == value.dtype:
            del everything[name]
    batches = Batches(data, network, batch_size=batch_size)
    batches.dtype = dtype
    return Landscape(Shells(network), likelihood, center, everything, batches)


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Some inputs of a batch, with their labels."""
    return map_tensors(lambda tensor: tensor[start:stop], batch[0]), batch[1][start:stop]


def in_float64(values: Tensor) -> Tensor:
    """The values in float64 on the CPU (not every device has float64), so that sums and softmax add no rounding."""
    return values.cpu().double()


@contextmanager
def twice_differentiable() -> Iterator[Callable[..., Any]]:
    """Compute attention by plain products: its fused kernels have no second derivative. Record no outer graph.

    Gives a function that calls another one in a thread of its own. Ctrl-C reaches the main thread alone; inside a
    transform of `torch.func` it would leave torch's stack of transforms open, and later gradients would fail.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        without_graph = ThreadPoolExecutor(1, initializer=torch.set_grad_enabled, initargs=(False,))
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), without_graph as own:
            yield lambda function, *args: own.submit(function, *args).result()
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
