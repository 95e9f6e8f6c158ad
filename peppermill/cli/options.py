"""The arguments and options that several commands share, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from peppermill.engines.choose import engine_of
from peppermill.ensemble import PepEnsemble, load
from peppermill.files import refuse_unwritable
from peppermill.report import plots
from peppermill.sources import data_from, model_from

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The network: python:package.module:factory.")]
Data = Annotated[
    str, typer.Argument(metavar="DATA", help="Labelled data: npz:file.npz (arrays x, y) or python:module:factory.")
]
Weights = Annotated[Path | None, typer.Option(help="Weights for the network, a safetensors file.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, mps.")]
Parameters = Annotated[
    str, typer.Option(help="What is perturbed: kernels, conv, last_layer, all, or a regular expression.")
]
Size = Annotated[int, typer.Option(help="Members of the ensemble, the paper's m.")]
Noise = Annotated[str, typer.Option(help="The law of the noise: gaussian or uniform.")]
Antithetic = Annotated[
    bool, typer.Option("--antithetic/--independent", help="Members in pairs +epsilon, -epsilon, or independent.")
]
Seed = Annotated[int, typer.Option(help="The seed of the noise.")]
LikelihoodName = Annotated[str, typer.Option("--likelihood", help="categorical, bernoulli or gaussian.")]
LikelihoodOrOwn = Annotated[
    str | None,
    typer.Option("--likelihood", help="categorical, bernoulli or gaussian; the ensemble's own by default."),
]
Bins = Annotated[int, typer.Option(help="Bins of the calibration error.")]
BatchSize = Annotated[int, typer.Option(help="Items in a batch.")]
EngineName = Annotated[str, typer.Option("--engine", help="How the members run: auto, loop, vmap or graphs.")]
Precision = Annotated[
    str | None, typer.Option(help="Let the network compute in low precision: bfloat16 or float16; its own by default.")
]
Pep = Annotated[Path | None, typer.Option(help="An ensemble that `peppermill fit` wrote.")]


def network(model: str, weights: Path | None, device: str) -> nn.Module:
    """The network, with its weights, on its device."""
    made = model_from(model)
    if weights is not None:
        _load_weights(made, weights)
    return made.to(_device(device))


def ensemble(
    pep: Path | None, network: nn.Module, likelihood: str | None, engine: str, precision: str | None
) -> PepEnsemble | None:
    """The ensemble in a file, if one is asked for; its likelihood was settled when it was fitted."""
    engine_of(engine, precision)
    if pep is None:
        return None
    found = load(pep, network, engine=engine, precision=precision)
    if likelihood not in (None, found.likelihood.name):
        raise ValueError(
            f"`--likelihood {likelihood}` contradicts {pep}, fitted with {found.likelihood.name}: leave the option out."
        )
    return found


def labelled(data: str) -> Any:
    """The labelled data: anything that `fit` takes."""
    return data_from(data)


def lines(path: Path) -> list[str]:
    """The lines of a text file, the name of a class on each."""
    if not path.is_file():
        raise ValueError(f"there is no file {path} (`--class-names`).")
    return path.read_text(encoding="utf-8").splitlines()


def refuse_outputs(out: Path | None, picture: Path | None) -> None:
    """Raise before the work where its results could not be written after it."""
    refuse_unwritable(out)
    if picture:
        refuse_unwritable(picture)
        plots.refuse_other_formats(picture)


def numbers(text: str, option: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"`{option} {text}` must be numbers separated by commas, as in 0.001,0.002.") from error


def _load_weights(model: nn.Module, weights: Path) -> None:
    if not weights.is_file():
        raise ValueError(f"there is no file {weights} (`--weights`).")
    try:
        model.load_state_dict(load_file(weights))
    except SafetensorError as error:
        raise ValueError(f"{weights} is not a safetensors file, or is truncated ({error}).") from error
    except RuntimeError as error:
        raise ValueError(f"{weights} does not fit this {type(model).__name__}: {_first_complaint(error)}") from error


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = f" ({str(error).splitlines()[0]})" if name.partition(":")[0] in ("cuda", "mps") else ""
        raise ValueError(f"`--device {name}` cannot be used here{reason}: try `--device cpu`.") from error
    return device


def _first_complaint(error: RuntimeError) -> str:
    """The first of the lines in which torch lists what does not fit, and how many follow."""
    complaints = [line.strip() for line in str(error).splitlines()[1:]]
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    return " ".join(complaints[:1]) + more
