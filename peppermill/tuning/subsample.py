"""A subsample of the examples, chosen so that weighted sums over it estimate sums over all.

Noise changes most where the network is unsure or wrong, so an example is chosen with a probability that grows with the
surprise of its labels, and its weight is one over that probability. The choice is systematic: it goes through the data
in order, so that data sorted by class are represented, and nothing about it is random.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from peppermill.data import MEMORY_BYTES, Batches
from peppermill.likelihood import example_rows
from peppermill.passes import Request
from peppermill.plumbing.nested import bytes_of, map_tensors, tensors_of
from peppermill.types import Inputs

SUBSAMPLE_FRACTION = 1 / 16
MIN_SUBSAMPLE_EXAMPLES = 100
MIN_DATA_EXAMPLES = 500  # with fewer, a subsample would save nothing
SURPRISE_FLOOR = 0.2  # in units of the mean surprise: the least of an example, so that sure ones are chosen too
BATCHES, MIN_BATCH_EXAMPLES = 8, 32  # a subsample has several batches, so that several processes can share it


@dataclass(frozen=True)
class Subsample:
    """Some of the examples, the weight of each of their items, [n], and their share of all examples.

    `items` says which of all N items are theirs.
    """

    data: Batches
    weights: Tensor
    share: float
    example_weights: Tensor
    items: Tensor


def cut_subsample(request: Request, log_likelihoods: Tensor, fraction: float = SUBSAMPLE_FRACTION) -> Subsample | None:
    """About this fraction of the request's data, by the network's own ln L_i, [N], at sigma = 0.

    None if the data are small, or if the rows of the inputs are not the examples.
    """
    examples, size, largest = 0, 0, 0
    owners = []
    for inputs, labels in request.data:
        if not tensors_of(inputs) or not _rows_are_examples(inputs, len(labels)):
            return None
        owners.append(examples + example_rows(request.likelihood, labels.cpu()))
        examples, size, largest = examples + len(labels), size + bytes_of(inputs), max(largest, len(labels))
    if examples < MIN_DATA_EXAMPLES:
        return None
    share = min(max(fraction, MIN_SUBSAMPLE_EXAMPLES / examples), MEMORY_BYTES / max(size, 1))
    # A density may exceed 1, so surprise is measured from the data's largest. The square root comes nearest to how much
    # noise changes the log-likelihood.
    surprises = (log_likelihoods.max() - log_likelihoods).cpu().double().sqrt()
    surprises += SURPRISE_FLOOR * float(surprises.mean()) or 1.0
    surprises /= surprises.sum()
    example = torch.cat(owners)  # of each item, [N]
    chances = surprises.new_zeros(examples).index_add_(0, example, share * examples * surprises)
    ends = 0.5 + chances.cumsum(0)
    chosen = ends.floor() > (ends - chances).floor()  # whenever the sum of the chances passes a whole number
    count = int(chosen.sum())
    most = min(largest, max(MIN_BATCH_EXAMPLES, math.ceil(count / BATCHES)))
    weights = 1 / chances.clamp(max=1)
    data = request.data.alike(list(cut(request.data, chosen, most)))
    items = chosen[example]
    return Subsample(data, weights[example[items]], count / examples, weights[chosen], items)


def _rows_are_examples(inputs: Inputs, count: int) -> bool:
    """Whether each row of each tensor is an example, and nothing else depends on the example."""
    if isinstance(inputs, dict):
        inputs = tuple(inputs.values())
    if isinstance(inputs, (tuple, list)):
        return all(_rows_are_examples(part, count) for part in inputs)
    if isinstance(inputs, Tensor):
        return inputs.ndim > 0 and len(inputs) == count
    return inputs is None or isinstance(inputs, (bool, int, float))


def cut(data: Iterable[Any], chosen: Tensor, most: int) -> Iterator[Any]:
    """The chosen examples in order, in even batches of at most `most`; different shapes, as of texts, stay apart.

    A batch is (inputs, labels), with more tensors after the labels if there are any.
    """
    parts, start = [], 0
    for batch in data:
        rows = chosen[start : start + len(batch[1])]
        start += len(rows)
        if bool(rows.any()):
            parts.append(map_tensors(lambda tensor, rows=rows: tensor[rows], batch))
    for _, alike in groupby(parts, key=lambda part: str(map_tensors(lambda t: (t.shape[1:], t.dtype), part))):
        group = list(alike)
        joined = iter([torch.cat(column) for column in zip(*map(tensors_of, group), strict=True)])
        whole = map_tensors(lambda _, joined=joined: next(joined), group[0])
        count = len(whole[1])
        size = math.ceil(count / math.ceil(count / most))
        for begin in range(0, count, size):
            yield map_tensors(lambda tensor, rows=slice(begin, begin + size): tensor[rows], whole)
