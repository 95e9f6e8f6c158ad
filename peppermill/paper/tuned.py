"""sigma* of S networks: by the paper's own search, and by ours, each network on its own curve, all in lockstep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from peppermill.calibrators.temperature import best_temperature
from peppermill.engines.loop import MemberPass
from peppermill.likelihood import ensemble_log_likelihood
from peppermill.paper.lockstep import in_lockstep
from peppermill.paper.members import StackedMembers
from peppermill.tuning.search import golden_section
from peppermill.tuning.subsample import Sample
from peppermill.tuning.two_stage import tune_quickly
from peppermill.types import PepWarning

LOWER, UPPER = 0.0, 0.1  # the authors' scripts
ITERATIONS = 10  # the authors' scripts


@dataclass(frozen=True)
class One:
    """One network of the stack: its passes over all images or over a sample, its sample, the scale of its weights."""

    run: Callable[[float, Sample | None], MemberPass]
    choose: Callable[[MemberPass], Sample | None]
    scale: float  # the root mean square of the selected weights


#: What a search asks for: a sigma, on a sample or on all images.
Question = tuple[float, Sample | None]

#: A search: one network in, sigma* out.
Search = Callable[[One], "Found"]


@dataclass(frozen=True)
class Found:
    """What a search found for one network."""

    sigma: float
    temperature: float = 1.0


def paper_sigma(one: One) -> Found:
    """The paper's search: the midpoint of the bracket at the start of the tenth iteration; sigma = 0 is never tried."""

    def log_likelihood(sigma: float) -> float:
        return float(ensemble_log_likelihood(one.run(sigma, None).member_log_likelihoods))

    search = golden_section(log_likelihood, LOWER, UPPER, ITERATIONS - 1)
    return Found((search.lower + search.upper) / 2)


def our_sigma(one: One) -> Found:
    """`pm.fit`: sigma = 0 is in the race, and the range is found."""
    return Found(tune_quickly(one.run, one.choose, scale=one.scale).best.sigma)


def our_sigma_and_temperature(one: One) -> Found:
    """`pm.fit(..., temperature=True)`."""
    best = tune_quickly(one.run, one.choose, scale=one.scale, joint=True).best
    return Found(best.sigma, best.temperature)


def tune_together(members: StackedMembers, *searches: Search) -> list[list[Found]]:
    """What each of the searches finds for each network, [searches][S]; a sigma asked for twice is paid once."""
    passes: dict[tuple[int, float], MemberPass] = {}
    scales = members.scales()

    def job(index: int, ask: Callable[[Question], MemberPass]) -> list[Found]:
        def run(sigma: float, sample: Sample | None) -> MemberPass:
            if sample is not None:
                return ask((sigma, sample))
            if (index, sigma) not in passes:
                passes[index, sigma] = ask((sigma, None))
            return passes[index, sigma]

        return [search(One(run, members.sample, scales[index])) for search in searches]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PepWarning)  # a network whose best sigma is 0 is a number of the table here
        found = in_lockstep(len(members.stack), job, lambda questions: _answers(members, questions))
    return [list(column) for column in zip(*found, strict=True)]


def _answers(members: StackedMembers, questions: Mapping[int, Question]) -> dict[int, MemberPass]:
    """Of all networks that ask about all images together, and of all that ask about a sample of their own."""
    samples = {index: sample for index, (_, sample) in questions.items() if sample is not None}
    small = {index: sigma for index, (sigma, _) in questions.items() if index in samples}
    whole = {index: sigma for index, (sigma, _) in questions.items() if index not in samples}
    return (members.run(whole) if whole else {}) | (members.run_samples(small, samples) if small else {})


def refit_temperatures(members: StackedMembers, found: list[Found]) -> list[Found]:
    """The same sigma with the best T of an ensemble of this size: tuned with 10 members, used with 25."""
    passes = members.run({index: one.sigma for index, one in enumerate(found)})
    return [
        Found(one.sigma, best_temperature(passes[index].averaged, passes[index].labels)[0])
        for index, one in enumerate(found)
    ]
