"""Write the ensemble to one file, after comparing the answers of the file with those of the ensemble."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from peppermill.ensemble import PepEnsemble
from peppermill.export.ensemble_graph import EnsembleGraph, Example, example_of, named_outputs
from peppermill.export.formats import FORMATS, Format
from peppermill.plumbing.files import refuse_unwritable, write_atomically
from peppermill.plumbing.networks import as_network
from peppermill.types import Inputs

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
