"""The arguments and options that several commands share, each said once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn

from peppermill.cli.torchrun import own_gpu
from peppermill.ensemble import PepEnsemble, load
from peppermill.old_engines.choose import engine_of
from peppermill.sources import source_from
from peppermill.sources.checkpoint import load_weights
from peppermill.sources.label_file import lines_of
from peppermill.sources.source import Source

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="The network: timm:NAME, torchvision:NAME, hf:REPO_OR_FOLDER, keras:NAME_OR_FILE, checkpoint:FILE or "
        "python:package.module:factory.",
    ),
]
Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Labelled data: imagefolder:folder, npz:file.npz (arrays x, y), hf:name:split, mnist:test, ... or "
        "python:module:factory.",
    ),
]
Weights = Annotated[
    Path | None, typer.Option(help="Weights for the network: .safetensors, .pt, .pth (a state dict), or .h5 for Keras.")
]
Device = Annotated[
    str, typer.Option(help="Where to compute: cpu, cuda (under torchrun, a GPU for each process), cuda:1, mps.")
]
AnyData = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="imagefolder:folder, npz:file.npz (array x, and y where labels are known), hf:name:split, mnist:test, "
        "... or python:module:factory.",
    ),
]
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
EngineName = Annotated[str, typer.Option("--engine", help="How the members run: auto, loop, joined, vmap or graphs.")]
Precision = Annotated[
    str | None, typer.Option(help="Let the network compute in low precision: bfloat16 or float16; its own by default.")
]
Pep = Annotated[Path | None, typer.Option(help="An ensemble that `peppermill fit` wrote.")]


def source(model: str, weights: Path | None, device: str) -> Source:
    """The network, with its weights, on its device, and how its inputs are made."""
    made = source_from(model, pretrained=weights is None)
    if weights is not None:
        load_weights(made.model, weights)
    return replace(made, model=made.model.to(device_named(device)))


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


def lines(path: Path) -> list[str]:
    """The lines of a text file, the name of a class on each."""
    if not path.is_file():
        raise ValueError(
            f"there is no file {path}: `--class-names` must name a text file with the name of each class on a line."
        )
    return lines_of(path, "the name of a class is")


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
