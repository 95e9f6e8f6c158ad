"""What a network must be before it is used: a torch module, and not in training mode."""

from __future__ import annotations

from typing import Any

from torch import nn


def as_network(model: Any) -> Any:
    """The network as the core sees it: a Keras model becomes its adapter module, anything else is itself."""
    if isinstance(model, nn.Module) and any(kind.__module__.startswith("keras.") for kind in type(model).__mro__):
        from peppermill.sources.keras import KerasModule

        return KerasModule.around(model)
    if type(model).__name__ == "DistributedDataParallel":
        raise ValueError(
            "the network is wrapped in DistributedDataParallel, which talks to the other processes in every call: "
            "pass the network inside it, `model.module`."
        )
    return model


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
            cure = "call `model.eval()` before `torch.export.export`" if _is_exported(module) else "call `model.eval()`"
            raise ValueError(f"the network cannot be used while {where} in training mode: {cure} first.")


def _is_exported(module: Any) -> bool:
    """`torch.export` gives its graph a `train` of its own, which refuses."""
    return hasattr(module, "graph") and "train" in vars(module)


def _trains(node: Any) -> bool:
    """Whether a node of an exported graph is a dropout or batch norm that was exported in training mode."""
    operator = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    place = {"dropout": 2, "batch_norm": 5}.get(operator)
    return place is not None and node.args[place] is True
