"""Write the ensemble to one file, model.pt2 or model.onnx, after comparing its answers with those of the ensemble.

A .pt2 file is for torch. A .onnx file is for onnxruntime and similar runtimes; only this file imports onnxruntime.
"""

from __future__ import annotations

import inspect
import io
import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, ShapesCollection

from peppermill.engines.network_shell import shell_of
from peppermill.ensemble import PepEnsemble
from peppermill.plumbing.files import refuse_unwritable, write_atomically
from peppermill.plumbing.nested import as_arguments, map_tensors, output_tensor, tensors_of
from peppermill.plumbing.networks import as_network, device_of, dtype_of
from peppermill.types import Inputs, Likelihood
from peppermill.uncertainty import CLASS_UNCERTAINTIES, VARIANCES, Tally, named
from peppermill.views import IDENTITY

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
class Example:
    """A batch of inputs as the arguments of a call; `names` are the network's names of the positional ones."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    names: tuple[str, ...]
    items: int

    @property
    def by_name(self) -> dict[str, Any]:
        """All arguments by name."""
        return {**dict(zip(self.names, self.arguments, strict=True)), **self.keywords}

    def counts_items(self, tensor: Tensor) -> bool:
        """Whether the first dimension is the batch. It is not in positions [1, tokens] beside words [B, tokens]."""
        return tensor.ndim > 0 and len(tensor) == self.items

    def doubled(self) -> Example:
        """Every item twice. This gives at least two items: torch takes a dimension of one for a constant."""

        def twice(tensor: Tensor) -> Tensor:
            return torch.cat([tensor, tensor]) if self.counts_items(tensor) else tensor

        arguments, keywords = map_tensors(twice, self.arguments), map_tensors(twice, self.keywords)
        return replace(self, arguments=arguments, keywords=keywords, items=2 * self.items)


def example_of(network: nn.Module, inputs: Inputs) -> Example:
    """A copy of the inputs on the device of the network and, if its weights have one type, in that type."""
    device, dtype = device_of(network), dtype_of(network)
    copied = map_tensors(lambda t: t.to(device, dtype if t.is_floating_point() else None, copy=True), inputs)
    lengths = [len(tensor) if tensor.ndim else 0 for tensor in tensors_of(copied)]
    if not lengths or not lengths[0]:
        given = f"tensor of shape {list(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(
            f"`example` is a {given}, in which no item was found: give a batch of inputs as the network takes them, "
            "at least one item, without labels."
        )
    arguments, keywords = as_arguments(copied)
    parameters = inspect.signature(network.forward).parameters.values()
    names = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD and p.name not in keywords]
    names = [*names[: len(arguments)], *(f"input_{k}" for k in range(len(names), len(arguments)))]
    return Example(arguments, keywords, tuple(names), lengths[0])


class EnsembleGraph(nn.Module):
    """All members at once, each with its own selected weights; all other tensors are held once and shared.

    The noise is part of the weights, because drawing it in every call would cost more than the network. A shell
    of the network supplies the code. It is not a submodule: the traced graph holds no weight that no member uses.
    """

    def __init__(self, ensemble: PepEnsemble, network: nn.Module, example: Example, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names  # of the outputs
        self.likelihood, self.calibrator = ensemble.likelihood, ensemble.calibrator
        self.code = (shell_of(network),)  # nn.Module does not look for submodules in a tuple
        self.views = ensemble.recipe.views or (IDENTITY,)
        members = list(ensemble.perturbation.members(ensemble.sigma))
        state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        shared = self._hold("shared", {name: value for name, value in state.items() if name not in members[0]})
        self.attributes = [{**shared, **self._hold(f"member{j}", params)} for j, params in enumerate(members)]
        self.attributes *= ensemble.passes // len(members)  # at sigma = 0 the same weights for each view

        def forward(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            return self.average(*args, **kwargs)

        # The names of the network's own arguments become the names of the file's inputs.
        forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in example.names]
            + [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in example.keywords]
        )
        self.forward = forward
        self.eval()

    def average(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The averaged prediction of eq. 9, by name."""
        predictions = []
        for j, attributes in enumerate(self.attributes):
            params = {name: getattr(self, attribute) for name, attribute in attributes.items()}
            call = partial(torch.func.functional_call, self.code[0], params)
            view = self.views[j % len(self.views)]
            outputs = view.outputs(lambda *seen, call=call: output_tensor(call(*seen)).unsqueeze(0), args, kwargs)
            predictions.append(self.likelihood.predict(outputs.squeeze(0)))
        averaged = self.likelihood.average(torch.stack(predictions))
        found = named_outputs(self.likelihood, self.likelihood.outputs(self.calibrator(averaged)))
        if {*self.names} & {*CLASS_UNCERTAINTIES, *VARIANCES}:
            tally = Tally(self.likelihood)
            tally.add(torch.stack(predictions))
            found |= named(tally.values(averaged, self.calibrator), self.likelihood).values
        return {name: found[name] for name in self.names}

    def _hold(self, owner: str, params: Mapping[str, Tensor]) -> dict[str, str]:
        """Register the tensors as buffers, and return the name of the attribute for each name of a parameter."""
        attributes = {name: f"{owner}_{k}_{name.replace('.', '_')}" for k, name in enumerate(params)}
        for name, value in params.items():
            self.register_buffer(attributes[name], value.detach())
        return attributes


def named_outputs(likelihood: Likelihood, outputs: Tensor) -> dict[str, Tensor]:
    """The outputs of the file from those of the ensemble: probabilities, and a form that does not underflow."""
    if likelihood.name == "gaussian":
        mean, log_variance = outputs.unbind(dim=-1)
        return {"mean": mean, "log_variance": log_variance}
    if likelihood.name == "bernoulli":
        return {"probabilities": outputs.sigmoid(), "logits": outputs}
    return {"probabilities": outputs.exp(), "log_probabilities": outputs}


def dynamic_shapes(graph: EnsembleGraph, example: Example) -> Any:
    """Only the batch dimension varies, and is called so."""
    shapes: Any = ShapesCollection()  # type: ignore[no-untyped-call]
    batch = Dim("batch")
    for tensor in filter(example.counts_items, tensors_of(example.by_name)):
        shapes[tensor] = {0: batch}
    return shapes.dynamic_shapes(graph, example.arguments, dict(example.keywords))


def traced(graph: EnsembleGraph, example: Example) -> ExportedProgram:
    """The ensemble as a graph of operations, for any number of items."""
    dynamic, keywords = dynamic_shapes(graph, example), dict(example.keywords)
    program = torch.export.export(graph, example.arguments, keywords, dynamic_shapes=dynamic, strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths and lines of code on this machine
    return program


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
            dynamic_shapes=dynamic_shapes(graph, example),  # for the name of the batch dimension
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
