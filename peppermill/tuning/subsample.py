"""A sample of the data, chosen so that weighted sums over it stand for sums over all.

Noise changes most where the network is unsure or wrong, so the chance that an example is chosen grows with the surprise
of its labels, and its weight is one over that chance. The choice is systematic: it walks through the data in their own
order, so that data sorted by class are represented too, and nothing about it is random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from peppermill.data import Batches, map_tensors
from peppermill.exchange import everybodys, leaves
from peppermill.old_engines.loop import MemberPass
from peppermill.parts import run_of_batches
from peppermill.processes.group import rank
from peppermill.processes.messages import every
from peppermill.processes.results import total
from peppermill.types import Batch, Inputs, Likelihood

SHARE = 1 / 16  # of the examples shows where the summit is,
FEWEST = 100  # but no fewer than these,
SMALL = 5 * FEWEST  # and of data smaller than this a part would save nothing
FLOOR = 0.2  # in units of the mean surprise: what each example has at least, so that the sure ones are looked at too
MERGED = 8  # batches of about one size, so that several processes have as much to do as each other,
SMALLEST = 32  # but fewer where they would be smaller than this

#: Chosen examples of one batch: inputs, labels, and their weights.
Chosen = tuple[Inputs, Tensor, Tensor]


@dataclass(frozen=True)
class Sample:
    """Some of the examples, the weight of each of their items, [n], and the share of all examples that they are.

    Of several processes, each has the chosen ones of its own part; together they are those that one would choose.
    """

    data: Batches
    weights: Tensor
    share: float


def sample_of(data: Batches, network: MemberPass, likelihood: Likelihood) -> Sample | None:
    """A sample of data over which the network itself has passed, at sigma = 0; nothing where all are needed.

    All are needed of small data, and of inputs whose rows are not the examples.
    """
    sizes = [size for part in every("the sizes of batches", data.sizes) for size in part]
    examples, size = (sum(column) for column in zip(*sizes, strict=True))
    if examples < SMALL:
        return None
    share = min(max(SHARE, FEWEST / examples), data.kept_bytes / max(size, 1))
    expected = share * examples * _surprises(network.member_log_likelihoods[0])
    chosen = _chosen(data, expected, likelihood)
    if not all(every("whether examples are rows", chosen is not None)):
        return None
    counts = every("the sample", sum(len(labels) for _, labels, _ in chosen or ()))
    whole = list(_merged(everybodys(chosen or [], data.device), min(max(sizes)[0], _size(sum(counts)))))
    mine = _part(whole, [bool(count) for count in counts])
    batches = [(inputs, labels) for inputs, labels, _ in mine]
    weights = [weights[_owners(labels, likelihood)] for _, labels, weights in mine]
    return Sample(data.alike(batches), torch.cat([expected[:0], *weights]), sum(counts) / examples)


def _part(whole: list[Chosen], holders: list[bool]) -> list[Chosen]:
    """Of the merged batches, the same for any number of processes, this one's; who chose none, gets none."""
    if not holders[rank()]:
        return []
    sizes = [len(labels) for _, labels, _ in whole]
    return whole[slice(*run_of_batches(sizes, sum(holders[: rank()]), sum(holders)))]


def _surprises(log_likelihoods: Tensor) -> Tensor:
    """How surprising each label is, [N], with sum 1; a density has no largest value of its own, so the data's is taken.

    The square root comes nearest to how much noise changes the log-likelihood.
    """
    highest = max(every("the best likelihood", float(log_likelihoods.max()) if len(log_likelihoods) else -math.inf))
    surprises: Tensor = (highest - log_likelihoods).sqrt()
    items = sum(every("the number of items", len(surprises)))
    surprises = surprises + (FLOOR * total(surprises) / items or 1.0)
    return surprises / total(surprises)


def _chosen(data: Batches, expected: Tensor, likelihood: Likelihood) -> list[Chosen] | None:
    """The chosen examples of every batch and their weights; nothing where examples are not rows."""
    found: list[Chosen] = []
    for (inputs, labels), chosen, weights in _choices(data, expected, likelihood):
        if not _in_rows(inputs, len(labels)):
            return None
        if bool(chosen.any()):
            found.append((map_tensors(lambda t, rows=chosen: t[rows], inputs), labels[chosen], weights))
    return found


def _choices(data: Batches, expected: Tensor, likelihood: Likelihood) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Each batch, which of its examples are chosen, and the weights of those."""
    start, reached = 0, 0.5 + sum(every("what is expected", float(expected.sum()))[: rank()])
    for inputs, labels in data if data.sizes else ():
        owners = _owners(labels, likelihood)
        own = expected[start : start + len(owners)]
        chances = own.new_zeros(len(labels)).index_add_(0, owners, own)
        ends = reached + chances.cumsum(0)
        chosen = ends.floor() > (ends - chances).floor()  # every time that the sum of chances passes an integer
        yield (inputs, labels), chosen, 1 / chances[chosen].clamp(max=1)
        start, reached = start + len(owners), float(ends[-1])


def _owners(labels: Tensor, likelihood: Likelihood) -> Tensor:
    """The example to which each item that counts belongs: a pixel to its image, a token to its text."""
    examples = torch.arange(len(labels), device=labels.device, dtype=torch.float64)
    spread = examples.view(-1, *(1,) * (labels.ndim - 1)).expand(labels.shape)
    return likelihood.items(spread.unsqueeze(-1), labels)[0].flatten().long()


def _in_rows(inputs: Inputs, count: int) -> bool:
    """Whether each row of each tensor is an example, and nothing else depends on the example."""
    found = leaves(inputs)
    rows = [leaf.ndim > 0 and len(leaf) == count for leaf in found if isinstance(leaf, Tensor)]
    others = [leaf for leaf in found if not isinstance(leaf, Tensor)]
    return bool(rows) and all(rows) and all(leaf is None or isinstance(leaf, (bool, int, float)) for leaf in others)


def _size(count: int) -> int:
    """The examples in a merged batch: small enough that there is work for several processes."""
    return max(SMALLEST, math.ceil(count / MERGED))


def _merged(batches: Sequence[Chosen], largest: int) -> Iterator[Chosen]:
    """Batches of one size, up to `largest` examples; those of different shapes, as of padded texts, stay apart."""
    for _, alike in groupby(batches, key=_arrangement):
        group = _joined(list(alike))
        count = len(group[1])
        size = math.ceil(count / math.ceil(count / largest))
        for start in range(0, count, size):
            yield map_tensors(lambda t, chosen=slice(start, start + size): t[chosen], group)


def _arrangement(batch: Chosen) -> str:
    return str(map_tensors(lambda t: (tuple(t.shape[1:]), t.dtype), batch))


def _joined(group: Sequence[Chosen]) -> Chosen:
    columns = zip(*(leaves(batch) for batch in group), strict=True)
    joined = (torch.cat(column) for column in columns if isinstance(column[0], Tensor))
    together: Chosen = map_tensors(lambda _: next(joined), group[0])
    return together
