"""Members whose log-likelihoods are known functions of sigma: an engine of the tests, for searches of known answers."""

from __future__ import annotations

import torch
from torch import nn

from peppermill.data import Batches
from peppermill.likelihood import Categorical
from peppermill.noise import Noise
from peppermill.passes import Request
from peppermill.perturbation import Perturbation
from peppermill.tuning import warn_about

BASE = -8.0  # ln L_i of the network itself
ITEMS = 2048  # every sixteenth is in the subsample, because all surprise the network alike
SMALL_ITEMS = 100  # too few for a subsample


def hill(peak):
    """Rises from -8 at 0 to -7.5 at the peak, then falls without end, as L(sigma) of the paper's Figure 1 does."""
    return lambda sigma: BASE + (sigma / peak) ** 2 - 0.5 * (sigma / peak) ** 4


class Curve:
    """An engine whose members give all items the mean log-likelihood `whole(sigma)`, and the subsample its own.

    If there is noise, every other item gains `spread` more than the mean, and the others as much less.
    """

    precision, report, size = None, "curve", 10

    def __init__(self, whole, sampled=None, spread=0.0):
        self.whole, self.sampled, self.spread = whole, sampled, spread
        self.items = ITEMS if sampled else SMALL_ITEMS
        self.asked = {"whole": [], "sampled": []}

    def groups(self, members, args, kwargs):
        self.asked["whole" if len(args[0]) == self.items else "sampled"].append(members.sigma)
        for _ in range(members.count):
            yield lambda args, kwargs: self.log_probs(members.sigma, args[0].long())[None]

    def log_probs(self, sigma, place):
        """Two classes; the first is the label. The items outside the subsample make up for it."""
        value = torch.full((len(place),), float(self.whole(sigma)), dtype=torch.float64)
        if self.sampled:
            sampled = float(self.sampled(sigma))
            value = torch.where(place % 16 == 7, sampled, (16 * value - sampled) / 15)
        value = value + self.spread * (sigma > 0) * (-1.0) ** (place // 16 + place)
        return torch.stack([value, torch.log1p(-value.exp())], dim=1)

    def tune(self, search, joint=False, scale=1.0):
        perturbation = Perturbation({"weight": torch.full((4,), scale)}, Noise(), self.size)
        data = Batches((torch.arange(self.items), torch.zeros(self.items, dtype=torch.long)), batch_size=self.items)
        found = search.tune(Request(nn.Identity().eval(), perturbation, Categorical(), self, data), joint)
        warn_about(found, search)  # as `fit` does
        return found
