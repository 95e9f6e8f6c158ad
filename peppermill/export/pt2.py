"""model.pt2: `torch.export.load` loads it without peppermill and without the code of the network."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from peppermill.export.ensemble_graph import EnsembleGraph, Example, traced


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
