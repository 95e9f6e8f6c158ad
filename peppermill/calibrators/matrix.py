"""Matrix scaling: vector scaling in which each class also looks at the log-probabilities of the others."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from peppermill.calibrators.vector import STRENGTHS, LinearScaling, choose_path, follow_path, tempered_items


def matrix_scaling(log_probs: Tensor, labels: Tensor) -> LinearScaling:
    """Matrix scaling of log-probabilities [N, K]: first the strength for diagonal and bias, then that for the rest.

    Each of the K - 1 other entries of a row is held K - 1 times as strongly as the diagonal would be.
    """
    temperature, u, labels = tempered_items(log_probs, labels)
    classes = log_probs.shape[1]
    own = torch.eye(classes, classes + 1).bool()
    own[:, -1] = True
    path = choose_path(u, labels, [torch.where(own, strength, math.inf) for strength in STRENGTHS])
    first = torch.where(own, path[-1].clamp(max=STRENGTHS[1]), math.inf)
    rest = [torch.where(own, first, (classes - 1) * strength) for strength in STRENGTHS[1:-1]]
    return follow_path(temperature, u, labels, [*path[:-1], *choose_path(u, labels, [path[-1], *rest])])
