"""The arguments and options that several commands share, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

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
Bins = Annotated[int, typer.Option(help="Bins of the calibration error.")]
BatchSize = Annotated[int, typer.Option(help="Items in a batch.")]
Pep = Annotated[Path | None, typer.Option(help="An ensemble that `peppermill fit` wrote.")]


def network(model: str, weights: Path | None, device: str) -> nn.Module:
    """The network, with its weights, on its device."""
    made = model_from(model)
    if weights is not None:
        _load_weights(made, weights)
    return made.to(_device(device))


def labelled(data: str) -> Any:
    return data_from(data)


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
        raise ValueError(
            f"{weights} does not fit this {type(model).__name__}: {' '.join(str(error).split())[:300]}"
        ) from error


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"`--device {name}` cannot be used here: {str(error).splitlines()[0]}") from error
    return device
