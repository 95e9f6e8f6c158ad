"""A network before it is used: it is a torch module, in evaluation mode, on one device, and takes these shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.parameter import is_lazy


def as_network(model: Any) -> Any:
    """The network as an nn.Module: a Keras model, or a module that contains one, gets an adapter.

    Keras is recognised by the names of the classes, so that only those who use it import it.
    """
    parts = model.modules() if isinstance(model, nn.Module) else (model,)
    if any(kind.__module__.startswith("keras.") for part in parts for kind in type(part).__mro__):
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"`model` is a {type(model).__name__}, which is not a torch.nn.Module: set KERAS_BACKEND=torch before "
                "Keras is imported."
            )
        from peppermill.sources.keras import adapt

        return adapt(model)
    if type(model).__name__ == "DistributedDataParallel":
        raise ValueError(
            "the network is wrapped in DistributedDataParallel, which talks to the other processes in every call: "
            "pass the network inside it, `model.module`."
        )
    return model


def device_of(model: Any) -> torch.device:
    """The device of the network's first parameter or buffer."""
    return next((t.device for t in state_of(model)), torch.device("cpu"))


def dtype_of(model: Any) -> torch.dtype | None:
    """The one floating-point type of the network's parameters; None if they have several."""
    types = {t.dtype for t in state_of(model) if t.is_floating_point() and isinstance(t, nn.Parameter)}
    return types.pop() if len(types) == 1 else None


def state_of(model: Any) -> Iterator[Tensor]:
    """Parameters and buffers; empty for anything but a module."""
    if isinstance(model, nn.Module):
        yield from model.parameters()
        yield from model.buffers()


def in_training_mode(module: Any) -> bool:
    """Whether a module, its parts aside, behaves as in training."""
    if _is_exported(module):
        return any(map(_trains, module.graph.nodes))
    has_no_mode = type(module) in (nn.Module, nn.ParameterDict) or type(module).__module__.startswith("torch.export.")
    return bool(getattr(module, "training", False)) and not has_no_mode


def refuse_training_mode(model: Any) -> None:
    """Dropout and batch statistics would add noise of their own, and batch norm would change the network."""
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if in_training_mode(module):
            where = f"its part `{name}` ({type(module).__name__}) is" if name else "it is"
            when = "before `torch.export.export`" if _is_exported(module) else "first"
            raise ValueError(f"the network cannot be used while {where} in training mode: call `model.eval()` {when}.")


def refuse_unperturbable(model: Any) -> None:
    """Raise if this is not a module of torch, or has weights to which no noise can be added."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` is a {type(model).__name__}, which is not a torch.nn.Module: pass the network.")
    if hasattr(model, "with_calibrator"):
        raise TypeError("`model` is an ensemble, which is perturbed already: pass its network, `pep.model`.")
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise TypeError(
            "`model` is a program of TorchScript, which cannot be perturbed: pass the network it was made of."
        )
    for name, value in model.named_parameters():
        if is_lazy(value) or value.is_meta or value.layout != torch.strided:
            raise ValueError(f"`{name}` is sparse, or has no values yet: call the network once, or load its weights.")


@contextmanager
def explain_shapes(model: Any) -> Iterator[None]:
    """Inside this context, an exported graph's error about the shape of its inputs says what to do."""
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        words = str(error).partition("\n")[0]
        if not _is_exported(model) or not words.startswith(("Guard failed", "Expected input at")):
            raise
        raise ValueError(
            f"the exported network does not take these inputs ({words}): the export fixed its shapes. Give it inputs "
            "and batches (`batch_size`) of that size, or export it for every batch with "
            "`dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)`."
        ) from error


def _is_exported(module: Any) -> bool:
    """`torch.export` gives its graph a `train` of its own, which refuses."""
    return isinstance(module, GraphModule) and "train" in vars(module)


def _trains(node: Any) -> bool:
    """Whether a node of an exported graph is a dropout or batch norm that was exported in training mode."""
    operator = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    place = {"dropout": 2, "batch_norm": 5}.get(operator)  # of the argument that says so
    return place is not None and node.args[place] is True
