"""ln L_i near theta* and its derivatives, eq. 15 to 20: gradients of every item, Hessian products, small steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from peppermill.data import Batches
from peppermill.engines.network_shell import Shells
from peppermill.likelihood import example_rows
from peppermill.noise import Noise
from peppermill.parameters import Selection, select
from peppermill.plumbing.nested import as_arguments, map_tensors, output_tensor, tensors_of
from peppermill.plumbing.networks import as_network, explain_shapes, refuse_training_mode
from peppermill.plumbing.warnings import warn_user
from peppermill.tuning.layer_scales import activation_bytes
from peppermill.types import Batch, Data, Inputs, Likelihood, Params, Tick

MEMORY_BYTES = 2**29  # for activations and gradients: leaves room for torch and the data within 2 GB
GPU_MEMORY_SHARE = 1 / 4  # of the free memory of a GPU, if that is more: a GPU is fast only on large batches
GRADIENT_ACTIVATIONS = 3  # copies of the activations: values, their gradients, and the unrolled patches of convolutions
GRADIENT_COPIES = 2  # an item's gradient and its square
HESSIAN_ACTIVATIONS = 5  # values, their gradients, and the gradients of both
LOG_ODDS_CHANGE = 1 / 4  # by a step of h
WEIGHT_CHANGE = 1 / 20  # at most, by a step of h, in units of the root mean square of the weights
LONG_STEP = 2  # in units of h
PASSES_PER_PROBE = 4  # of the network: both steps, in both directions


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

    def parts(self, batch: tuple[Any, ...], activations: int, gradients: int = 0) -> Iterator[Any]:
        """The batch, and what belongs to its inputs, in parts small enough for memory, with at least one input each.

        Every input needs memory for `activations` copies of its activations and for `gradients` gradients.
        """
        device, budget = batch[1].device, MEMORY_BYTES
        if device.type == "cuda":
            budget = max(budget, int(GPU_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]))
        gradient_bytes = sum(value.nbytes for value in self.center.values())
        inputs = map_tensors(lambda tensor: tensor[:1], batch[0])
        kept = activation_bytes(lambda params: self.outputs(params, inputs), self.center, self.rest.values())
        one_input = activations * kept + gradients * gradient_bytes
        size = max(1, budget // max(1, one_input))
        for start in range(0, len(batch[1]), size):
            yield map_tensors(lambda tensor, rows=slice(start, start + size): tensor[rows], batch)


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


def item_gradients(landscape: Landscape, tick: Tick) -> tuple[Tensor, Tensor]:
    """|grad ln L_i|^2 and ln L_i of every item at theta*, [N]; the sum of the squares is the trace of eq. 20.

    Raises if outputs or labels are not what the likelihood expects.
    """
    squares, log_likelihoods = [], []
    obstacles: list[str] = []  # why the network does not run under `vmap`, if it does not
    with twice_differentiable() as run:
        for batch in landscape.data:
            outputs = landscape.outputs(landscape.center, batch[0])
            if not bool(outputs.isfinite().all()):
                raise ValueError(
                    "the outputs of the network are NaN or infinite on these data: check its weights and the inputs."
                )
            landscape.likelihood.check(outputs, batch[1])
            log_likelihoods.append(landscape.of_items(in_float64(outputs), batch[1].cpu()))
            known, parts = len(obstacles), landscape.parts((*batch, outputs), GRADIENT_ACTIVATIONS, GRADIENT_COPIES)
            for inputs, labels, of_part in run(list, parts):
                squares.append(run(_item_squares, landscape, inputs, of_part, labels, obstacles))
                tick(len(labels))
            if len(obstacles) > known:
                warn_user(
                    f"this {type(landscape.network.model).__name__} cannot run under vmap ({obstacles[0]}...), so "
                    "gradients are computed one item after another: the same answer, but slower."
                )
    return torch.cat(squares), torch.cat(log_likelihoods)


def _item_squares(
    landscape: Landscape, inputs: Inputs, outputs: Tensor, labels: Tensor, obstacles: list[str]
) -> Tensor:
    """The squared gradients of the items, [n].

    The likelihood stays outside of `vmap` and supplies d ln L_i / d outputs, the cotangents c of J^T c. An input with k
    items, such as the pixels of an image, is differentiated k times. Networks that cannot run under `vmap` are
    differentiated one input after another, with the same result.
    """

    def square(given: list[Tensor], cotangent: Tensor) -> Tensor:
        alone = iter(tensor.unsqueeze(0) for tensor in given)
        single = map_tensors(lambda _: next(alone), inputs)
        outputs, back = vjp(lambda params: landscape.outputs(params, single), landscape.center)[:2]
        (gradient,) = back(cotangent.reshape(outputs.shape))
        return torch.stack([value.square().sum() for value in gradient.values()]).sum()

    log_likelihoods, back = vjp(lambda given: landscape.of_items(given, labels), outputs)[:2]
    counts = example_rows(landscape.likelihood, labels).bincount(minlength=len(labels))
    starts, tensors = counts.cumsum(0) - counts, tensors_of(inputs)
    squares = torch.zeros_like(log_likelihoods)
    for turn in range(int(counts.max())):
        items = starts[counts > turn] + turn
        (cotangents,) = back(torch.zeros_like(log_likelihoods).index_fill(0, items, 1.0))
        if not obstacles:
            try:
                found = vmap(square)(tensors, cotangents)
            except Exception as error:  # anything can go wrong inside vmap; an error of the network itself recurs below
                obstacles.append(" ".join(str(error).split())[:120] or type(error).__name__)
        if obstacles:
            found = torch.stack([square([t[k] for t in tensors], c) for k, c in enumerate(cotangents)])
        squares[items] = found[counts > turn]
    return in_float64(squares)


def hessian_products(
    landscape: Landscape, directions: Callable[[], Iterable[Params]], tick: Tick
) -> tuple[Tensor, Tensor]:
    """For every direction v: v^T H v of the log-likelihood, [n], and the slope of every ln L_i along v, [n, N].

    The mean of v^T H v over directions is the trace of H, the Laplacian (Hutchinson, 1990). The mean of the squared
    slopes is the trace of the Fisher information, which is known exactly, so a probe's error in the one predicts its
    error in the other.
    """
    forms, slopes = [], []
    with twice_differentiable() as run:
        for batch in landscape.data:
            for part in run(list, landscape.parts(batch, HESSIAN_ACTIVATIONS)):
                of_part = run(_along_directions, landscape, part, directions(), tick)
                forms.append(of_part[0])
                slopes.append(of_part[1])
    return torch.stack(forms).sum(dim=0), torch.cat(slopes, dim=1)


def _along_directions(
    landscape: Landscape, part: Batch, directions: Iterable[Params], tick: Tick
) -> tuple[Tensor, Tensor]:
    """v^T H v, [n], and the slopes J v of the items on one part of a batch.

    H v and J v are derivatives of the weighted gradient J^T c at c = 1: along v with respect to theta, and to c. All
    directions share one graph of it. If an operation of the network has no second derivative in reverse mode, each
    direction is computed forward over reverse.
    """
    inputs, labels = part

    def values(params: Params) -> Tensor:
        return landscape.of_items(landscape.outputs(params, inputs), labels)

    def weighted(params: Params, weights: Tensor) -> Params:
        gradient: Params = vjp(values, params)[1](weights)[0]
        return gradient

    def summed(params: Params) -> tuple[Tensor, Tensor]:
        found = values(params)
        return found.sum(), found

    in_reverse = vjp(weighted, landscape.center, torch.ones_like(values(landscape.center)))[1]
    forms, slopes = [], []
    for direction in directions:
        try:
            product, slope = in_reverse(direction)
        except RuntimeError:  # "not implemented"; an error of the network itself is raised again below
            product, slope = jvp(grad(summed, has_aux=True), (landscape.center,), (direction,))[1]
        forms.append(torch.stack([(in_float64(product[name]) * in_float64(v)).sum() for name, v in direction.items()]))
        slopes.append(in_float64(slope))
        tick(len(labels))
    return torch.stack(forms).sum(dim=1), torch.stack(slopes)


def step_size(landscape: Landscape, squares: Tensor, log_likelihoods: Tensor, laplacian: float) -> float:
    """The h at which h v changes the log-odds of the labels by a quarter, for the items that dominate the sum.

    Truncation needs a short step: after the extrapolation below, a change x has an error of x^4 / 90, here 4e-5.
    Rounding needs a long step: its error is u / x^2, 2e-6 in float32. Kinks do too: their noise falls as 1 / h.
    Log-odds instead of ln L_i, because a certain item hides large changes behind a small gradient. A density has no
    odds, so the step follows its curvature as well. And a step is at most a twentieth of the root mean square of the
    weights, because moving all layers together bends the network itself.
    """
    if landscape.likelihood.name == "gaussian":
        steepness = max(_weighted_mean(squares, squares), abs(laplacian) / len(squares))
    else:
        doubt = -log_likelihoods.expm1()
        of_odds = torch.where(doubt > 0, squares / doubt.square(), 0.0)
        steepness = _weighted_mean(of_odds, doubt * of_odds)
    squared_weights = sum(float(value.double().square().sum()) for value in landscape.center.values())
    largest = WEIGHT_CHANGE * math.sqrt(squared_weights / landscape.dimensions) or math.inf
    return min(LOG_ODDS_CHANGE * steepness**-0.5 if steepness else math.inf, largest, 1.0)


def _weighted_mean(values: Tensor, weights: Tensor) -> float:
    total = float(weights.sum())
    return float((values * weights).sum()) / total if total else 0.0


@torch.no_grad()
def directional_derivatives(
    landscape: Landscape, directions: Callable[[], Iterable[Params]], step: float, tick: Tick
) -> tuple[Tensor, Tensor]:
    """Second and fourth derivatives of every L_i along every probe v, divided by L_i, [n, N].

    Central differences at h and 2h, combined so that the error is of order h^4 (Richardson's extrapolation). The mean
    of the second is Laplacian(L_i) / L_i of eq. 15. Near the optimum the two traces of eq. 20 almost cancel, and the
    noise of their sum hides it; here both share the probe v, and cancel before they are averaged. Small steps also
    cross the kinks of a ReLU, which derivatives do not see, and count them.
    """
    found = [_differences(landscape, batch, directions(), step, tick) for batch in landscape.data]
    seconds, fourths = zip(*found, strict=True)
    return torch.cat(seconds, dim=1), torch.cat(fourths, dim=1)


def _differences(
    landscape: Landscape, batch: Batch, directions: Iterable[Params], step: float, tick: Tick
) -> tuple[Tensor, Tensor]:
    """Both derivatives on one batch."""
    inputs, labels = batch
    center = landscape.center

    def log_likelihoods(params: Params) -> Tensor:
        tick(len(labels))
        return landscape.of_items(in_float64(landscape.outputs(params, inputs)), labels.cpu())

    base = log_likelihoods(center)

    def change(direction: Params, steps: int) -> Tensor:
        """L_i(theta* + steps h v) / L_i(theta*) - 1."""
        moved = {name: value + steps * step * direction[name] for name, value in center.items()}
        return (log_likelihoods(moved) - base).expm1()

    seconds, fourths = [], []
    for direction in directions:
        near = (change(direction, 1) + change(direction, -1)) / step**2
        far = (change(direction, LONG_STEP) + change(direction, -LONG_STEP)) / (LONG_STEP * step) ** 2
        seconds.append((LONG_STEP**2 * near - far) / (LONG_STEP**2 - 1))
        fourths.append(12 * (far - near) / ((LONG_STEP**2 - 1) * step**2))
    return torch.stack(seconds), torch.stack(fourths)
