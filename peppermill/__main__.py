"""The command `peppermill`, also `python -m peppermill`: Ctrl-C is one line, even while libraries are imported."""

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any


def main() -> None:
    """Run the command line."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:  # an import can swallow a KeyboardInterrupt, or turn it into another error
        signal.signal(signal.SIGINT, leave)
    from peppermill.cli import app

    for name in app.COMMANDS.keys() & {*sys.argv}:
        with suppress(Exception):  # it is imported again, and fails again, when the command runs
            import_module(f"peppermill.cli.{app.COMMANDS[name].module}")
    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app.main()
    except KeyboardInterrupt:
        leave()


def leave(*_: Any) -> None:
    """Say so and end at once, so that a second Ctrl-C finds nothing to interrupt."""
    if os.environ.get("RANK", "0") == "0":
        os.write(2, b"error: interrupted: no file was left half-written, and what was finished is kept.\n")
    os._exit(130)


if __name__ == "__main__":
    main()
