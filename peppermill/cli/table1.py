"""`peppermill paper table1`: pre-trained networks on ImageNet's validation images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peppermill.cli import experiments
from peppermill.cli.console import say
from peppermill.paper import table1
from peppermill.paper.imagenet_networks import NETWORKS
from peppermill.paper.machine import Machine

PAPER = ",".join(table1.PAPER)
EXAMPLES = "peppermill paper table1 --networks ResNet50 --weights resnet50.safetensors --imagenet val --tuning 1000"


def command(
    networks: Annotated[str, typer.Option(help=f"Separated by commas: {', '.join(NETWORKS)}.")] = PAPER,
    imagenet: Annotated[
        Path | None,
        typer.Option(help="The validation images: folders 0 to 999, folders n01440764 ..., flat, or parcels."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Classes of a flat folder: lines `NAME NUMBER`, or a WordNet id a line.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="A file, or a folder of files NETWORK.*; without it Keras downloads its own.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A folder that has CIFAR-10, for the networks of CIFAR-10.")] = None,
    tuning: Annotated[int, typer.Option(help="Images that tune sigma and T; the others test.")] = 5000,
    splits: Annotated[int, typer.Option(help="Splits into tuning and test images: the paper's, then random ones.")] = 1,
    images: Annotated[int | None, typer.Option(help="Only the first so many images.")] = None,
    device: experiments.Device = "cpu",
    precision: Annotated[str, typer.Option(help="Of products: float32, tf32 or bfloat16.")] = "float32",
    batch_size: Annotated[int, typer.Option(help="Images in one pass of a network.")] = 50,
    out: experiments.Out = experiments.OUT,
    checkpoints: Annotated[
        Path, typer.Option(help="Folder for decoded images and finished members; safe to delete.")
    ] = experiments.CHECKPOINTS,
    tiny: Annotated[bool, typer.Option("--tiny", help="Few members and iterations: to see that it runs.")] = False,
) -> None:
    """Table 1: T*, sigma*, NLL, Brier, ECE and error of pre-trained networks, with paired tests."""
    out = experiments.tiny_folders(out, checkpoints)[0] if tiny else out  # images decoded before serve a tiny run too
    experiments.refuse_unusable(device, out, checkpoints)
    settings = table1.Settings(
        networks=experiments.names_in(networks),
        imagenet=imagenet,
        labels=labels,
        data=data,
        weights=weights,
        tuning=tuning,
        splits=splits,
        images=images,
        batch_size=batch_size,
        out=out,
        checkpoints=checkpoints,
        machine=Machine(device, precision=precision),
        say=say,
    )
    table1.main(table1.tiny(settings) if tiny else settings)
