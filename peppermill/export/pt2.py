"""model.pt2, by torch.export: loaded by `torch.export.load`, without peppermill and without the network's code."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from peppermill.export.ensemble_graph import DeployedEnsemble
from peppermill.export.example import Example


def content(network: DeployedEnsemble, example: Example, about: Mapping[str, Any]) -> bytes:
    """The file; what it is about lies in it as peppermill.json."""
    buffer = io.BytesIO()
    torch.export.save(traced(network, example), buffer, extra_files={"peppermill.json": json.dumps(about)})
    return buffer.getvalue()


def run(content: bytes, example: Example) -> dict[str, Tensor]:
    """What the file says to the example."""
    outputs: dict[str, Tensor] = torch.export.load(io.BytesIO(content)).module()(*example.arguments, **example.keywords)
    return outputs


def traced(network: DeployedEnsemble, example: Example) -> ExportedProgram:
    """The network as a graph, for any number of items."""
    program = torch.export.export(
        network, example.arguments, dict(example.keywords), dynamic_shapes=dynamic_shapes(example), strict=False
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths and lines of code on this machine: nobody else's business
    return program


def dynamic_shapes(example: Example) -> dict[str, Any]:
    """The batch is the dimension that varies, and the only one."""
    batch = Dim("batch")

    def shapes(value: Any) -> Any:
        if isinstance(value, Tensor):
            return {0: batch} if example.counts_items(value) else None
        if isinstance(value, Mapping):
            return {key: shapes(part) for key, part in value.items()}
        return tuple(map(shapes, value)) if isinstance(value, tuple) else None

    return {name: shapes(value) for name, value in example.by_name.items()}


def refuse_absent_packages() -> None:
    """Nothing is needed but torch."""
