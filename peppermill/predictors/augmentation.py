"""Test-time augmentation: the average probability of one network for several views of its inputs."""

from __future__ import annotations

from torch import nn

from peppermill.ensemble import PepEnsemble
from peppermill.plumbing.networks import as_network
from peppermill.predictions import likelihood_of
from peppermill.types import Likelihood
from peppermill.views import ViewsLike, views_named


class TestTimeAugmentation(PepEnsemble):
    """The average probability for the inputs as they are and for each view: an ensemble without noise, a pass each."""

    __test__ = False  # pytest takes classes whose name begins with Test for tests

    def __init__(
        self, model: nn.Module, views: ViewsLike = "horizontal_flip", *, likelihood: str | Likelihood | None = None
    ) -> None:
        model, passes = as_network(model), max(1, len(views_named(views)))
        chosen = likelihood_of(model, likelihood)
        pep = PepEnsemble.at_sigma(model, 0.0, parameters="all", size=passes, likelihood=chosen, views=views)
        super().__init__(model, pep.recipe, pep.engine)
