"""What a model source gives, and what all of them share: weights or none, near names, one line for a failure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from peppermill.plumbing.optional import VERSIONS, reason
from peppermill.sources.query import whole_number


@dataclass(frozen=True)
class Source:
    """A network in evaluation mode, and how its inputs are made.

    `prepare` turns one raw item (a PIL image; for text models a string) into the network's input, a tensor or a dict of
    tensors without a batch dimension. `channels_last` is how the network wants pictures that something else prepares.
    """

    model: nn.Module
    prepare: Callable[[Any], Any] | None = None
    class_names: tuple[str, ...] | None = None
    channels_last: bool = False


def wants_weights(options: dict[str, str], otherwise: bool) -> bool:
    """Whether pre-trained weights are asked for; `?pretrained=false` says no."""
    said = options.get("pretrained", str(otherwise)).lower()
    if said not in ("true", "false"):
        raise ValueError(f"the option `pretrained={said}` must be `pretrained=true` or `pretrained=false`.")
    return said == "true"


def class_count(options: dict[str, str], pretrained: bool, argument: str) -> dict[str, int]:
    """How many classes, as an argument of the library, where `?classes=10` says it: for weights from elsewhere."""
    if "classes" not in options:
        return {}
    count = whole_number(options, "classes", 1)
    if pretrained:
        raise ValueError(
            f"`classes={count}` would put a fresh, untrained last layer on the pre-trained network: use it with "
            "`pretrained=false` or `--weights FILE`."
        )
    return {argument: count}


def refuse_unknown(scheme: str, name: str, known: Iterable[str]) -> None:
    """Raise where there is no such model, with the names nearest to it."""
    spelled = {real.lower(): real for real in known}
    if name in spelled.values():
        return
    near = [spelled[key] for key in difflib.get_close_matches(name.lower(), spelled, n=3, cutoff=0.5)]
    advice = (
        f"did you mean {', '.join(f'{scheme}:{key}' for key in near)}?" if near else "its documentation lists them."
    )
    raise ValueError(f"{scheme} has no classifier {name!r}: {advice}")


@contextmanager
def one_clear_line(text: str, cure: str) -> Iterator[None]:
    """A library's failure to get or build a model, as one line with the cure; its own words in brackets."""
    try:
        yield
    except ImportError as error:
        root = _root(error)
        cure = "install it" if isinstance(root, ImportError) else VERSIONS
        raise ImportError(f"{text} needs what does not import here ({reason(root)}): {cure}.") from error
    except Exception as error:
        words = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise OSError(f"{text} could not be had ({words.rstrip('.')}): {cure}.") from error


def _root(error: BaseException) -> BaseException:
    """The first of a chain of errors, which alone says what is missing."""
    return _root(error.__cause__) if error.__cause__ else error
