"""What a model source gives, and what all sources share: options after a question mark, near names, clear failures."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from peppermill.plumbing.optional import VERSIONS, reason

CONNECT = "connect to the network once, or give weights of your own with `--weights FILE`"


@dataclass(frozen=True)
class Source:
    """A network in evaluation mode, and how its inputs are made.

    `prepare` turns one raw item (a PIL image; for text models a string) into the network's input, a tensor or a dict of
    tensors without a batch dimension. `channels_last` is how the network takes pictures that something else prepares.
    """

    model: nn.Module
    prepare: Callable[[Any], Any] | None = None
    class_names: tuple[str, ...] | None = None
    channels_last: bool = False


def split_query(text: str, scheme: str, known: Iterable[str]) -> tuple[str, dict[str, str]]:
    """`rest?name=value&name=value` as the rest and the options by name."""
    rest, _, query = text.partition("?")
    options = {}
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if name not in known or not equals or not value:
            raise ValueError(
                f"{scheme}:{text}: the option {part!r} is unknown or empty: after `?` may stand "
                f"{', '.join(f'{one}=...' for one in known)}, separated by `&`."
            )
        options[name] = value
    return rest, options


def whole_number(options: dict[str, str], name: str, default: int) -> int:
    """An option that counts something, at least 1."""
    if name not in options:
        return default
    if not options[name].isdecimal() or int(options[name]) < 1:
        raise ValueError(f"the option `{name}={options[name]}` must be a whole number, at least 1.")
    return int(options[name])


def one_of(options: dict[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    """An option with a few possible values."""
    value = options.get(name, default).lower()
    if value not in choices:
        raise ValueError(
            f"the option `{name}={value}` must be {' or '.join(f'`{name}={choice}`' for choice in choices)}."
        )
    return value


def weights_and_classes(options: dict[str, str], otherwise: bool, argument: str = "") -> tuple[bool, dict[str, int]]:
    """Whether to load pre-trained weights (`?pretrained=false` says no), and `?classes=10` as a library's argument."""
    pretrained = one_of(options, "pretrained", ("true", "false"), str(otherwise)) == "true"
    sizes = {argument: whole_number(options, "classes", 1)} if "classes" in options else {}
    if sizes and pretrained:
        raise ValueError(
            f"`classes={options['classes']}` would put a fresh, untrained last layer on the pre-trained network: use "
            "it with `pretrained=false` or `--weights FILE`."
        )
    return pretrained, sizes


def refuse_unknown(scheme: str, name: str, known: Iterable[str]) -> None:
    """Raise if there is no such model, with the names nearest to it."""
    spelled = {real.lower(): real for real in known}
    if name in spelled.values():
        return
    near = [spelled[key] for key in difflib.get_close_matches(name.lower(), spelled, n=3, cutoff=0.5)]
    meant = f"did you mean {', '.join(f'{scheme}:{key}' for key in near)}?"
    raise ValueError(f"{scheme} has no classifier {name!r}: {meant if near else 'its documentation lists them.'}")


@contextmanager
def one_clear_line(text: str, cure: str = CONNECT) -> Iterator[None]:
    """A library's failure to load or build a model, as one line with the cure and the library's own words."""
    try:
        yield
    except ImportError as error:
        root: BaseException = error
        while root.__cause__:  # the first of the chain alone names what is missing
            root = root.__cause__
        cure = "install it" if isinstance(root, ImportError) else VERSIONS
        raise ImportError(f"{text} could not be imported ({reason(root)}): {cure}.") from error
    except Exception as error:
        words = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise OSError(f"{text} could not be loaded ({words.rstrip('.')}): {cure}.") from error
