"""Modules that are torch's in form only: Keras layers on the torch backend, and graphs that `torch.export` wrote.

Keras is not imported: a Keras layer can only be here where somebody else has imported it. Its weights are parameters of
an `nn.Module`, but it computes with Variables of its own, so that `torch.func.functional_call` alone changes nothing;
and its batch-norm statistics are parameters too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from peppermill.types import Params


@dataclass(frozen=True)
class KerasWeight:
    """One Variable of a Keras model, and the layer that made it; state is what no optimizer was meant to change."""

    variable: Any
    layer: nn.Module
    is_state: bool


def functional_call(model: nn.Module, params: Params, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the network gives with these parameters in place of its own, which are back afterwards."""
    args, keywords = _arguments(model, args, kwargs)
    with _keras_scope(model, params), _shapes_explained(model):
        return torch.func.functional_call(model, params, args, keywords)


def plain_call(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the network gives as it is; a Keras model computes where its weights are."""
    args, keywords = _arguments(model, args, kwargs)
    with _keras_scope(model, {}) if isinstance(model, nn.Module) else nullcontext(), _shapes_explained(model):
        return model(*args, **keywords)


def keras_weights(model: nn.Module) -> dict[int, KerasWeight]:
    """Every weight of every Keras layer, in the order of the layers, by the `id` of its parameter.

    State is what a layer made untrainable: batch-norm statistics, the mean and variance of a Normalization layer. A
    frozen kernel is none.
    """
    layers = _keras_layers(model)
    with _keras_device(model) if layers else nullcontext():
        return _weights_of(layers)


def random_states(model: nn.Module) -> set[int]:
    """The `id` of each parameter that only holds the state of a generator: Keras seeds every dropout layer afresh."""
    layers = _keras_layers(model)
    with _keras_device(model) if layers else nullcontext():
        return {id(generator.state.value) for layer in layers for generator in layer._seed_generators}


def in_training_mode(module: Any) -> bool:
    """Whether a module, its parts apart, behaves as in training.

    Keras layers are told so by each call, and do not otherwise; of an exported graph it was settled by the export.
    """
    if _is_exported(module):
        return any(map(_trains, module.graph.nodes))
    return bool(getattr(module, "training", False)) and not _is_without_mode(module)


def out_of_training_mode(module: Any) -> str:
    """What its user has to do about it."""
    return "call `model.eval()` before `torch.export.export`" if _is_exported(module) else "call `model.eval()` first"


def _keras_layers(model: nn.Module) -> list[Any]:
    """Parents before children; Keras keeps most layers in lists of its own, out of torch's sight."""
    kind = _keras_layer_type()
    tops = [module for module in model.modules() if isinstance(module, kind)] if kind else []
    return list({id(layer): layer for top in tops for layer in _descend(top)}.values())


def _weights_of(layers: list[Any]) -> dict[int, KerasWeight]:
    return {
        id(variable.value): KerasWeight(variable, layer, is_state)
        for layer in layers
        for is_state, variables in ((False, layer._trainable_variables), (True, layer._non_trainable_variables))
        for variable in variables
    }


def _descend(layer: Any) -> Iterator[Any]:
    yield layer
    for part in layer._layers:
        yield from _descend(part)


def _keras_layer_type() -> Any:
    return getattr(sys.modules.get("keras"), "Layer", ())


@contextmanager
def _keras_scope(model: nn.Module, params: Params) -> Iterator[None]:
    """Within it, Keras layers compute with `params`, and where their weights are."""
    layers = _keras_layers(model)
    if not layers:
        yield
        return
    with _keras_device(model):
        weights, own = _weights_of(layers), dict(model.named_parameters(remove_duplicate=False))
        found = ((weights.get(id(own.get(name))), value) for name, value in params.items())
        mapping = [(weight.variable, value) for weight, value in found if weight]
        with sys.modules["keras"].StatelessScope(state_mapping=mapping) if mapping else nullcontext():
            yield


def _keras_device(model: nn.Module) -> Any:
    """Keras moves whatever it computes with to one device, by default the first GPU."""
    device = next((str(value.device) for value in model.parameters()), "cpu")
    return sys.modules["keras"].device(device)


def _arguments(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A Keras model takes several inputs as one argument, a list, or a dict by name.

    And a torch module inside it is in training mode unless the call says otherwise.
    """
    if not isinstance(model, _keras_layer_type()):
        return args, dict(kwargs)
    if getattr(model, "inputs", None) and len(args) != 1:
        args, kwargs = ((list(args),), kwargs) if args else ((kwargs,), {})
    return args, {**({"training": False} if model._call_has_training_arg else {}), **kwargs}


@contextmanager
def _shapes_explained(model: Any) -> Iterator[None]:
    """What an exported graph says of inputs of another shape than its own, with the cure."""
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        if not _is_exported(model) or not said.startswith(("Guard failed", "Expected input at")):
            raise
        raise ValueError(
            f"the exported network does not take these inputs ({said}): its shapes were settled by the export. Give it "
            "inputs and batches (`batch_size`) of that size, or export it for every batch with "
            "`dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)`."
        ) from error


def _is_exported(module: Any) -> bool:
    """`torch.export` gives its graph a `train` of its own, which refuses."""
    return isinstance(module, GraphModule) and "train" in vars(module)


def _is_without_mode(module: Any) -> bool:
    """Keras layers, what only holds parameters, and the parts of an exported graph."""
    if isinstance(module, _keras_layer_type()) or type(module) in (nn.Module, nn.ParameterDict):
        return True
    return type(module).__module__.startswith("torch.export.")


def _trains(node: Any) -> bool:
    """Whether a node of an exported graph is a dropout or batch norm that was exported in training mode."""
    operator = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    place = {"dropout": 2, "batch_norm": 5}.get(operator)
    return place is not None and node.args[place] is True
