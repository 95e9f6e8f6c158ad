"""Write the ensemble to one file, after the file's answers were compared with the ensemble's own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from peppermill.export import onnx, pt2
from peppermill.export.ensemble_graph import DeployedEnsemble, named_outputs
from peppermill.export.example import Example, example_of
from peppermill.perturbation import Perturbation
from peppermill.plumbing.files import refuse_unwritable, write_atomically
from peppermill.types import Inputs, Likelihood

#: The formats by suffix. A new one is one file with `content` and `run`, and one row here.
FORMATS: dict[str, ModuleType] = {".pt2": pt2, ".onnx": onnx}

#: How far the file's answers may lie from the ensemble's, absolutely and relatively, by the type of the weights:
#: another order of sums changes the last few bits, and a wrong graph much more.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


class Ensemble(Protocol):
    """What a PepEnsemble has that a file needs."""

    model: nn.Module

    @property
    def sigma(self) -> float: ...
    @property
    def size(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def likelihood(self) -> Likelihood: ...
    @property
    def perturbation(self) -> Perturbation: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


@torch.no_grad()
def export_ensemble(ensemble: Ensemble, path: str | Path, example: Inputs) -> None:
    """The ensemble as one file, in the format of its suffix.

    The file answers the example, and every item of it twice, as the ensemble does, or it is not written.
    """
    form = format_of(path)
    given = example_of(ensemble.model, example)
    examples = [given, given.doubled()]
    expected = [_answers(ensemble, given), _answers_to_more(ensemble, examples[1])]
    members = list(ensemble.perturbation.members(ensemble.sigma))
    network = DeployedEnsemble(ensemble.model, members, ensemble.likelihood, ensemble.temperature, given)
    content, found = _traced(form, network, examples, _about(ensemble))
    for outputs, right in zip(found, expected, strict=True):
        _refuse_difference(outputs, right, _tolerance(network), path)
    write_atomically(path, content)


def format_of(path: str | Path) -> ModuleType:
    """The format that a path asks for; raises where there is none, or where the file could not be written."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"`path={str(path)!r}` has no suffix that is known: choose one of {', '.join(FORMATS)}.")
    refuse_unwritable(path)
    FORMATS[suffix].refuse_absent_packages()
    return FORMATS[suffix]


def _answers(ensemble: Ensemble, example: Example) -> dict[str, Tensor]:
    return named_outputs(ensemble.likelihood, ensemble(*example.arguments, **example.keywords))


def _answers_to_more(ensemble: Ensemble, example: Example) -> dict[str, Tensor]:
    """The same for another number of items than the user's, for which some networks were not made."""
    try:
        return _answers(ensemble, example)
    except RuntimeError as error:
        name, items = type(ensemble.model).__name__, f"{example.items // 2} items but not {example.items}"
        raise ValueError(f"this {name} cannot be exported: it takes {items} ({_reason(error)}).") from error


def _about(ensemble: Ensemble) -> Mapping[str, Any]:
    return {
        "sigma": ensemble.sigma,
        "size": ensemble.size,
        "temperature": ensemble.temperature,
        "likelihood": ensemble.likelihood.name,
    }


def _traced(
    form: ModuleType, network: DeployedEnsemble, examples: list[Example], about: Mapping[str, Any]
) -> tuple[bytes, list[dict[str, Tensor]]]:
    """The file, and what it says to each of the examples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporters warn of parts of their own
        try:
            content: bytes = form.content(network, examples[-1], about)
            return content, [form.run(content, example) for example in examples]
        except MemoryError:
            raise
        except Exception as error:
            name = type(network.code[0]).__name__
            raise ValueError(f"this {name} cannot be exported: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The one line of a long message that says most."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "inferred to be a constant" in line or "data-dependent" in line]
    return " ".join((telling or lines or [type(error).__name__])[0].split())


def _tolerance(network: DeployedEnsemble) -> float:
    """That of the coarsest type among the weights."""
    return max((TOLERANCES.get(value.dtype, 0.0) for value in network.buffers()), default=0.0) or 1e-4


def _refuse_difference(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float, path: str | Path
) -> None:
    for name, value in expected.items():
        given = found[name].to(value)
        if given.shape != value.shape or not torch.allclose(given, value, tolerance, tolerance, equal_nan=True):
            raise ValueError(
                f"{path} was not written: on the example its {name} differ from the ensemble's "
                f"{_distance(given, value)}. The network does what a graph cannot hold: random numbers, state that "
                "changes, a branch on values."
            )


def _distance(found: Tensor, expected: Tensor) -> str:
    if found.shape != expected.shape:
        return f"in their shape, {list(found.shape)} in place of {list(expected.shape)}"
    return f"by up to {float((found - expected).abs().max()):.3g}"
