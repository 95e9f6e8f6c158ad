"""What is written about each item: the columns by name, and the arrays of one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peppermill.likelihood import check_batch
from peppermill.plumbing.nested import as_arguments, call_on_copies, map_tensors, output_tensor, placed
from peppermill.plumbing.networks import as_network, device_of, dtype_of, explain_shapes, refuse_training_mode
from peppermill.predictions import likelihood_of
from peppermill.streaming.numbered_batches import NumberedBatch, read_ahead, stream_of
from peppermill.types import Data, Inputs, Likelihood, LikelihoodLike
from peppermill.uncertainty import CLASS_UNCERTAINTIES, VARIANCES, without_members

WITHOUT_MEMBERS = ("probabilities", "confidence", "entropy", "variance")
OF_CLASSES = ("log_probs", "probabilities")  # a number for each class


def column_names(asked: str | Sequence[str] | None, likelihood: Likelihood, members: bool) -> list[str]:
    """The columns to write: known before anything is computed."""
    own = ["mean", "log_variance"] if likelihood.name == "gaussian" else ["log_probs", "predicted"]
    if asked is None:
        return own
    sure = VARIANCES if likelihood.name == "gaussian" else {"probabilities": "", **CLASS_UNCERTAINTIES}
    known = [*own, *(sure if members else [name for name in sure if name in WITHOUT_MEMBERS])]
    for name in (names := [name.strip() for name in (asked.split(",") if isinstance(asked, str) else asked)]):
        if name not in known:
            cure = "" if members else " Members, and what they do not agree on, come with an ensemble: `--pep`."
            raise ValueError(f"`columns={','.join(names)}`: there is no {name!r} here, only {', '.join(known)}.{cure}")
    return names


class BatchColumns:
    """A predictor of any kind, as a function from a batch to the columns of its items.

    Every batch has the size of a full one when the network sees it, so that no number depends on the batches before.
    """

    def __init__(
        self,
        predictor: Any,
        columns: str | Sequence[str] | None = None,
        top: int | None = None,
        likelihood: LikelihoodLike | None = None,
    ) -> None:
        self.predictor = as_network(predictor)
        refuse_training_mode(self.predictor)
        self.likelihood = likelihood_of(self.predictor, likelihood)
        self.members = hasattr(self.predictor, "uncertainty")
        self.names, self.top = column_names(columns, self.likelihood, self.members), top
        if top is not None and (top < 1 or not set(OF_CLASSES) & set(self.names)):
            raise ValueError(f"`top={top}` must be at least 1, with a column {' or '.join(OF_CLASSES)} to shorten.")
        self.device, self.dtype = device_of(self.predictor), dtype_of(self.predictor)
        self.small: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def __call__(self, batch: NumberedBatch) -> dict[str, np.ndarray]:
        missing, inputs = batch.size - len(batch.rows) if batch.number else 0, batch.inputs
        if missing > 0:
            inputs = map_tensors(lambda t: torch.cat([t, t[-1:].expand(missing, *t.shape[1:])]), inputs)
        args, kwargs = as_arguments(placed(inputs, self.device, self.dtype))
        with explain_shapes(self.predictor):
            predictions, uncertainty = self._predictions(args, kwargs)
        known = {"mean": predictions[..., 0], "log_variance": predictions[..., 1], "log_probs": predictions}
        known |= {"predicted": predictions.argmax(dim=-1).int(), "probabilities": predictions.exp(), **uncertainty}
        columns = {name: known[name] for name in self.names}
        if self.top:
            best = predictions.topk(min(self.top, predictions.shape[-1])).indices
            columns |= {name: columns[name].gather(-1, best) for name in OF_CLASSES if name in columns}
            columns["classes"] = best.int()
        count = len(batch.rows)
        found = {
            name: (value.float() if value.is_floating_point() else value)[:count].cpu().numpy()
            for name, value in columns.items()
        }
        broken = predictions[:count].flatten(1).isnan().any(dim=1).cpu().numpy()
        if broken.any():
            item = batch.names[int(broken.argmax())] if batch.names else f"item {batch.rows[broken][0]:,}"
            raise ValueError(f"the prediction for {item} is NaN: check the network's weights and this input.")
        extra = {"labels": np.asarray(batch.labels)} if batch.labels is not None else {}
        extra |= {"names": np.array(batch.names)} if batch.names is not None else {}
        return {"row": batch.rows, **found, **extra}

    def _predictions(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """The distribution of each item, its parameters in the last dimension, and the uncertainties by name."""
        unsure = not {*CLASS_UNCERTAINTIES, *VARIANCES}.isdisjoint(self.names)
        if unsure and self.members:
            found = self.predictor.uncertainty(*args, **kwargs)
            return self.likelihood.predict(found.outputs), dict(found.values)
        if self.members:  # which protect the inputs themselves
            outputs = self.predictor(*args, **kwargs)
        else:
            outputs = output_tensor(call_on_copies(self.predictor, args, kwargs))
            shape = outputs.shape[1:] if outputs.ndim < 2 else self.likelihood.predict(outputs[:1]).shape[1:-1]
            kind = torch.double if self.likelihood.name == "gaussian" else torch.long
            labels = torch.zeros(len(outputs), *shape, dtype=kind, device=outputs.device)
            check_batch(self.likelihood, outputs, labels, self.small)
        predictions = self.likelihood.predict(outputs)
        return predictions, dict(without_members(predictions, self.likelihood).values) if unsure else {}


def stream(
    predictor: Any,
    data: Data | Inputs,
    *,
    columns: str | Sequence[str] | None = None,
    top: int | None = None,
    likelihood: LikelihoodLike | None = None,
    batch_size: int = 500,
) -> Iterator[dict[str, np.ndarray]]:
    """The predictions of a network or an ensemble batch by batch, for data of any length, with labels or without.

    Each batch is a dict of arrays: `row`, the place of each item in the data, `labels` and `names` if there are any,
    and the `columns`, those of `peppermill predict`. `top=5` keeps the most probable `classes` only.
    """
    columns_of = BatchColumns(predictor, columns, top, likelihood)
    return map(columns_of, read_ahead(stream_of(data, batch_size).read()))
