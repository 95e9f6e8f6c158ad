"""sigma* of S networks: by the paper's own search, and by ours, each network on its own curve, all in lockstep."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from peppermill.engines.loop import MemberPass
from peppermill.likelihood import ensemble_log_likelihood
from peppermill.paper.lockstep import in_lockstep
from peppermill.paper.members import StackedMembers
from peppermill.search import golden_section
from peppermill.tuning import best_temperature, tune_sigma
from peppermill.types import PepWarning

LOWER, UPPER = 0.0, 0.1  # the authors' scripts
ITERATIONS = 10  # the authors' scripts

#: One network's pass at a sigma, each sigma paid for once.
Run = Callable[[float], MemberPass]


#: A search: one network's passes and the root mean square of its selected weights in, sigma* out.
Search = Callable[[Run, float], "Found"]


@dataclass(frozen=True)
class Found:
    """What a search found for one network."""

    sigma: float
    temperature: float = 1.0


def paper_sigma(run: Run, scale: float) -> Found:
    """The paper's search: the midpoint of the bracket at the start of the tenth iteration; sigma = 0 is never tried."""
    search = golden_section(
        lambda sigma: float(ensemble_log_likelihood(run(sigma).member_log_likelihoods)), LOWER, UPPER, ITERATIONS - 1
    )
    return Found((search.lower + search.upper) / 2)


def our_sigma(run: Run, scale: float) -> Found:
    """`pm.fit(..., search="golden")`: sigma = 0 is in the race, and the range is found."""
    return Found(tune_sigma(run, scale=scale).best.sigma)


def our_sigma_and_temperature(run: Run, scale: float) -> Found:
    """`pm.fit(..., search="golden", temperature=True)`."""
    best = tune_sigma(run, scale=scale, joint=True).best
    return Found(best.sigma, best.temperature)


def tune_together(members: StackedMembers, *searches: Search) -> list[list[Found]]:
    """What each of the searches finds for each network, [searches][S]; a sigma asked for twice is paid once."""
    passes: dict[tuple[int, float], MemberPass] = {}
    scales = members.scales()

    def job(index: int, ask: Callable[[float], MemberPass]) -> list[Found]:
        def run(sigma: float) -> MemberPass:
            if (index, sigma) not in passes:
                passes[index, sigma] = ask(sigma)
            return passes[index, sigma]

        return [search(run, scales[index]) for search in searches]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PepWarning)  # a network whose best sigma is 0 is a number of the table here
        found = in_lockstep(len(members.stack), job, members.run)
    return [list(column) for column in zip(*found, strict=True)]


def refit_temperatures(members: StackedMembers, found: list[Found]) -> list[Found]:
    """The same sigma with the best T of an ensemble of this size: tuned with 10 members, used with 25."""
    passes = members.run({index: one.sigma for index, one in enumerate(found)})
    return [
        Found(one.sigma, best_temperature(passes[index].averaged, passes[index].labels)[0])
        for index, one in enumerate(found)
    ]
