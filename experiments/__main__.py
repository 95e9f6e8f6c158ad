"""`python -m experiments NAME`: run an experiment of the paper, with its settings as options."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any

#: The experiments: a module with `Settings` and `main(settings)`, and what it makes. A new one is one row here.
EXPERIMENTS: dict[str, tuple[str, str]] = {
    "table1": ("experiments.table1", "pre-trained networks on ImageNet's validation images"),
    "images": ("experiments.table1.imagenet", "whether a folder holds the 5,000 validation images of our rows"),
    "gap": ("experiments.gap", "what explains ResNet50's distance from its printed row of Table 1"),
    "table2": ("experiments.table2", "the networks of the paper, trained as it did, and every method on them"),
    "figure1": ("experiments.figure1", "the log-likelihood of ensemble and members along sigma"),
    "figure2": ("experiments.figure2", "reliability before and after, and the mistakes that PEP corrects"),
    "figure3": ("experiments.figure3", "overfitting against the PEP effect and sigma*, after every epoch"),
    "noise": ("experiments.noise_laws", "uniform against Gaussian noise, paired"),
    "ood": ("experiments.out_of_distribution", "out-of-distribution detection with a WideResNet-28x10"),
    "unknown": ("experiments.unknown_images", "images of other data sets: AUROC by confidence, entropy, information"),
    "shift": ("experiments.shift", "CIFAR-10 networks under 15 corruptions at 5 severities"),
    "swa": ("experiments.swa_schedules", "schedules of stochastic weight averaging, and their distance from the paper"),
    "rate": ("experiments.learning_rate", "MNIST (CNN) at the learning rate of the authors' notebook"),
    "race": ("experiments.race", "one-pass calibrators, views and noise, and what the race chooses"),
    "page": ("experiments.page", "write docs/paper.md from the results"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment that the command line names."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="The experiments of the paper. `python -m experiments NAME --help` lists the settings of one.",
        epilog="\n".join(f"  {name:<8} {text}" for name, (_, text) in EXPERIMENTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help="one of the names below")
    name = parser.parse_args(words[:1]).name
    module, text = import_module(EXPERIMENTS[name][0]), EXPERIMENTS[name][1]
    given = vars(options_of(module.Settings, name, text).parse_args(words[1:]))
    try:
        module.main(module.Settings(**given))
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")


def options_of(settings: Any, name: str, text: str) -> argparse.ArgumentParser:
    """One option for each setting, `--tuning-size 5`; several values are separated by commas, schedules by spaces."""
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments {name}",
        description=f"{text[0].upper()}{text[1:]}.",
        argument_default=argparse.SUPPRESS,
    )
    comments = {}
    for owner in reversed(settings.__mro__[:-1]):  # the comment beside a setting is its help
        comments |= dict(re.findall(r"^    (\w+): [^#\n]*  # (.*)$", inspect.getsource(owner), re.MULTILINE))
    single = {"str": str, "int": int, "float": float, "Path": Path}
    for field in fields(settings):
        option, kind = f"--{field.name.replace('_', '-')}", str(field.type).removesuffix(" | None")
        comment = comments.get(field.name, "").replace("%", "%%")
        if field.name == "say" or field.default is MISSING:
            continue
        if kind == "bool":
            parser.add_argument(option, action=argparse.BooleanOptionalAction, help=comment)
        elif kind.startswith("tuple"):
            inner, mark = single[kind.removeprefix("tuple[").split(",")[0]], " " if field.name == "schedules" else ","
            parser.add_argument(
                *(option, option[:-1]),  # --rows and --row
                dest=field.name,
                type=lambda text, inner=inner, mark=mark: tuple(map(inner, filter(None, text.split(mark)))),
                metavar="LIST",
                help=f"{comment} (default: {mark.join(map(str, field.default)) or None})",
            )
        else:
            parser.add_argument(
                option, type=single[kind], metavar=kind.upper(), help=f"{comment} (default: {field.default})"
            )
    return parser


if __name__ == "__main__":
    main()
