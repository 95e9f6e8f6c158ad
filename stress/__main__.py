"""`make stress`: every hostile test, its figures in results/reliability/*.json, and docs/reliability.md from them."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from importlib import import_module

import peppermill as pm
from stress import document
from stress.document import PARTS, RESULTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stress", description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, separated by commas: {', '.join(PARTS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="cases of each part; by default each has its own number")
    parser.add_argument("--minutes", type=float, default=600, help="after which a part begins no other case")
    asked = parser.parse_args()
    command = shlex.join(["python", "-m", "stress", *sys.argv[1:]])  # now: the fuzzer runs commands in this process
    unknown = set(asked.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))} is unknown: choose among {', '.join(PARTS)}.")
    failed = []
    for name in asked.only.split(","):
        print(f"{name} ...", flush=True)
        started = time.monotonic()
        count, deadline = asked.count or PARTS[name].count, started + 60 * asked.minutes
        found = import_module(f"stress.{name}").run(asked.seed, count, deadline)
        made = pm.provenance(asked.seed) | {"command": command}
        found |= {"seconds": round(time.monotonic() - started), "provenance": made}
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        failed += [name] if found["faults"] else []
    document.main()
    if failed:
        sys.exit(f"with faults: {', '.join(failed)}")


if __name__ == "__main__":
    main()
