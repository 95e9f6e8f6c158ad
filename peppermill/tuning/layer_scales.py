"""A sigma for every perturbed array, or for every filter: gradient ascent on the ensemble's log-likelihood.

theta_j = theta* + sigma * exp(s) * epsilon_j, with one s for each array or filter. Every step draws new items and a new
antithetic pair, and Adam follows the gradient with respect to s and ln T. With the same noise in every step, the scales
overfit to it: a sigma for each filter then reached an NLL of .138 on validation and .212 on test data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from peppermill.data import MEMORY_BYTES
from peppermill.distributed.group import grouped
from peppermill.engines import autocast
from peppermill.engines.network_shell import Shells
from peppermill.likelihood import ensemble_log_likelihoods, example_rows
from peppermill.noise import Noise
from peppermill.passes import Request, run_members
from peppermill.plumbing.nested import as_arguments, bytes_of, output_tensor
from peppermill.tuning import SigmaTuner
from peppermill.tuning.result import SigmaSearch
from peppermill.tuning.subsample import cut, cut_subsample
from peppermill.types import Inputs, Params
from peppermill.views import IDENTITY

STEPS = 100
LEARNING_RATE = 0.1  # of s and ln T; it falls to 0, so no sigma changes by more than a factor of exp(5)
PAIRS = 2  # of antithetic members in each step
MINIBATCH_EXAMPLES = 125
POOL_FRACTION = 0.5  # of the examples, from which the minibatches are drawn: those that surprise the network first
FIRST_DRAW = 2**33  # beyond the draws of any ensemble, so that the scales are not fitted to its members
MEANS_KEPT, SQUARES_KEPT = 0.9, 0.99  # of Adam's averages, from step to step
STEP_PASSES = 8 * PAIRS  # that a step costs for each item: two members, forward perhaps twice, and backward as two

#: What `Noise.scales` holds: factors of sigma by the name of the array.
Scales: TypeAlias = tuple[tuple[str, tuple[float, ...]], ...]

#: Inputs, labels, and the weight of each example.
WeightedBatch: TypeAlias = tuple[Inputs, Tensor, Tensor]


class NoGradientError(ValueError):
    """The network's outputs cannot be differentiated with respect to its weights."""


def tune_scales(tuner: SigmaTuner, request: Request, joint: bool, per: str) -> tuple[Request, SigmaSearch]:
    """Find one sigma, then the scales, then a common factor; return the request with the scales, and the search.

    If the scales do not help on the validation data, one sigma for all arrays remains.
    """
    shared = tuner.tune(request, joint)
    start = starting_sigma(shared)
    if start == 0:
        return request, shared
    scales, cost = fit_scales(request, start, shared.best.temperature if joint else None, per)
    noise = replace(request.perturbation.noise, scales=scales)
    scaled = replace(request, perturbation=replace(request.perturbation, noise=noise))
    found = tuner.tune(scaled, joint)
    passes = (shared.passes or 0.0) + cost + (found.passes or 0.0)
    if found.gain > shared.gain:
        return scaled, replace(found, passes=passes)
    return request, replace(shared, passes=passes)


def starting_sigma(shared: SigmaSearch) -> float:
    """Where to start from after a search for one sigma; 0 if it tried none.

    With T the best single sigma is small, or 0, because the most sensitive array limits it: start above it.
    """
    alone = replace(shared, joint=False).best.sigma
    tried = (evaluation.sigma for evaluation in shared.evaluations if evaluation.sigma)
    return max(shared.best.sigma, alone / 2) or min(tried, default=0.0)


def fit_scales(
    request: Request, sigma: float, temperature: float | None = None, per: str = "layer", steps: int = STEPS
) -> tuple[Scales, float]:
    """Factors of sigma for every array or filter, and the forward passes over all data that finding them cost.

    `temperature` is the T to start from; None if no T is fitted. In a process group every process takes the same steps.
    """
    center, device = request.perturbation.center, request.data.device
    sizes = [len(value) if per == "filter" and value.ndim else 1 for value in center.values()]
    fitted = torch.tensor([0.0] * sum(sizes) + [math.log(temperature or 1.0)], device=device, requires_grad=True)
    mean, square, average = (torch.zeros_like(fitted) for _ in range(3))
    shells, spent = Shells(request.model), max(1.0, len(request.views))
    taken = 1  # steps, this one included
    recurrent = any(isinstance(module, nn.RNNBase) for module in request.model.modules())
    low = request.engine.precision and "bfloat16"  # in which gradients do not underflow
    for step, (minibatch, share) in enumerate(_minibatches(request, steps)):
        # cuDNN differentiates recurrent layers in training mode only.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=not recurrent), autocast(device, low):
            logs = dict(zip(center, torch.split(fitted[:-1], sizes), strict=True))
            log_temperature = fitted[-1] if temperature else None
            if step == 0:
                args, kwargs = as_arguments(minibatch[0][0])
                kept = activation_bytes(partial(shells, args=args, kwargs=kwargs), center, shells.own.values())
                hold = 2 * PAIRS * len(minibatch) * kept <= MEMORY_BYTES
            value = minibatch_log_likelihood(request, shells, sigma, logs, log_temperature, step, minibatch, hold)
            (gradient,) = torch.autograd.grad(-value, fitted)
        if bool(gradient.isfinite().all()):  # too much noise may overflow
            # Adam, in place of torch.optim's, which imports a compiler.
            rate = LEARNING_RATE * (1 - step / steps) * math.sqrt(1 - SQUARES_KEPT**taken) / (1 - MEANS_KEPT**taken)
            mean.lerp_(gradient, 1 - MEANS_KEPT)
            square.lerp_(gradient.square(), 1 - SQUARES_KEPT)
            fitted.data.addcdiv_(mean, square.sqrt() + 1e-8, value=-rate)
            taken += 1
        if step >= steps // 2:
            average += fitted.detach() / (steps - steps // 2)
        spent += STEP_PASSES * share
        request.tick(STEP_PASSES * sum(len(labels) for _, labels, _ in minibatch))
    if grouped():  # GPUs differ in the last bits: all processes take what the first one found
        from peppermill.distributed.gather import gather_rows

        average = gather_rows([average[None]], [1], {"`scale`": per}, device)[0][0]
    factors = torch.split(average[:-1].exp().half(), sizes)  # three digits, which make a short file
    return tuple((name, tuple(part.tolist())) for name, part in zip(center, factors, strict=True)), spent


def minibatch_log_likelihood(
    request: Request,
    shells: Shells,
    sigma: float,
    logs: Params,
    log_temperature: Tensor | None,
    step: int,
    minibatch: list[WeightedBatch],
    hold: bool = False,
) -> Tensor:
    """L of eq. 6 on some items with the noise of one step, as a differentiable function of s and ln T."""
    center, likelihood, views = request.perturbation.center, request.likelihood, request.views or (IDENTITY,)
    noise = Noise(request.perturbation.noise.law, True, request.perturbation.noise.seed)
    fixed = {name: value.detach() for name, value in request.model.named_parameters()}
    members: list[Params] = []
    for pair in range(step * PAIRS, (step + 1) * PAIRS):
        members += [dict(fixed), dict(fixed)]
        for name, direction in noise.direction(FIRST_DRAW + 2 * pair, center):
            value = center[name]
            change = (sigma * logs[name].exp()).view(-1, *(1,) * (value.ndim - 1)) * direction
            for params, signed in zip(members[-2:], (change, -change), strict=True):
                params[name] = (value + signed).view(value.shape).to(value.dtype)
    # A checkpoint holds the activations of one member at a time; to hold those of all members is faster.
    call = shells if hold else partial(checkpoint, shells, use_reentrant=False)
    total = torch.zeros((), device=request.data.device)
    for inputs, labels, weights in minibatch:
        outputs = []
        for j, params in enumerate(members):

            def run(args: Any, kwargs: Any, params: Params = params) -> Tensor:
                return output_tensor(call(params, args, kwargs)).unsqueeze(0)

            outputs.append(views[j % len(views)].outputs(run, *as_arguments(inputs))[0])
        if not outputs[0].requires_grad:
            raise NoGradientError(
                f"the outputs of this {type(request.model).__name__} cannot be differentiated with respect to its "
                "weights, which `scale` needs: leave `scale` out."
            )
        items = [likelihood.items(likelihood.predict(one), labels) for one in outputs]
        predictions, counted = torch.stack([prediction for prediction, _ in items]), items[0][1]
        if log_temperature is not None:
            averaged = (ensemble_log_likelihoods(predictions) / log_temperature.exp()).log_softmax(dim=-1)
            rows = likelihood.log_likelihoods(averaged, counted)
        else:
            rows = ensemble_log_likelihoods(torch.stack([likelihood.log_likelihoods(p, counted) for p in predictions]))
        total = total + (weights[example_rows(likelihood, labels)] * rows).sum()
    return total


def activation_bytes(call: Callable[[Params], Any], weights: Params, others: Iterable[Tensor]) -> int:
    """What a call keeps for its gradient by these weights, without the weights themselves and the other tensors."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = call(leaves)
    del outputs  # keeps the saved tensors alive, so that no two of them share an address
    known = {value.untyped_storage().data_ptr() for value in (*weights.values(), *others)}
    return sum(size for place, size in saved.items() if place not in known)


def _minibatches(request: Request, steps: int) -> Iterator[tuple[list[WeightedBatch], float]]:
    """For each step some random examples, and their share of all examples.

    Whole batches replace examples if the rows of a batch are not examples, or if there are few data.
    """
    pool = cut_subsample(request, run_members(request, 0.0).member_log_likelihoods[0], POOL_FRACTION)
    generator = torch.Generator().manual_seed(request.perturbation.noise.seed % 2**63)
    held, count, size = list[Any](), 0, 0
    for inputs, labels in pool.data if pool else request.data:
        if size < MEMORY_BYTES:
            weights = pool.example_weights[count : count + len(labels)] if pool else torch.ones(len(labels))
            held.append((inputs, labels, weights.to(labels.device, torch.float32)))
        count, size = count + len(labels), size + bytes_of(inputs)
    for _ in range(steps):
        chosen = torch.zeros(count, dtype=torch.bool)
        minibatch: list[WeightedBatch] = []
        if pool:
            chosen[torch.randperm(count, generator=generator)[:MINIBATCH_EXAMPLES]] = True
            minibatch = list(cut(held, chosen, MINIBATCH_EXAMPLES))
        for k in torch.randperm(len(held), generator=generator).tolist():
            if sum(len(labels) for _, labels, _ in minibatch) < min(MINIBATCH_EXAMPLES, count):
                minibatch.append(held[k])
        yield minibatch, sum(len(labels) for _, labels, _ in minibatch) * (pool.share if pool else 1.0) / count
