"""Honest probabilities from any trained network, without training it again: Parameter Ensembling by Perturbation.

Each public name is imported when it is first used: `import peppermill` alone imports neither torch nor anything else.
The names stand in `__init__.pyi`, once for type checkers and for this file.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

#: Names that need an extra. Not in `__all__`: `from peppermill import *` works without any extra.
_WITH_EXTRAS = ("PepCallback", "PepClassifier")

#: Public names that are modules.
_MODULES = ("demo", "metrics", "plots")

#: The module of each public name, and its name there, from lines like `from module import name as public_name`.
_LINES = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8").splitlines()
_PLACES = {words[5]: (words[1], words[3]) for words in map(str.split, _LINES) if words[:1] == ["from"]}

__all__ = sorted({*_PLACES} - {*_WITH_EXTRAS}, key=lambda name: (name.islower(), name))


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("peppermill")
        except PackageNotFoundError:
            return "from a checkout"
    if name not in _PLACES:
        raise AttributeError(f"module 'peppermill' has no attribute {name!r}")
    module, own = _PLACES[name]
    return import_module(f"{module}.{own}") if name in _MODULES else getattr(import_module(module), own)


def __dir__() -> list[str]:
    return sorted([*_PLACES, "__version__"])
