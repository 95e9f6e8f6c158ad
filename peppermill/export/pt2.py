"""model.pt2: `torch.export.load` loads it without peppermill and without the code of the network."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from peppermill.export.ensemble_graph import EnsembleGraph, Example


def content(graph: EnsembleGraph, example: Example, about: Mapping[str, Any]) -> bytes:
    """The file. It holds `about` as peppermill.json."""
    buffer = io.BytesIO()
    torch.export.save(traced(graph, example), buffer, extra_files={"peppermill.json": json.dumps(about)})
    return buffer.getvalue()


def run(content: bytes, example: Example) -> dict[str, Tensor]:
    """The answers of the file to the example."""
    outputs: dict[str, Tensor] = torch.export.load(io.BytesIO(content)).module()(*example.arguments, **example.keywords)
    return outputs


def refuse_absent_packages() -> None:
    """This format needs only torch."""


def traced(graph: EnsembleGraph, example: Example) -> ExportedProgram:
    """The ensemble as a graph of operations, for any number of items."""
    program = torch.export.export(
        graph, example.arguments, dict(example.keywords), dynamic_shapes=dynamic_shapes(example), strict=False
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths and lines of code on this machine
    return program


def dynamic_shapes(example: Example) -> dict[str, Any]:
    """Only the batch dimension varies."""
    batch = Dim("batch")

    def shapes(value: Any) -> Any:
        if isinstance(value, Tensor):
            return {0: batch} if example.counts_items(value) else None
        if isinstance(value, Mapping):
            return {key: shapes(part) for key, part in value.items()}
        return tuple(map(shapes, value)) if isinstance(value, tuple) else None

    return {name: shapes(value) for name, value in example.by_name.items()}
