"""`rest?name=value&name=value`: options of one source, on the command line."""

from __future__ import annotations

from collections.abc import Iterable


def split_query(text: str, scheme: str, known: Iterable[str]) -> tuple[str, dict[str, str]]:
    """What stands before the question mark, and the options after it, by name."""
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


def skips_bad(options: dict[str, str]) -> bool:
    """Whether items that cannot be read are left out (`bad=skip`) or are an error."""
    if options.get("bad", "error") not in ("error", "skip"):
        raise ValueError(f"the option `bad={options['bad']}` must be `bad=error` or `bad=skip`.")
    return options.get("bad") == "skip"
