"""ln L_i as a function of the selected parameters: what every derivative of this package is taken of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from peppermill.data import Batches, as_arguments, map_tensors, output_tensor
from peppermill.engines.loop import refuse_training_mode
from peppermill.foreign import functional_call
from peppermill.noise import Noise
from peppermill.parameters import Selection, select
from peppermill.types import Batch, Data, Inputs, Likelihood, Params


@dataclass(frozen=True)
class Landscape:
    """theta -> ln L_i(theta) around theta*, in float32 at least; the network itself is read and never written.

    `center` is theta*, the selected parameters; `rest` is everything else that the network holds, statistics of batch
    norm among it, which stays as it is.
    """

    model: nn.Module
    likelihood: Likelihood
    center: Params
    rest: Params

    @property
    def dimensions(self) -> int:
        """How many numbers theta has."""
        return sum(value.numel() for value in self.center.values())

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.center.values())).dtype

    def outputs(self, params: Params, inputs: Inputs) -> Tensor:
        """What the network gives for a batch of inputs at theta."""
        args, kwargs = as_arguments(inputs)
        return output_tensor(functional_call(self.model, {**self.rest, **params}, args, kwargs))

    def of_items(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """ln L_i of the items that count, [n], from the network's outputs."""
        return self.likelihood.log_likelihoods(*self.likelihood.items(self.likelihood.predict(outputs), labels))

    def log_likelihoods(self, params: Params, inputs: Inputs, labels: Tensor) -> Tensor:
        """ln L_i(theta) of a batch, [n]."""
        return self.of_items(self.outputs(params, inputs), labels)


def landscape_of(
    model: nn.Module, data: Data, parameters: Selection, likelihood: Likelihood, batch_size: int
) -> tuple[Landscape, Batches]:
    """The landscape around the network's weights, and the data in its type; half precision becomes float32."""
    refuse_training_mode(model)
    floating = [value.dtype for value in model.parameters() if value.is_floating_point()]
    dtype = torch.float32
    for found in floating:
        dtype = torch.promote_types(dtype, found)

    def typed(value: Tensor) -> Tensor:
        return value.detach().to(dtype if value.is_floating_point() else value.dtype)

    center = {name: typed(value) for name, value in select(model, parameters).items()}
    everything = dict(model.named_parameters()) | dict(model.named_buffers())
    rest = {name: typed(value) for name, value in everything.items() if name not in center}
    batches = Batches(data, model, batch_size=batch_size)
    batches.dtype = dtype
    return Landscape(model, likelihood, center, rest), batches


@torch.no_grad()
def checked_inputs(landscape: Landscape, data: Batches) -> int:
    """How many inputs the data have, after a look at what the network says about each."""
    count = 0
    for inputs, labels in data:
        outputs = landscape.outputs(landscape.center, inputs)
        if not bool(outputs.isfinite().all()):
            raise ValueError(
                "the network itself gives outputs that are NaN or infinite on these data: check its weights and the "
                "inputs first."
            )
        landscape.likelihood.check(outputs, labels)
        count += len(labels)
    return count


def gaussian_directions(center: Params, count: int, seed: int) -> Iterator[Params]:
    """Probes v with the law of PEP's own noise, from a stream that no ensemble uses."""
    noise = Noise("gaussian", antithetic=False, seed=seed)
    for probe in range(count):
        yield {name: noise.draw(f"probe {name}", probe, value).to(value.dtype) for name, value in center.items()}


def axes(center: Params) -> Iterator[Params]:
    """sqrt(d) e_k for k = 1..d, with which the mean of v^T A v is the trace of A itself."""
    length = sum(value.numel() for value in center.values()) ** 0.5
    for name, value in center.items():
        for position in range(value.numel()):
            direction = {other: torch.zeros_like(zeros) for other, zeros in center.items()}
            direction[name].view(-1)[position] = length
            yield direction


def wide(values: Tensor) -> Tensor:
    """In float64 and in main memory, because not every device has one: sums, and the softmax, add no rounding."""
    return values.cpu().double()


def part(batch: Batch, start: int, stop: int) -> Batch:
    """Some of the inputs of a batch, with their labels."""
    return map_tensors(lambda tensor: tensor[start:stop], batch[0]), batch[1][start:stop]


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """No graph of our own, and attention by plain products: its fused kernels have no second derivative."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
