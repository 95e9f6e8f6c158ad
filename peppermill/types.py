"""The vocabulary: what flows between the files of this library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

#: Parameters by name: the center theta*, a direction epsilon_j or a member theta_j.
Params: TypeAlias = dict[str, Tensor]

#: What one call of the network takes: `model(x)`, `model(*x)` or `model(**x)`.
Inputs: TypeAlias = Any

#: One step through the data: inputs and labels.
Batch: TypeAlias = tuple[Inputs, Tensor]

#: What users pass as data: a DataLoader, a Dataset, a list of batches, or a pair (inputs, labels).
Data: TypeAlias = DataLoader[Any] | Dataset[Any] | Iterable[Any] | tuple[Any, Any]

#: Called with a number of items each time a network has seen that many.
Tick: TypeAlias = Callable[[int], None]


class Predictor(Protocol):
    """Anything that turns inputs into logits or log-probabilities: a network, a PepEnsemble, a tempered network."""

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor: ...


class Likelihood(Protocol):
    """p(y; x, theta) of eq. 1: how a network's outputs are read as a distribution over labels."""

    @property
    def name(self) -> str: ...

    def settings(self) -> Mapping[str, int | str]:
        """The settings that a file stores, from which this likelihood is rebuilt."""

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Raise if outputs or labels are not what this likelihood expects."""

    def predict(self, outputs: Tensor) -> Tensor:
        """The normalised distribution, its parameters in the last dimension."""

    def items(self, predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The items i that count, in order: predictions [N, K] and labels [N]."""

    def log_likelihoods(self, predictions: Tensor, labels: Tensor) -> Tensor:
        """ln L_i, [N], of items."""

    def average(self, predictions: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """The prediction of the members together, eq. 9, from their predictions [m, ...].

        A row may be the average of other members; `counts` then says how many members each row stands for.
        """

    def outputs(self, predictions: Tensor) -> Tensor:
        """Predictions in the layout of the network's own outputs."""


#: What `likelihood=` takes: a name, or one with settings, as in `pm.Categorical(ignored_label=255)`.
LikelihoodLike: TypeAlias = Literal["categorical", "bernoulli", "gaussian"] | Likelihood

#: The names of the registries, for type checkers and editors; an engine may name a precision.
LawName: TypeAlias = Literal["gaussian", "uniform"]
SearchName: TypeAlias = Literal["two_stage", "golden"]
CalibratorName: TypeAlias = Literal["temperature", "vector", "matrix"]
Precision: TypeAlias = Literal["bfloat16", "float16"]
EngineName: TypeAlias = (
    Literal["auto", "loop", "vmap", "graphs", "compile"]
    | Literal["auto:bfloat16", "loop:bfloat16", "vmap:bfloat16", "graphs:bfloat16", "compile:bfloat16"]
    | Literal["auto:float16", "loop:float16", "vmap:float16", "graphs:float16", "compile:float16"]
)
