"""Write the ensemble to one file, model.pt2 or model.onnx, after comparing its answers with those of the ensemble.

A .pt2 file is for torch. A .onnx file is for onnxruntime and similar runtimes; only this file imports onnxruntime.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peppermill.ensemble import PepEnsemble
from peppermill.export.ensemble_graph import EnsembleGraph, Example, dynamic_shapes, example_of, named_outputs, traced
from peppermill.plumbing.files import refuse_unwritable, write_atomically
from peppermill.plumbing.nested import tensors_of
from peppermill.plumbing.networks import as_network
from peppermill.types import Inputs

MAX_WEIGHT_BYTES = 2**31 - 2**24  # a protocol buffer holds at most 2 GiB, and some of that is the graph

#: The absolute and relative difference that is allowed between file and ensemble, by the type of the weights. Another
#: order of sums changes the last few bits, and a wrong graph much more.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@torch.no_grad()
def export_ensemble(
    ensemble: PepEnsemble, path: str | Path, example: Inputs, outputs: Sequence[str] | None = None
) -> None:
    """Write the ensemble of eq. 9 to one file, in the format of its suffix.

    `outputs` names what the file gives: probabilities and their logarithms by default, or any uncertainty of an item.
    The file is written only if it answers the example, and the example with every item twice, as the ensemble does.
    """
    file_format = format_of(path)
    network, name = as_network(ensemble.model), type(ensemble.model).__name__
    given = example_of(network, example)
    expected = [_answers(ensemble, given, outputs)]
    names = tuple(outputs or expected[0])
    if unknown := [name for name in names if name not in expected[0]]:
        raise ValueError(f"`outputs={names}`: {unknown[0]!r} is unknown, choose from {', '.join(expected[0])}.")
    doubled = given.doubled()
    try:
        expected.append(_answers(ensemble, doubled, outputs))
    except RuntimeError as error:
        counts = f"{given.items} items but not {doubled.items}"
        raise ValueError(f"this {name} cannot be exported: it takes {counts} ({_reason(error)}).") from error

    graph = EnsembleGraph(ensemble, network, given, names)
    about = {
        "sigma": ensemble.sigma,
        "size": ensemble.size,
        "temperature": ensemble.temperature,
        "calibrator": ensemble.calibrator.name,
        "views": [view.name for view in ensemble.recipe.views],
        "likelihood": ensemble.likelihood.name,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporters of torch warn about themselves
            content = file_format.content(graph, doubled, about)
            found = [file_format.run(content, one) for one in (given, doubled)]
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"this {name} cannot be exported: {_reason(error)}") from error

    tolerance = max((TOLERANCES.get(value.dtype, 0.0) for value in graph.buffers()), default=0.0) or 1e-4
    for answers, right in zip(found, expected, strict=True):
        for output, value in ((name, right[name]) for name in names):
            answer = answers[output].to(value)
            if answer.shape != value.shape:
                difference = f"in their shape, {list(answer.shape)} instead of {list(value.shape)}"
            elif not torch.allclose(answer, value, tolerance, tolerance, equal_nan=True):
                difference = f"by up to {float((answer - value).abs().max()):.3g}"
            else:
                continue
            raise ValueError(
                f"{path} was not written: on the example its {output} differ from the ensemble's {difference}. A graph "
                "cannot hold random numbers, state that changes, or a branch on values."
            )
    write_atomically(path, content)


def _answers(ensemble: PepEnsemble, example: Example, outputs: Sequence[str] | None) -> dict[str, Tensor]:
    """What the ensemble itself gives for the example, by the names of the file's outputs."""
    if outputs is None:
        return named_outputs(ensemble.likelihood, ensemble(*example.arguments, **example.keywords))
    found = ensemble.uncertainty(*example.arguments, **example.keywords)
    assert found.outputs is not None
    return {**named_outputs(ensemble.likelihood, found.outputs), **found.values}


def format_of(path: str | Path) -> Format:
    """The format for the suffix of a path; raises if there is none, or if the file cannot be written."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"`path={str(path)!r}` has an unknown suffix: choose one of {', '.join(FORMATS)}.")
    refuse_unwritable(path)
    if absent := [name for name in FORMATS[suffix].packages if find_spec(name) is None]:
        raise ImportError(
            f'writing {suffix[1:].upper()} needs {", ".join(absent)}: `pip install "peppermill[{suffix[1:]}]"`.'
        )
    return FORMATS[suffix]


def _reason(error: Exception) -> str:
    """The most informative line of a long message."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    best = [line for line in lines if "inferred to be a constant" in line or "data-dependent" in line]
    return " ".join((best or lines or [type(error).__name__])[0].split())


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
    # torch translates log_sigmoid to ONNX as ln(sigmoid), which is -inf for logits below -87.
    stable = {torch.ops.aten.log_sigmoid.default: lambda x: x.clamp(max=0) - (-x.abs()).exp().log1p()}
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.ERROR)  # the optimizer of ONNX graphs warns of every constant that it does not fold
    try:
        program = torch.onnx.export(
            traced(graph, example).run_decompositions(stable),
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
    names = [given.name for given in session.get_inputs()]
    arrays = [tensor.detach().cpu().numpy() for tensor in tensors_of(example.by_name)]
    found = session.run(None, dict(zip(names, arrays, strict=True)))
    return {given.name: torch.from_numpy(value) for given, value in zip(session.get_outputs(), found, strict=True)}


#: The formats by suffix. A new format is one row.
FORMATS = {
    ".pt2": Format(pt2_content, run_pt2),
    ".onnx": Format(onnx_content, run_onnx, ("onnx", "onnxscript", "onnxruntime")),
}
