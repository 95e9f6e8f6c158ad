"""The arguments and options that several commands share, each declared once: alone, or in a group of related ones."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from peppermill.cli.console import complain
from peppermill.cli.torchrun import launched, launched_rank
from peppermill.engines import ENGINES, engine_named
from peppermill.ensemble import PepEnsemble, load
from peppermill.likelihood import LIKELIHOODS
from peppermill.noise import LAWS
from peppermill.parameters import RULES
from peppermill.plumbing.files import refuse_unwritable
from peppermill.sources import help_for, source_from
from peppermill.sources.source import Source
from peppermill.sources.weight_files import load_weights
from peppermill.views import VIEWS


def listed(rows: Mapping[str, Any]) -> str:
    """The rows of a registry for a help text, each with its help or the first line of its docstring."""
    helps = {name: getattr(row, "help", "") or (row.__doc__ or "").partition("\n")[0] for name, row in rows.items()}
    return ", ".join(f"{name} ({text.rstrip('.')})" for name, text in helps.items())


DATA_HELP = help_for("data")
Data = Annotated[str, typer.Argument(metavar="DATA", help=f"Labelled data: {DATA_HELP}.")]
AnyData = Annotated[str, typer.Argument(metavar="DATA", help=f"Data, with labels or without: {DATA_HELP}.")]
Trust = Annotated[bool, typer.Option("--trust", help="Open a .pt2 as MODEL: a program, which may run any code.")]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda (one per process), cuda:1 or mps.")]
Parameters = Annotated[str, typer.Option(help=f"What is perturbed: {listed(RULES)}, or a regular expression.")]
Size = Annotated[int, typer.Option(help="Members of the ensemble, the paper's m.")]
Noise = Annotated[str, typer.Option(help=f"The law of the noise: {listed(LAWS)}.")]
Antithetic = Annotated[bool, typer.Option("--antithetic/--independent", help="Members in pairs +epsilon, -epsilon.")]
Seed = Annotated[int, typer.Option(help="The seed of the noise.")]
BootstrapSeed = Annotated[int, typer.Option("--seed", min=0, help="The seed of the bootstrap.")]
LikelihoodName = Annotated[
    str, typer.Option("--likelihood", help=f"{', '.join(LIKELIHOODS)}, or categorical?ignored_label=255.")
]
Bins = Annotated[int, typer.Option(help="Bins of the calibration error.")]
BatchSize = Annotated[int, typer.Option(help="Items in a batch.")]
EngineName = Annotated[str, typer.Option("--engine", help=f"How the members run: {listed(ENGINES)}.")]
Precision = Annotated[str | None, typer.Option(help="Compute in bfloat16 or float16; by default as the network is.")]
RequiredPep = Annotated[Path, typer.Option("--pep", help="A pep.json that `calibrate` or `fit` wrote.")]
RunFile = Annotated[Path | None, typer.Option("--out", help="Also write the results as JSON, for `peppermill report`.")]


@dataclass(frozen=True)
class Network:
    """The network of a command: its name, its weights and its device."""

    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"The network: {help_for('model')}.")]
    weights: Annotated[Path | None, typer.Option(help="Weights: .safetensors, .pt, .pth, or .h5 of Keras.")] = None
    device: Device = "auto"
    trust: Trust = False

    def source(self) -> Source:
        """The network, with its weights, on its device, and how its inputs are made."""
        made = source_from(self.model, pretrained=self.weights is None, trust=self.trust)
        if self.weights is not None:
            load_weights(made.model, self.weights)
        return replace(made, model=made.model.to(device_named(self.device)))


@dataclass(frozen=True)
class EnsembleFile:
    """The ensemble of a command on top of its network, if one is asked for, and how it runs."""

    pep: Annotated[Path | None, typer.Option(help="A pep.json that `calibrate` or `fit` wrote.")] = None
    likelihood: Annotated[str | None, typer.Option(help=f"{', '.join(LIKELIHOODS)}; by default that of --pep.")] = None
    batch_size: BatchSize = 500
    engine: EngineName = "auto"
    precision: Precision = None

    def ensemble(self, network: nn.Module) -> PepEnsemble | None:
        """The ensemble in the file, with the likelihood that it was fitted with."""
        engine = engine_named(self.engine, self.precision)
        if self.pep is None:
            if self.engine != "auto" or self.precision:
                raise ValueError(
                    "`--engine` and `--precision` are for the members of an ensemble: name it with `--pep pep.json`."
                )
            return None
        found = load(self.pep, network, engine=engine)
        if self.likelihood not in (None, found.likelihood.name):
            raise ValueError(
                f"`--likelihood {self.likelihood}` contradicts {self.pep}, fitted with {found.likelihood.name}: leave "
                "the option out."
            )
        return found


@dataclass(frozen=True)
class Tuning:
    """Where an ensemble is tuned and written, and how it runs meanwhile."""

    out: Annotated[Path, typer.Option(help="Where to write the ensemble.")] = Path("pep.json")
    validation: Annotated[int | None, typer.Option(help="Tune on this many items; the rest is for tests.")] = None
    split_seed: Annotated[int | None, typer.Option(help="The seed with which --validation draws its items.")] = None
    parameters: Parameters = "kernels"
    noise: Noise = "gaussian"
    seed: Seed = 0
    likelihood: LikelihoodName = "categorical"
    views: Annotated[list[str] | None, typer.Option(help=f"Members also see {listed(VIEWS)}; repeatable.")] = None
    batch_size: BatchSize = 500
    engine: EngineName = "auto"
    precision: Precision = None

    def __post_init__(self) -> None:
        refuse_unwritable(self.out)


def arguments_of(function: Callable[..., Any], context: typer.Context) -> dict[str, Any]:
    """The options of this command that `function` takes as keyword arguments, under the same names."""
    known = [one.name for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    return {name: value for name, value in context.params.items() if name in known}


def settings(context: typer.Context, *names: str) -> dict[str, Any]:
    """The options of this command as a run file keeps them."""
    values = {name: context.params[name] for name in names}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def numbers(text: str, option: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"`{option} {text}` must be numbers separated by commas, as in 0.001,0.002.") from error


def device_named(name: str) -> torch.device:
    """The device, if this machine has it; `auto` takes a GPU if there is one, and says so.

    Under torchrun, `cuda` is the GPU with the number that this process has on its machine.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        if name != "cpu" and launched_rank() == 0:
            complain(f"running on {torch.cuda.get_device_name() if name == 'cuda' else name}", "device", "cyan")
    try:
        own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" and launched() else name
        device = torch.device(own)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = f" ({str(error).splitlines()[0]})" if name.partition(":")[0] in ("cuda", "mps") else ""
        raise ValueError(f"`--device {name}` cannot be used here{reason}: try `--device cpu`.") from error
    return device
