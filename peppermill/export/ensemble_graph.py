"""Eq. 9 as one network without randomness, and the example inputs with which it is traced."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from peppermill.engines.network_shell import shell_of
from peppermill.ensemble import PepEnsemble
from peppermill.plumbing.nested import as_arguments, map_tensors, output_tensor, tensors_of
from peppermill.plumbing.networks import device_of, dtype_of
from peppermill.types import Inputs, Likelihood
from peppermill.uncertainty import CLASS_UNCERTAINTIES, VARIANCES, Tally, named
from peppermill.views import IDENTITY


@dataclass(frozen=True)
class Example:
    """A batch of inputs as the arguments of a call; `names` are the network's names of the positional ones."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    names: tuple[str, ...]
    items: int

    @property
    def by_name(self) -> dict[str, Any]:
        """All arguments by name."""
        return {**dict(zip(self.names, self.arguments, strict=True)), **self.keywords}

    def counts_items(self, tensor: Tensor) -> bool:
        """Whether the first dimension is the batch. It is not in positions [1, tokens] beside words [B, tokens]."""
        return tensor.ndim > 0 and len(tensor) == self.items

    def doubled(self) -> Example:
        """Every item twice. This gives at least two items: torch takes a dimension of one for a constant."""

        def twice(tensor: Tensor) -> Tensor:
            return torch.cat([tensor, tensor]) if self.counts_items(tensor) else tensor

        arguments, keywords = map_tensors(twice, self.arguments), map_tensors(twice, self.keywords)
        return replace(self, arguments=arguments, keywords=keywords, items=2 * self.items)


def example_of(network: nn.Module, inputs: Inputs) -> Example:
    """A copy of the inputs on the device of the network and, if its weights have one type, in that type."""
    device, dtype = device_of(network), dtype_of(network)
    copied = map_tensors(lambda t: t.to(device, dtype if t.is_floating_point() else None, copy=True), inputs)
    lengths = [len(tensor) if tensor.ndim else 0 for tensor in tensors_of(copied)]
    if not lengths or not lengths[0]:
        given = f"tensor of shape {list(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(
            f"`example` is a {given}, in which no item was found: give a batch of inputs as the network takes them, "
            "at least one item, without labels."
        )
    arguments, keywords = as_arguments(copied)
    parameters = inspect.signature(network.forward).parameters.values()
    names = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD and p.name not in keywords]
    names = [*names[: len(arguments)], *(f"input_{k}" for k in range(len(names), len(arguments)))]
    return Example(arguments, keywords, tuple(names), lengths[0])


class EnsembleGraph(nn.Module):
    """All members at once, each with its own selected weights; all other tensors are held once and shared.

    The noise is part of the weights, because drawing it in every call would cost more than the network. A shell
    of the network supplies the code. It is not a submodule: the traced graph holds no weight that no member uses.
    """

    def __init__(self, ensemble: PepEnsemble, network: nn.Module, example: Example, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names  # of the outputs
        self.likelihood, self.calibrator = ensemble.likelihood, ensemble.calibrator
        self.code = (shell_of(network),)  # nn.Module does not look for submodules in a tuple
        self.views = ensemble.recipe.views or (IDENTITY,)
        members = list(ensemble.perturbation.members(ensemble.sigma))
        state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        shared = self._hold("shared", {name: value for name, value in state.items() if name not in members[0]})
        self.attributes = [{**shared, **self._hold(f"member{j}", params)} for j, params in enumerate(members)]
        self.attributes *= ensemble.passes // len(members)  # at sigma = 0 the same weights for each view

        def forward(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            return self.average(*args, **kwargs)

        # The names of the network's own arguments become the names of the file's inputs.
        forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in example.names]
            + [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in example.keywords]
        )
        self.forward = forward
        self.eval()

    def average(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The averaged prediction of eq. 9, by name."""
        predictions = []
        for j, attributes in enumerate(self.attributes):
            params = {name: getattr(self, attribute) for name, attribute in attributes.items()}
            call = partial(torch.func.functional_call, self.code[0], params)
            view = self.views[j % len(self.views)]
            outputs = view.outputs(lambda *seen, call=call: output_tensor(call(*seen)).unsqueeze(0), args, kwargs)
            predictions.append(self.likelihood.predict(outputs.squeeze(0)))
        tally = Tally(self.likelihood, uncertainty=bool({*self.names} & {*CLASS_UNCERTAINTIES, *VARIANCES}))
        tally.add(torch.stack(predictions))
        found = named_outputs(self.likelihood, self.likelihood.outputs(self.calibrator(tally.averaged)))
        if tally.uncertainty:
            found |= named(tally.values(self.calibrator), self.likelihood).values
        return {name: found[name] for name in self.names}

    def _hold(self, owner: str, params: Mapping[str, Tensor]) -> dict[str, str]:
        """Register the tensors as buffers, and return the name of the attribute for each name of a parameter."""
        attributes = {name: f"{owner}_{k}_{name.replace('.', '_')}" for k, name in enumerate(params)}
        for name, value in params.items():
            self.register_buffer(attributes[name], value.detach())
        return attributes


def named_outputs(likelihood: Likelihood, outputs: Tensor) -> dict[str, Tensor]:
    """The outputs of the file from those of the ensemble: probabilities, and a form that does not underflow."""
    if likelihood.name == "gaussian":
        mean, log_variance = outputs.unbind(dim=-1)
        return {"mean": mean, "log_variance": log_variance}
    if likelihood.name == "bernoulli":
        return {"probabilities": outputs.sigmoid(), "logits": outputs}
    return {"probabilities": outputs.exp(), "log_probabilities": outputs}


def dynamic_shapes(example: Example) -> dict[str, Any]:
    """Only the batch dimension varies, and is called so."""
    batch = Dim("batch")

    def shapes(value: Any) -> Any:
        if isinstance(value, Tensor):
            return {0: batch} if example.counts_items(value) else None
        if isinstance(value, Mapping):
            return {key: shapes(part) for key, part in value.items()}
        return tuple(map(shapes, value)) if isinstance(value, tuple) else None

    return {name: shapes(value) for name, value in example.by_name.items()}


def traced(graph: EnsembleGraph, example: Example) -> ExportedProgram:
    """The ensemble as a graph of operations, for any number of items."""
    dynamic, keywords = dynamic_shapes(example), dict(example.keywords)
    program = torch.export.export(graph, example.arguments, keywords, dynamic_shapes=dynamic, strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths and lines of code on this machine
    return program
