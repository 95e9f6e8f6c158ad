"""model.onnx, for onnxruntime and the like; the only file that knows onnx, onnxscript and onnxruntime."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from peppermill.data import map_tensors
from peppermill.export.ensemble_graph import DeployedEnsemble, output_names
from peppermill.export.example import Example
from peppermill.export.pt2 import dynamic_shapes, traced

MOST_BYTES = 2**31 - 2**24  # a protocol buffer ends at 2 GiB; some of it is graph


def content(network: DeployedEnsemble, example: Example, about: Mapping[str, Any]) -> bytes:
    """The file; what it is about lies in its metadata."""
    if network.held_bytes() > MOST_BYTES:
        raise ValueError(
            f"one ONNX file holds at most 2 GiB, and the members' weights are {network.held_bytes() / 2**30:.1f} GiB: "
            "export to .pt2, which has no limit, use fewer members, or perturb fewer parameters."
        )
    with _quiet("onnxscript"):
        program = torch.onnx.export(
            traced(network, example).run_decompositions(_STABLE),
            example.arguments,
            kwargs=dict(example.keywords),
            dynamic_shapes=dynamic_shapes(example),
            output_names=output_names(network.likelihood),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # paths and lines of code on this machine, for every node
    program.model.metadata_props.update({f"peppermill.{name}": str(value) for name, value in about.items()})
    found: bytes = program.model_proto.SerializeToString()
    return found


def run(content: bytes, example: Example) -> dict[str, Tensor]:
    """What onnxruntime makes of the file."""
    session = import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    flat: list[Any] = []
    map_tensors(lambda t: flat.append(t.detach().cpu().numpy()), example.by_name)
    names = [given.name for given in session.get_inputs()]
    found = session.run(None, dict(zip(names, flat, strict=True)))
    return {given.name: torch.from_numpy(value) for given, value in zip(session.get_outputs(), found, strict=True)}


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """The optimizer of ONNX graphs warns of every constant that it leaves as it is."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _logaddexp(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([first, second]).logsumexp(dim=0)


def _log_sigmoid(logits: Tensor) -> Tensor:
    return logits.clamp(max=0) - (-logits.abs()).exp().log1p()


#: torch translates these to ONNX as ln(exp a + exp b) and ln(sigmoid): both give -inf for logarithms below -87.
_STABLE = {torch.ops.aten.logaddexp.default: _logaddexp, torch.ops.aten.log_sigmoid.default: _log_sigmoid}


def refuse_absent_packages() -> None:
    """Raise before the work where something is not installed."""
    absent = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if absent:
        raise ImportError(f'writing ONNX needs {", ".join(absent)}: `pip install "peppermill[onnx]"`.')
