"""model.onnx, for onnxruntime and similar runtimes. Only this file imports onnx, onnxscript and onnxruntime."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from peppermill.export.ensemble_graph import EnsembleGraph, Example, dynamic_shapes, traced
from peppermill.plumbing.nested import map_tensors

MAX_WEIGHT_BYTES = 2**31 - 2**24  # a protocol buffer holds at most 2 GiB, and some of that is the graph


def content(graph: EnsembleGraph, example: Example, about: Mapping[str, Any]) -> bytes:
    """The file. Its metadata holds `about`."""
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
        program = torch.onnx.export(
            traced(graph, example).run_decompositions(STABLE_DECOMPOSITIONS),
            example.arguments,
            kwargs=dict(example.keywords),
            dynamic_shapes=dynamic_shapes(example),
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


def run(content: bytes, example: Example) -> dict[str, Tensor]:
    """The answers of the file to the example, by onnxruntime."""
    session = import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    flat: list[Any] = []
    map_tensors(lambda t: flat.append(t.detach().cpu().numpy()), example.by_name)
    names = [given.name for given in session.get_inputs()]
    found = session.run(None, dict(zip(names, flat, strict=True)))
    return {given.name: torch.from_numpy(value) for given, value in zip(session.get_outputs(), found, strict=True)}


def refuse_absent_packages() -> None:
    """Raise before the work if a package is not installed."""
    absent = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if absent:
        raise ImportError(f'writing ONNX needs {", ".join(absent)}: `pip install "peppermill[onnx]"`.')


def _log_sigmoid(logits: Tensor) -> Tensor:
    return logits.clamp(max=0) - (-logits.abs()).exp().log1p()


#: torch translates log_sigmoid to ONNX as ln(sigmoid), which is -inf for logits below -87.
STABLE_DECOMPOSITIONS = {torch.ops.aten.log_sigmoid.default: _log_sigmoid}
