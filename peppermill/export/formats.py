"""The formats of a file: model.pt2 for torch, model.onnx for onnxruntime, which only this file imports."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from peppermill.export.ensemble_graph import EnsembleGraph, Example, dynamic_shapes, traced
from peppermill.plumbing.nested import map_tensors

MAX_WEIGHT_BYTES = 2**31 - 2**24  # a protocol buffer holds at most 2 GiB, and some of that is the graph


@dataclass(frozen=True)
class Format:
    """How a file is written, with what it says about the ensemble, how it answers an example, and what that needs."""

    content: Callable[[EnsembleGraph, Example, Mapping[str, Any]], bytes]
    run: Callable[[bytes, Example], dict[str, Tensor]]
    packages: tuple[str, ...] = ()  # of the extra with the name of the suffix


def pt2_content(graph: EnsembleGraph, example: Example, about: Mapping[str, Any]) -> bytes:
    """A file that `torch.export.load` loads without peppermill and the network's code; peppermill.json is `about`."""
    buffer = io.BytesIO()
    torch.export.save(traced(graph, example), buffer, extra_files={"peppermill.json": json.dumps(about)})
    return buffer.getvalue()


def run_pt2(content: bytes, example: Example) -> dict[str, Tensor]:
    """The answers of the file to the example."""
    outputs: dict[str, Tensor] = torch.export.load(io.BytesIO(content)).module()(*example.arguments, **example.keywords)
    return outputs


def onnx_content(graph: EnsembleGraph, example: Example, about: Mapping[str, Any]) -> bytes:
    """A file for onnxruntime and similar runtimes; its metadata holds `about`."""
    weights = sum(value.nbytes for value in graph.buffers())
    if weights > MAX_WEIGHT_BYTES:
        raise ValueError(
            f"one ONNX file holds at most 2 GiB, and the members' weights are {weights / 2**30:.1f} GiB: export to "
            ".pt2, which has no limit, use fewer members, or perturb fewer parameters."
        )
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.ERROR)  # the optimizer of ONNX graphs warns of every constant that it does not fold
    try:
        stable = traced(graph, example).run_decompositions(STABLE_DECOMPOSITIONS)
        program = torch.onnx.export(
            stable,
            example.arguments,
            kwargs=dict(example.keywords),
            dynamic_shapes=dynamic_shapes(example),  # for the name of the batch dimension
            output_names=list(graph.names),
            dynamo=True,
            verbose=False,
        )
    finally:
        logger.setLevel(level)
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # paths and lines of code on this machine
    program.model.metadata_props.update({f"peppermill.{name}": str(value) for name, value in about.items()})
    found: bytes = program.model_proto.SerializeToString()
    return found


def run_onnx(content: bytes, example: Example) -> dict[str, Tensor]:
    """The answers of the file to the example, by onnxruntime."""
    session = import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    flat: list[Any] = []
    map_tensors(lambda t: flat.append(t.detach().cpu().numpy()), example.by_name)
    names = [given.name for given in session.get_inputs()]
    found = session.run(None, dict(zip(names, flat, strict=True)))
    return {given.name: torch.from_numpy(value) for given, value in zip(session.get_outputs(), found, strict=True)}


def _log_sigmoid(logits: Tensor) -> Tensor:
    return logits.clamp(max=0) - (-logits.abs()).exp().log1p()


#: torch translates log_sigmoid to ONNX as ln(sigmoid), which is -inf for logits below -87.
STABLE_DECOMPOSITIONS = {torch.ops.aten.log_sigmoid.default: _log_sigmoid}

#: The formats by suffix. A new format is one row.
FORMATS = {
    ".pt2": Format(pt2_content, run_pt2),
    ".onnx": Format(onnx_content, run_onnx, ("onnx", "onnxscript", "onnxruntime")),
}
