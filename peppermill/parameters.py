"""Which theta is perturbed: rules that select parameters of a network by name, expression or function.

Biases, norm layers and embeddings are perturbed only if they are asked for by name, buffers (batch-norm statistics)
never. Tied parameters are one parameter, under the first of their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from peppermill.plumbing.networks import refuse_unperturbable
from peppermill.types import Params


@dataclass(frozen=True)
class NamedArray:
    """One parameter that might be perturbed, with all its names, and the type of the owning module under each."""

    name: str
    aliases: tuple[str, ...]
    kinds: tuple[type, ...]
    value: Tensor


#: A rule sees all arrays, because "the last layer" has no meaning for one alone.
Rule: TypeAlias = Callable[[list[NamedArray]], list[NamedArray]]

#: What `parameters=` takes: the name of a rule, a regular expression, or a function of a parameter's name and value.
Selection: TypeAlias = str | Callable[[str, Tensor], bool]

_ADDED = re.compile(r"bias|token|embed|position|pos_", re.IGNORECASE)


def conv_kernels(arrays: list[NamedArray]) -> list[NamedArray]:
    """Convolution kernels, the paper's choice on ImageNet."""
    return [
        array
        for array in kernels(arrays)
        if array.value.ndim >= 4 or any("conv" in kind.__name__.lower() for kind in array.kinds)
    ]


def kernels(arrays: list[NamedArray]) -> list[NamedArray]:
    """Every array of two or more dimensions that multiplies activations: in convolutions, dense layers, attention."""
    return [array for array in arrays if array.value.ndim >= 2 and any(map(_multiplies, array.aliases, array.kinds))]


def last_layer(arrays: list[NamedArray]) -> list[NamedArray]:
    """The last kernel, in the order in which the network registers its parameters."""
    return kernels(arrays)[-1:]


def all_parameters(arrays: list[NamedArray]) -> list[NamedArray]:
    """Everything, biases and norm layers included."""
    return arrays


def lora(arrays: list[NamedArray]) -> list[NamedArray]:
    """The adapter matrices A and B of a PEFT model, its base untouched."""
    return matching(r"\.lora_(embedding_)?[AB]\.")(arrays)


def matching(expression: str) -> Rule:
    """Every parameter with a name that the regular expression finds."""
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise ValueError(
            f"`parameters={expression!r}` is neither one of {', '.join(RULES)} nor a regular expression ({error})."
        ) from error
    return lambda arrays: [array for array in arrays if any(map(pattern.search, array.aliases))]


#: The rules that have a name. A new rule is one function and one row here.
RULES: dict[str, Rule] = {
    "conv": conv_kernels,
    "kernels": kernels,
    "last_layer": last_layer,
    "lora": lora,
    "all": all_parameters,
}


def select(model: nn.Module, parameters: Selection) -> Params:
    """The selected parameters theta* by name, in the network's order, as views that carry no gradient."""
    refuse_unperturbable(model)
    arrays = _arrays(model)
    if callable(parameters):
        chosen = [array for array in arrays if parameters(array.name, array.value.detach())]
    elif isinstance(parameters, str):
        chosen = (RULES.get(parameters) or matching(parameters))(arrays)
    else:
        raise TypeError(
            f"`parameters` must be a string or a function, not {type(parameters).__name__}. "
            'Try `parameters="kernels"` or `parameters=lambda name, value: ...`.'
        )
    if not sum(array.value.numel() for array in chosen):
        raise ValueError(_nothing_selected(model, parameters, arrays))
    return {array.name: array.value.detach() for array in chosen}


def rule_name(parameters: Selection) -> str:
    """How a selection is written down in a saved ensemble."""
    return parameters if isinstance(parameters, str) else f"function {getattr(parameters, '__qualname__', parameters)}"


def names(model: nn.Module) -> list[str]:
    """Every name that a selection may contain, in the network's order."""
    return [array.name for array in _arrays(model)]


def _arrays(model: nn.Module) -> list[NamedArray]:
    aliases: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(value), []).append(name)
    found = []
    for name, value in model.named_parameters():
        kinds = []
        for alias in aliases[id(value)]:
            path, _, own = alias.rpartition(".")
            module: Any = model.get_submodule(path)
            # An adapter, which holds parameters for others, names their types; None is state, which is never perturbed.
            kinds.append(module.parameter_kind(own) if hasattr(module, "parameter_kind") else type(module))
        if value.is_floating_point() and None not in kinds:
            found.append(NamedArray(name, tuple(aliases[id(value)]), tuple(kinds), value))
    return found


def _multiplies(alias: str, kind: type) -> bool:
    # In an exported graph a module has lost its type, so the part before the last one counts too.
    name = " ".join(re.split(r"[./]", alias)[-2 if kind is nn.Module else -1 :])
    multiplies = not _ADDED.search(name) and "norm" not in kind.__name__.lower()
    return multiplies and not issubclass(kind, (nn.Embedding, nn.EmbeddingBag))


def _nothing_selected(model: nn.Module, parameters: Selection, arrays: list[NamedArray]) -> str:
    opening = f"`parameters={rule_name(parameters)!r}` selects nothing in this {type(model).__name__}"
    if not arrays:
        return f"{opening}: it has no floating-point parameter at all, so there is nothing to perturb."
    working = [f'"{name}" ({len(rule(arrays))} arrays)' for name, rule in RULES.items() if rule(arrays)]
    examples = ", ".join(array.name for array in arrays[:3])
    return (
        f"{opening}, so there is nothing to perturb. These would select something: {', '.join(working)}; or a regular "
        f"expression that finds names such as {examples}."
    )
