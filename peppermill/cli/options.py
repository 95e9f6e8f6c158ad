"""The arguments and options that several commands share, each declared once; their help lists the registries' rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from peppermill.cli.torchrun import own_gpu
from peppermill.engines import ENGINES, engine_named
from peppermill.ensemble import PepEnsemble, load
from peppermill.likelihood import LIKELIHOODS
from peppermill.noise import LAWS
from peppermill.parameters import RULES
from peppermill.sources import help_for, source_from
from peppermill.sources.source import Source
from peppermill.sources.weight_files import load_weights
from peppermill.views import VIEWS


def listed(rows: Mapping[str, Any]) -> str:
    """The rows of a registry for a help text, each with its help or the first line of its docstring."""
    helps = {name: getattr(row, "help", "") or (row.__doc__ or "").partition("\n")[0] for name, row in rows.items()}
    return ", ".join(f"{name} ({text.rstrip('.')})" for name, text in helps.items())


Model = Annotated[str, typer.Argument(metavar="MODEL", help=f"The network: {help_for('model')}.")]
DATA_HELP = help_for("data", "raw data")
Data = Annotated[str, typer.Argument(metavar="DATA", help=f"Labelled data: {DATA_HELP}.")]
AnyData = Annotated[str, typer.Argument(metavar="DATA", help=f"Data, with labels or without: {DATA_HELP}.")]
Weights = Annotated[Path | None, typer.Option(help="Weights: .safetensors, .pt, .pth (a state dict), .h5 of Keras.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Open MODEL even if it is a .pt2: a program, which may run any code.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda (under torchrun, a GPU for each process), cuda:1 or mps.")]
Parameters = Annotated[str, typer.Option(help=f"What is perturbed: {listed(RULES)}, or a regular expression.")]
Size = Annotated[int, typer.Option(help="Members of the ensemble, the paper's m.")]
Noise = Annotated[str, typer.Option(help=f"The law of the noise: {listed(LAWS)}.")]
Antithetic = Annotated[bool, typer.Option("--antithetic/--independent", help="Members in pairs +epsilon, -epsilon.")]
Seed = Annotated[int, typer.Option(help="The seed of the noise.")]
BootstrapSeed = Annotated[int, typer.Option("--seed", min=0, help="The seed of the bootstrap.")]
LikelihoodName = Annotated[str, typer.Option("--likelihood", help=f"Of the labels: {', '.join(LIKELIHOODS)}.")]
LikelihoodOrOwn = Annotated[str | None, typer.Option("--likelihood", help=f"As in --pep, or {', '.join(LIKELIHOODS)}.")]
Bins = Annotated[int, typer.Option(help="Bins of the calibration error.")]
Views = Annotated[list[str] | None, typer.Option(help=f"Members see the inputs and: {listed(VIEWS)}; repeatable.")]
Validation = Annotated[int | None, typer.Option(help="Tune on this many items of DATA; the rest is for tests.")]
SplitSeed = Annotated[int | None, typer.Option(help="The seed by which --validation draws its items; 0.")]
Ensemble = Annotated[Path, typer.Option("--out", help="Where to write the ensemble.")]
BatchSize = Annotated[int, typer.Option(help="Items in a batch.")]
EngineName = Annotated[str, typer.Option("--engine", help=f"How the members run: {listed(ENGINES)}.")]
Precision = Annotated[str | None, typer.Option(help="Compute in bfloat16 or float16; by default as the network is.")]
Pep = Annotated[Path | None, typer.Option(help="An ensemble that `peppermill fit` wrote.")]
RequiredPep = Annotated[Path, typer.Option("--pep", help="An ensemble that `peppermill fit` wrote.")]
RunFile = Annotated[Path | None, typer.Option("--out", help="Also write the results as JSON, for `peppermill report`.")]
Picture = Annotated[Path | None, typer.Option(help="Also draw the results: .png, .svg or .pdf.")]
Sigmas = Annotated[str | None, typer.Option(help="Values separated by commas; chosen automatically by default.")]


def arguments_of(function: Callable[..., Any], context: typer.Context) -> dict[str, Any]:
    """The options of this command that `function` takes as keyword arguments, under the same names."""
    known = [one.name for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    return {name: value for name, value in context.params.items() if name in known}


def settings(context: typer.Context, *names: str) -> dict[str, Any]:
    """The options of this command as a run file keeps them."""
    values = {name: context.params[name] for name in names}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def source(model: str, weights: Path | None, device: str, trust: bool) -> Source:
    """The network, with its weights, on its device, and how its inputs are made."""
    made = source_from(model, pretrained=weights is None, trust=trust)
    if weights is not None:
        load_weights(made.model, weights)
    return replace(made, model=made.model.to(device_named(device)))


def ensemble(
    pep: Path | None, network: nn.Module, likelihood: str | None, engine: str, precision: str | None
) -> PepEnsemble | None:
    """The ensemble in a file, if one is asked for, with the likelihood that it was fitted with."""
    engine_named(engine, precision)
    if pep is None and (engine != "auto" or precision):
        raise ValueError(
            "`--engine` and `--precision` are for the members of an ensemble: name it with `--pep pep.json`."
        )
    if pep is None:
        return None
    found = load(pep, network, engine=engine, precision=precision)
    if likelihood not in (None, found.likelihood.name):
        raise ValueError(
            f"`--likelihood {likelihood}` contradicts {pep}, fitted with {found.likelihood.name}: leave the option out."
        )
    return found


def names(given: list[str] | None) -> list[str]:
    """Names from an option that may be repeated and may hold several, separated by commas."""
    return [name.strip() for text in given or () for name in text.split(",")]


def numbers(text: str, option: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"`{option} {text}` must be numbers separated by commas, as in 0.001,0.002.") from error


def device_named(name: str) -> torch.device:
    """The device, if this machine has it."""
    try:
        device = torch.device(own_gpu(name))
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = f" ({str(error).splitlines()[0]})" if name.partition(":")[0] in ("cuda", "mps") else ""
        raise ValueError(f"`--device {name}` cannot be used here{reason}: try `--device cpu`.") from error
    return device
