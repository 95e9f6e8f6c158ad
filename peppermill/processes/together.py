"""Functions that all processes call at once: a failure of one is everybody's, and the first speaks for all."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from peppermill.plumbing.warnings import warn_user
from peppermill.processes.group import grouped, idle, launched_rank, rank
from peppermill.processes.messages import ProcessError, every, tell_failure
from peppermill.types import PepWarning

Options = ParamSpec("Options")
Found = TypeVar("Found")
Kept = list[tuple[str, str, int]]  # text, file and line

_inside: ContextVar[bool] = ContextVar("inside", default=False)


def together(function: Callable[Options, Found]) -> Callable[Options, Found]:
    """The same function; in a process group, all end together and the warnings of all are given once."""

    @functools.wraps(function)
    def joined(*args: Options.args, **kwargs: Options.kwargs) -> Found:
        if not grouped() or _inside.get():
            _mention_idle_processes()
            return function(*args, **kwargs)
        with telling_failures(), _warnings_of_all(function.__name__):
            return function(*args, **kwargs)

    return joined


@contextmanager
def telling_failures() -> Iterator[None]:
    """Let the other processes know of an exception, once; it then goes its way."""
    try:
        yield
    except Exception as error:
        if grouped() and not isinstance(error, ProcessError) and not hasattr(error, "told_to_all"):
            error.told_to_all = tell_failure(error)  # type: ignore[attr-defined]
        raise


@contextmanager
def _warnings_of_all(name: str) -> Iterator[None]:
    kept: Kept = []
    token = _inside.set(True)
    try:
        with _keeping_warnings(kept):
            yield
        everybodys = every(f"the end of `{name}`", kept)
    except Exception:
        _warn([kept])
        raise
    finally:
        _inside.reset(token)
    _warn(everybodys)


@contextmanager
def _keeping_warnings(kept: Kept) -> Iterator[None]:
    """Our own warnings are put into the list instead of being shown."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def keep(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
            if issubclass(category, PepWarning):
                kept.append((str(message), filename, lineno))
            else:
                show(message, category, filename, lineno, *rest)

        warnings.simplefilter("always", PepWarning)
        warnings.showwarning = keep  # type: ignore[assignment]
        yield


def _warn(everybodys: list[Kept]) -> None:
    """Each warning once, by the first process."""
    seen: list[Any] = []
    for one in (one for kept in everybodys for one in kept if rank() == 0):
        if one[0] not in seen:
            seen.append(one[0])
            warnings.warn_explicit(one[0], PepWarning, filename=one[1], lineno=one[2])


def _mention_idle_processes() -> None:
    if idle() and launched_rank() == 0:
        warn_user(
            "several processes were started, and each does the whole job: call "
            '`torch.distributed.init_process_group("gloo")` first, and they part the data among them.'
        )
