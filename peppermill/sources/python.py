"""`python:package.module:factory`: a function, or a class without arguments, that makes the model or the data."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from typing import Any

from torch import nn

from peppermill.sources.source import Source


def source(text: str, pretrained: bool = True) -> Source:
    """What the factory returns, in evaluation mode: a network, or a Source that also says how its inputs are made.

    The factory alone knows about weights.
    """
    made = _call(text)
    made = made if isinstance(made, Source) else Source(made)
    if not isinstance(made.model, nn.Module):
        raise ValueError(
            f"python:{text} returned {type(made.model).__name__}, which is not a torch.nn.Module: let the function "
            "return the network."
        )
    made.model.eval()
    return made


def data(text: str, *_: object) -> Any:
    """What the factory returns: anything that `fit` takes."""
    return _call(text)


def _call(text: str) -> Any:
    module_name, _, name = text.partition(":")
    module_name = module_name.removesuffix(".py")  # which shells complete
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise ValueError(
            f"python:{text} must name a module and a function in it, as in `python:package.module:factory`: run the "
            "command in the folder that holds the module."
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
        factory = getattr(module, name, None)
        if not callable(factory):
            offered = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
            near = difflib.get_close_matches(name, offered)
            advice = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(offered[:8]) or 'none'}."
            raise ValueError(f"python:{text}: {module_name} has no function {name!r}; {advice}")
        try:
            inspect.signature(factory).bind()
        except TypeError as error:
            raise ValueError(f"python:{text} is called without arguments, and cannot be ({error}).") from error
        return factory()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"python:{text}: there is no module {error.name!r}. Run the command in the folder that holds it, or "
            "install its package."
        ) from error
    except SystemExit as error:
        raise ValueError(
            f"python:{text} ended Python with exit code {error.code}: let it return what it makes."
        ) from error
