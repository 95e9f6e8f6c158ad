"""`calibrate`: calibrators, views and noise compete on the validation data; the fewest passes win, unless more pay.

A candidate is some members (the network alone, views of the inputs, noise of one size, noise by layer) followed by a
calibrator. Its score is the cross-fitted log-likelihood: every item is judged by a calibrator that has not seen it, and
by layer scales that have not seen it. The winner has the fewest passes within one standard error (paired, by example)
of the best and, at these passes, the fewest fitted numbers within half of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from peppermill.calibrators import CALIBRATORS, cross_fitted, warn_about_absent_classes
from peppermill.calibrators.temperature import TEMPERATURE_LIMITS, best_temperature, warn_at_limit
from peppermill.data import MEMORY_BYTES, Batches
from peppermill.ensemble import PepEnsemble
from peppermill.fitting import fit
from peppermill.likelihood import example_rows
from peppermill.plumbing.display import Table, shows_table
from peppermill.plumbing.nested import bytes_of, map_tensors
from peppermill.plumbing.progress import progress
from peppermill.tuning import search_named, usual_items
from peppermill.tuning.layer_scales import NoGradientError, Scales, fit_scales, starting_sigma
from peppermill.tuning.result import ROUNDING, Evaluation

if TYPE_CHECKING:
    from peppermill.engines import Engine
    from peppermill.noise import Noise
    from peppermill.parameters import Selection
    from peppermill.passes import MemberPass
    from peppermill.types import Data, EngineName, LawName, Likelihood, LikelihoodLike
    from peppermill.views import ViewsLike

NOTHING = "none"  # no calibrator
FOLDS = 5  # of the cross-fitting
CLEAR_LEAD = 2.0  # standard errors: calibrators and views this far behind without noise are not tried with noise
FEWER_NUMBERS = 0.5  # standard errors: with one, vector scaling wins where matrix is better, on 2 of 12 demo splits
HALF_STEPS = 50  # of the search for noise by layer on each half of the examples; the mean of both is used
MIN_LAYER_EXAMPLES = 500  # for noise by layer: with fewer, finding it is most of the work


@dataclass(frozen=True)
class Candidate:
    """One entry of the race: what it is, what it costs, and how it did."""

    name: str
    passes: int
    parameters: int  # fitted numbers
    nll: float  # cross-fitted, per item
    difference: float  # of the NLL from the choice's
    error: float  # the standard error of that difference, paired by example
    verdict: str  # one of `Race.verdicts`


@shows_table
@dataclass(frozen=True)
class Race:
    """All candidates, best first, on the items of the validation data; `spent` counts passes over all of them."""

    candidates: tuple[Candidate, ...]
    items: int
    spent: float
    note: str
    verdicts: ClassVar[tuple[str, ...]] = ("chosen", "worse", "not better by a standard error", "beaten by the best")

    @property
    def choice(self) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.verdict == "chosen")

    def table(self) -> Table:
        """Each candidate: name, passes, NLL, difference from the choice with its standard error, verdict."""
        rows = []
        for c in self.candidates:
            shown = "" if c.verdict == "chosen" else f"{round(c.difference, 4) + 0.0:+.4f} ± {c.error:.4f}"
            rows.append((c.name, str(c.passes), f"{c.nll:.4f}", shown.replace("-", "−"), c.verdict))
        return Table(("candidate", "passes", "NLL", "difference", "verdict"), rows, note=self.note)


def calibrate(
    model: nn.Module,
    validation: Data,
    passes: int = 10,
    *,
    views: ViewsLike = None,
    parameters: Selection = "kernels",
    noise: LawName | Noise = "gaussian",
    likelihood: LikelihoodLike = "categorical",
    batch_size: int = 500,
    engine: EngineName | Engine = "auto",
) -> PepEnsemble:
    """Find the best probabilities for at most `passes` forward passes; `pep.race` says what was tried and why this won.

    `passes=1` gives the best one-pass calibrator. `views`, as in "horizontal_flip", compete if you name them. The other
    arguments are those of `fit`.
    """
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"`passes={passes!r}` must be a whole number of forward passes, at least 1; 10 is usual.")
    network = PepEnsemble.at_sigma(
        model, 0.0, parameters=parameters, size=1, noise=noise, likelihood=likelihood, views=views, engine=engine
    )
    network, shown = network.with_recipe(views=()), network.recipe.views
    if len(shown) > passes:
        need = f"`views={views!r}` need {len(shown)} passes or more, one of them for the inputs as they are"
        raise ValueError(f"{need}, and `passes={passes}`: leave views out, or allow more passes.")
    course = _Course(Batches(validation, network.model, argument="validation", batch_size=batch_size))
    course.enter(network)
    if passes > 1:
        if shown:
            course.enter(network.with_recipe(size=len(shown), views=shown))
        close = {e.pep.recipe.views for e in course.entries if not course.pays(course.best(), e, CLEAR_LEAD)}
        for seen in sorted(close, key=len):
            course.enter_noise(network.with_recipe(size=passes, views=seen))
        best, rival = course.best(), course.best(most_passes=1)
        if course.pays(best, rival):
            for size in (2**k for k in range(1, passes.bit_length()) if 2**k < passes and best.pep.sigma > 0):
                course.enter(best.pep.with_size(size), best.half_scales, (best.calibrator,))
        else:
            course.note = "More passes are not better by more than a standard error: one pass is enough."
    return course.finish()


@dataclass(frozen=True)
class _Entry:
    pep: PepEnsemble  # without its calibrator
    half_scales: tuple[Scales, ...]  # noise by layer as each half of the examples finds it
    calibrator: str
    parameters: int
    log_likelihoods: Tensor  # cross-fitted, [N]

    @property
    def value(self) -> float:
        return float(self.log_likelihoods.mean())


class _Course:
    """The race while it runs: what has entered, and what it has cost."""

    def __init__(self, data: Batches) -> None:
        self.data, self.entries, self.spent, self.note = data, list[_Entry](), 0.0, ""
        self.examples, self.half_scales = torch.zeros(0), tuple[Scales, ...]()

    def enter(
        self, pep: PepEnsemble, half_scales: tuple[Scales, ...] = (), calibrators: tuple[str, ...] | None = None
    ) -> None:
        """These members with these calibrators, or with temperature scaling and all that showed promise with one pass.

        That is: better than temperature scaling, and not worse than the best by more than two standard errors.
        """
        passes = [self._pass(_with_scales(pep, scales)) for scales in half_scales] or [self._pass(pep)]
        found, is_odd = passes[-1], (passes[-1].examples % 2 == 1)[:, None]
        judged = torch.where(is_odd, passes[0].averaged, found.averaged)  # by noise that the other half found
        likelihood, classes, self.examples = pep.likelihood, judged.shape[1], found.examples.cpu()
        if not self.entries and likelihood.name == "categorical":
            then = "the race cannot judge them, and vector and matrix scaling leave them to the temperature."
            warn_about_absent_classes(found.labels, classes, then)
        if calibrators is None:
            alone = [e for e in self.entries if e.pep.passes == 1]
            usual = max((e.value for e in alone if e.calibrator == "temperature"), default=-math.inf)
            lost = [e.calibrator for e in alone if e.value <= usual or self.pays(self.best(1), e, CLEAR_LEAD)]
            suitable = [
                row.name
                for row in CALIBRATORS.values()
                if likelihood.name in row.likelihoods and classes <= row.most_classes
                if row.name == "temperature" or row.name not in lost
            ]
            if suitable and best_temperature(judged, found.labels)[0] <= 1.01 * TEMPERATURE_LIMITS[0]:
                suitable = []  # nearly all items are right: a T that low makes every later mistake with certainty
            calibrators = (*((NOTHING,) if pep.passes == 1 or not suitable else ()), *suitable)
        own = (pep.sigma > 0) + len(pep.recipe.noise.scales)
        for name in calibrators:
            if name == NOTHING:
                scores, fitted = likelihood.log_likelihoods(judged, found.labels), 0
            else:
                with progress(_name(pep, name), FOLDS) as tick:
                    scores = cross_fitted(name, judged, found.labels, likelihood, found.examples, FOLDS, tick)
                fitted = CALIBRATORS[name].numbers(classes)
            self.entries.append(_Entry(pep, half_scales, name, own + fitted, scores.cpu()))

    def enter_noise(self, pep: PepEnsemble) -> None:
        """Noise of one size, and noise by layer."""
        shared = self._searched(pep)
        if shared.sigma > 0:
            self.enter(shared)
        few = int(self.examples.max()) + 1 < MIN_LAYER_EXAMPLES
        if few or len(pep.recipe.selected) == 1 or starting_sigma(shared.search) == 0:
            return
        try:
            self.half_scales = self.half_scales or tuple(self._half_scales(shared, half) for half in (0, 1))
        except NoGradientError:  # noise by layer is found by gradients, and this network has none
            return
        both = tuple(
            (name, tuple(math.sqrt(a * b) for a, b in zip(one, other, strict=True)))
            for (name, one), (_, other) in zip(*self.half_scales, strict=True)
        )
        by_layer = self._searched(_with_scales(shared, both))
        if by_layer.sigma > 0:
            self.enter(by_layer, self.half_scales)

    def best(self, most_passes: float = math.inf) -> _Entry:
        """The entry with the largest likelihood among those with at most this many passes."""
        return max((e for e in self.entries if e.pep.passes <= most_passes), key=lambda e: e.value)

    def pays(self, entry: _Entry, rival: _Entry, errors: float = 1.0) -> bool:
        """Whether an entry beats another one by more than rounding and a standard error, or another number of them."""
        mean, error = _mean_and_error(entry.log_likelihoods - rival.log_likelihoods, self.examples)
        return mean > max(errors * error, ROUNDING)

    def simplest(self, entries: list[_Entry]) -> _Entry:
        """The entry with the fewest fitted numbers within half a standard error of the best of these."""
        best = max(entries, key=lambda e: e.value)
        alike = (e for e in entries if not self.pays(best, e, FEWER_NUMBERS))
        return min(alike, key=lambda e: (e.parameters, -e.value))

    def finish(self) -> PepEnsemble:
        """The choice, its calibrator fitted on all items, with the table of the race."""
        near = [e for e in self.entries if not self.pays(self.best(), e)]
        choice = self.simplest([e for e in near if e.pep.passes == min(e.pep.passes for e in near)])
        pep, rival = self._calibrated(choice), self.simplest([e for e in self.entries if e.pep.passes == 1])
        if pep.passes > 1 and rival.calibrator != NOTHING:
            pep = pep.with_recipe(one_pass=self._calibrated(rival).calibrator)
        candidates = []
        for entry in sorted(self.entries, key=lambda e: -e.value):
            own, lead = entry.pep.passes, choice.log_likelihoods - entry.log_likelihoods
            verdict = 0 if entry is choice else 3 if own < pep.passes else 1 if self.pays(choice, entry) else 2
            facts = _name(entry.pep, entry.calibrator), own, entry.parameters, -entry.value
            candidates.append(Candidate(*facts, *_mean_and_error(lead, self.examples), Race.verdicts[verdict]))
        items, tried = len(choice.log_likelihoods), pep.search.evaluations
        zero = Evaluation(0.0, self.entries[0].value * items, pep.temperature, choice.value * items)
        joint = pep.search.joint or choice.calibrator != NOTHING
        search = replace(pep.search, evaluations=tried or (zero,), items=items, passes=self.spent, joint=joint)
        return pep.with_recipe(search=search, race=Race(tuple(candidates), items, self.spent, self.note))

    def _calibrated(self, entry: _Entry) -> PepEnsemble:
        """The members of an entry with its calibrator, fitted on all items."""
        if entry.calibrator == NOTHING:
            return entry.pep
        found = self._pass(entry.pep)
        calibrator = CALIBRATORS[entry.calibrator].fit(found.averaged, found.labels, found.examples)
        warn_at_limit(calibrator.temperature)
        return entry.pep.with_calibrator(calibrator)

    def _pass(self, pep: PepEnsemble) -> MemberPass:
        self.spent += pep.passes
        return pep.member_pass(self.data)

    def _searched(self, pep: PepEnsemble) -> PepEnsemble:
        """The same members at their best sigma, with T tuned along."""
        joint, what = pep.likelihood.name != "gaussian", f"sigma of {_name(pep.with_sigma(1.0))}"
        tuner = search_named("two_stage")
        total = usual_items(tuner, self.data.count_items(), pep.size, joint)
        with progress(what, total) as tick:
            search = tuner.tune(pep.request(self.data, tick), joint)
        self.spent += search.passes or 0.0
        return pep.with_recipe(sigma=search.best.sigma, search=search)

    def _half_scales(self, shared: PepEnsemble, half: int) -> Scales:
        """Noise by layer, fitted on every second example."""
        temperature = None if shared.likelihood.name == "gaussian" else shared.search.best.temperature
        with progress("noise by layer") as tick:
            request = replace(shared.request(_half(self.data, half, shared.likelihood), tick), views=())
            scales, passes = fit_scales(request, starting_sigma(shared.search), temperature, steps=HALF_STEPS)
        self.spent += passes / 2
        return scales


def fit_or_calibrate(
    model: nn.Module, validation: Data, size: int = 10, temperature: bool = True, **options: Any
) -> PepEnsemble:
    """What `PepClassifier` and `PepCallback` do: `calibrate`, or `fit` if an option is one of `fit` alone.

    The rule of the race holds then, too: one pass wins unless the members beat it by more than a standard error.
    """
    if temperature and options.keys() <= signature(calibrate).parameters.keys():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"`size={size!r}` must be a whole number of members, at least 1.")
        return calibrate(model, validation, size, **options)
    joint = temperature and getattr(kind := options.get("likelihood"), "name", kind) != "gaussian"
    pep = fit(model, validation, size=size, temperature=joint, **options)
    if pep.one_pass is None or pep.passes == 1:
        return pep
    members, alone = pep.member_pass(validation), pep.one_pass.predict_items(validation)
    lead = pep.predictions_of(members).log_likelihoods - alone.log_likelihoods
    mean, error = _mean_and_error(lead.cpu(), members.examples.cpu())
    return pep if mean > max(error, ROUNDING) else pep.one_pass


def _mean_and_error(differences: Tensor, examples: Tensor) -> tuple[float, float]:
    """The mean over items and its standard error over examples."""
    mean, count = float(differences.mean()), int(examples.max()) + 1
    if not math.isfinite(mean):  # an item of probability 0
        return mean, 0.0
    sums = differences.new_zeros(count).index_add_(0, examples, differences - mean)
    return mean, float(sums.square().sum().sqrt()) / len(differences)


def _name(pep: PepEnsemble, calibrator: str = NOTHING) -> str:
    """What the table and the progress line call a candidate."""
    noise = " by layer" if pep.recipe.noise.scales else ""
    members = f"{pep.size} members{noise}" if pep.sigma else ""
    views = f"{seen} views" if (seen := len(pep.recipe.views[: pep.size])) > 1 else ""
    after = "" if calibrator == NOTHING else f"{calibrator} scaling"
    return ", ".join(filter(None, (members, views, after))) or "network"


def _with_scales(pep: PepEnsemble, scales: Scales) -> PepEnsemble:
    return pep.with_recipe(noise=replace(pep.recipe.noise, scales=scales))


def _half(data: Batches, half: int, likelihood: Likelihood) -> Batches:
    """Every second example that has items, of as much of the data as memory holds."""
    batches, count, size = [], 0, 0
    for inputs, labels in data:
        counted = torch.isin(torch.arange(len(labels), device=labels.device), example_rows(likelihood, labels))
        rows = (count + counted.cumsum(0)) % 2 != half  # the first example is number 1
        count, size = count + int(counted.sum()), size + bytes_of(inputs)
        if bool(rows.any()) and size <= 2 * MEMORY_BYTES:
            batch = map_tensors(lambda t, rows=rows: t[rows] if t.ndim and len(t) == len(rows) else t, (inputs, labels))
            batches.append(batch)
    return data.alike(batches)
