"""What the passes buy: one-pass calibrators, views, noise of one size and by layer, and what the race chooses.

The first split runs with several seeds of the noise, every other one with a seed of its own. Each split and seed is a
stage: a run that was killed continues with the first one that is missing. docs/race.md is written from the results.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import nll_loss
from torch.utils.data import DataLoader, TensorDataset

import peppermill as pm
from experiments.page.race_page import KIND, USUAL, VIEWS, write_page
from experiments.resume import Stages, fingerprint, plain, write_result
from experiments.settings import Machine, arithmetic
from experiments.settings import Settings as Table2Settings
from experiments.table1 import prepared_images, row_pictures, weights_of
from experiments.table1.imagenet_networks import NETWORKS
from experiments.table2.work import Work

MIRROR = "horizontal_flip"


@dataclass(frozen=True)
class Settings(Machine):
    """What to run."""

    out: Path = Path("results/race")  # the folder of the results
    networks: tuple[str, ...] = ("demo",)  # demo, a network of Table 1, or a row of Table 2
    splits: int = 10  # random halves of the images; for a row of Table 2, networks from other seeds
    noise_seeds: int = 5  # for the first split; every other one has a seed of its own
    passes: int = 10
    methods: str = "all"  # base; all; or into a file of their own: additions, each to PEP alone; views without noise
    images: int | None = None  # only the first images
    imagenet: Path | None = None  # the folder of the validation images
    labels: Path | None = None  # their classes, if the folder is flat
    weights: Path | None = None  # a file, or a folder of files with the networks' names
    tuning_share: float = 0.5  # of the images that tune
    batch_size: int = 500
    precision: str = "tf32"  # of products on a GPU: float32 or tf32; or float16, for the members alone
    only: tuple[int, ...] = ()  # run these splits alone and write no result: for several processes

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.methods not in STAGES:
            raise ValueError(f"`methods={self.methods!r}` must be one of {', '.join(STAGES)}.")


@dataclass(frozen=True, eq=False)
class Case:
    """One network with the images that tune it and those that test it; `items` numbers the latter."""

    model: Any
    tuning: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    items: Tensor
    mirrored: bool  # whether the network was trained with mirror images, too
    options: dict[str, Any]  # of `pm.fit`, that do not change its numbers


#: The methods: a title, whether the noise decides its numbers, and how it is made from a case, a seed and the passes.
METHODS: dict[str, tuple[bool, Callable[[Case, int, int], Any]]] = {
    "network": (False, lambda case, seed, passes: case.model),
    USUAL: (False, lambda case, seed, passes: pm.fit_temperature(case.model, case.tuning)),
    "vector scaling": (False, lambda case, seed, passes: pm.fit_calibrator(case.model, case.tuning, "vector")),
    "matrix scaling": (False, lambda case, seed, passes: matrix_scaling(case)),
    VIEWS: (False, lambda case, seed, passes: mirrored(case)),
    "PEP": (True, lambda case, seed, passes: members(case, seed, passes).without_temperature()),
    "PEP, T": (True, lambda case, seed, passes: members(case, seed, passes)),
    "PEP by layer, T": (True, lambda case, seed, passes: members(case, seed, passes, "layer")),
    "PEP, vector": (True, lambda case, seed, passes: again(case, members(case, seed, passes))),
    "PEP by layer, vector": (True, lambda case, seed, passes: by_layer(case, seed, passes, passes)),
    "PEP by layer, vector, m = 2": (True, lambda case, seed, passes: by_layer(case, seed, passes, 2)),
    "PEP by layer, vector, m = 4": (True, lambda case, seed, passes: by_layer(case, seed, passes, 4)),
    "PEP by layer, vector, m = 30": (True, lambda case, seed, passes: by_layer(case, seed, passes, 30)),
    "PEP by layer, matrix": (True, lambda case, seed, passes: members_and_matrix(case, seed, passes)),
    "PEP by filter, vector": (True, lambda case, seed, passes: again(case, members(case, seed, passes, "filter"))),
    "PEP from a pool, vector": (True, lambda case, seed, passes: chosen(case, seed, passes)),
    "PEP and mirror image, T": (True, lambda case, seed, passes: twins(case, seed, passes)),
    "laplace-torch, last layer": (False, lambda case, seed, passes: laplace_last_layer(case)),
    "laplace-torch, all weights": (False, lambda case, seed, passes: laplace_all_weights(case, passes)),
    "race": (True, lambda case, seed, passes: race(case, seed, passes)),
}


@lru_cache(maxsize=2)
def members(case: Case, seed: int, passes: int, scale: str | None = None) -> Any:
    """`pm.fit` with T and with this seed of the noise; kept for the methods that share the noise."""
    noise = pm.Noise(seed=seed)
    return pm.fit(case.model, case.tuning, size=passes, noise=noise, scale=scale, temperature=True, **case.options)


def again(case: Case, pep: Any, calibrator: str = "vector") -> Any:
    """The same members with another calibrator: what `pm.fit` does, too, after it has found sigma with T."""
    return pm.fit_calibrator(pep, case.tuning, calibrator)


def by_layer(case: Case, seed: int, passes: int, size: int, calibrator: str = "vector") -> Any:
    """Another number of members and another calibrator, with the noise by layer that `passes` members found."""
    return again(case, members(case, seed, passes, "layer").with_size(size), calibrator)


def few_classes(case: Case) -> bool:
    """Whether matrix scaling is for this many."""
    return int(case.tuning[1].max()) < 100


def matrix_scaling(case: Case) -> Any:
    """One pass with matrix scaling; None if there are too many classes."""
    return pm.fit_calibrator(case.model, case.tuning, "matrix") if few_classes(case) else None


def members_and_matrix(case: Case, seed: int, passes: int) -> Any:
    """Noise by layer with matrix scaling; None if there are too many classes."""
    return by_layer(case, seed, passes, passes, "matrix") if few_classes(case) else None


def chosen(case: Case, seed: int, passes: int) -> Any:
    """Members chosen among six times as many draws."""
    options = {"size": passes, "noise": pm.Noise(seed=seed), "pool": 6 * passes, "calibrator": "vector"} | case.options
    return pm.fit(case.model, case.tuning, **options)


def mirrored(case: Case) -> Any:
    """The network on the picture and on its mirror image, with T."""
    return pm.fit_temperature(pm.TestTimeAugmentation(case.model, MIRROR), case.tuning)


def twins(case: Case, seed: int, passes: int) -> Any:
    """Members of which every second one sees the mirror image; None if the network knows no mirror images."""
    options = {"size": passes, "noise": pm.Noise(seed=seed), "views": MIRROR, "temperature": True} | case.options
    return pm.fit(case.model, case.tuning, **options) if case.mirrored else None


def laplace_last_layer(case: Case) -> Any:
    """The last layer's Kronecker posterior on the tuning images, probit prediction; None where it does not fit.

    The prediction needs the gradient of every class by every weight.
    """
    if not find_spec("laplace") or not few_classes(case):
        return None
    from laplace import Laplace

    posterior = Laplace(_contiguous(case.model), "classification", "last_layer", "kron")
    posterior.fit(DataLoader(TensorDataset(*case.tuning), batch_size=500))
    posterior.optimize_prior_precision(method="marglik")
    return _on_device_of(case, partial(posterior, link_approx="probit"))


def laplace_all_weights(case: Case, passes: int) -> Any:
    """The diagonal posterior of all weights on the tuning images, members drawn from it; None where it does not fit.

    The tuning images choose the precision of the prior, 1 to 1e6, as they choose sigma for PEP.
    """
    if not find_spec("laplace") or not few_classes(case):
        return None
    from laplace import Laplace
    from laplace.curvature import AsdlGGN

    torch.manual_seed(0)
    tuning = DataLoader(TensorDataset(*case.tuning), batch_size=500)
    posterior = Laplace(_contiguous(case.model), "classification", "all", "diag", backend=AsdlGGN)
    posterior.fit(tuning)
    members = {"pred_type": "nn", "link_approx": "mc", "n_samples": passes}
    grid = {"log_prior_prec_min": 0, "log_prior_prec_max": 6, "grid_size": 13}
    posterior.optimize_prior_precision(method="gridsearch", val_loader=tuning, loss=_mean_nll, **grid, **members)
    predict = _on_device_of(case, partial(posterior, **members))
    predict.passes = passes  # type: ignore[attr-defined]
    return predict


def _contiguous(model: Any) -> Any:
    """A copy with weights in the usual order, as the library needs them."""
    return copy.deepcopy(model).to(memory_format=torch.contiguous_format)


def _mean_nll(probs: Tensor, labels: Tensor) -> Tensor:
    """The library's own sum stays infinite once a label had probability 0."""
    return nll_loss(probs.clamp(min=1e-30).log(), labels)


def _on_device_of(case: Case, posterior: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Log-probabilities, a few images at a time."""

    def predict(images: Tensor) -> Tensor:
        parts = images.to(case.tuning[1].device).split(500)
        return torch.cat([posterior(part).detach().log() for part in parts]).to(images.device)

    return predict


def race(case: Case, seed: int, passes: int) -> Any:
    """What `pm.calibrate` chooses."""
    views = MIRROR if case.mirrored else None
    return pm.calibrate(case.model, case.tuning, passes, views=views, noise=pm.Noise(seed=seed), **case.options)


BASE = (
    *("network", USUAL, "vector scaling", "matrix scaling", VIEWS),
    *("PEP, T", "PEP and mirror image, T", "race"),
)
ADDITIONS = tuple(title for title in METHODS if title not in BASE)  # they cost most of the time
SHOWN = (USUAL, "vector scaling", "PEP, T", "PEP by layer, vector", "race")

#: The stages of each split and seed for `Settings.methods`: the end of a stage's name, and what it examines.
STAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "base": {"": BASE},
    "additions": {"-usual": (USUAL,), "-additions": ADDITIONS},
    "views": {"-views": (USUAL, VIEWS)},
    "all": {"": BASE, "-additions": ADDITIONS},
}


def main(settings: Settings) -> dict[str, Any]:
    """Every network: computed, continued, or read if it is done; then the page."""
    for name in settings.networks:
        began, each, digest = time.monotonic(), list[dict[str, Any]](), ""
        for split, case in enumerate(cases(name, settings)):
            digest = digest or fingerprint(*case.tuning, *case.test)
            if settings.only and split not in settings.only:
                continue
            stages = Stages(settings.checkpoints / "race", digest)
            for seed in range(settings.noise_seeds) if split == 0 else [split]:
                made_of = {"passes": settings.passes, "split": fingerprint(case.items), "seed": seed}
                made_of |= {} if settings.precision == "tf32" else {"precision": settings.precision}
                methods: dict[str, Any] = {}
                for suffix, titles in STAGES[settings.methods].items():
                    with arithmetic(settings.precision), warnings.catch_warnings():
                        warnings.simplefilter("ignore", pm.PepWarning)  # a best sigma of 0 is a number of the table
                        compute = partial(examine, case, seed, titles, split > 0 or seed == 0, settings.passes)
                        methods |= stages.json(f"{name}-{split}-{seed}{suffix}", made_of, compute)
                run = {"split": split, "seed": seed, "tuning": len(case.tuning[1]), "numbers": case.items.tolist()}
                each.append(run | {"methods": {title: methods[title] for title in METHODS if title in methods}})
                shown = ", ".join(f"{m} {v['nll']:.4f}" for m, v in methods.items() if m in SHOWN)
                choice = f"; {methods['race']['choice']}" if "race" in methods else ""
                settings.say(f"{name}, split {split + 1}, noise {seed + 1}: {shown}{choice}")
        if settings.only:
            continue
        file, content = settings.methods, {"network": name, "methods": rows_of(each)}
        if settings.methods in ("base", "all"):
            file, content = "race", content | races_of(each, content["methods"])
        content |= {"seconds": time.monotonic() - began, "device": settings.device}
        content |= {"settings": settings.identity(), "data": digest}
        write_result(settings.out / f"{file}-{name}.json", KIND, content, seed=0)
    return {} if settings.only else write_page(settings.out, tuple(METHODS), ADDITIONS)


def options_of(settings: Settings, pixels: int = 0) -> dict[str, Any]:
    """A GPU takes larger batches; and no CUDA graphs for small images: a capture does not pay for one prediction."""
    engine = "auto" if settings.device == "cpu" or pixels > 100**2 else "loop"
    low = ":float16" if settings.precision == "float16" else ""
    return {"batch_size": settings.batch_size, "engine": f"{engine}{low}"}


def cases(name: str, settings: Settings) -> Iterator[Case]:
    """One case for each split."""
    if name == "demo":
        (first, second), model = pm.demo.data(), pm.demo.network().to(settings.device)
        inputs, labels = (torch.cat(pair).to(settings.device) for pair in zip(first, second, strict=True))
        yield from halves(model, inputs, labels, settings, mirror=False)
    elif name in NETWORKS:
        network = NETWORKS[name]
        pictures = row_pictures(network, settings)  # type: ignore[arg-type]
        model = network.build(weights_of(name, settings)).to(settings.device)  # type: ignore[arg-type]
        if all(getattr(layer, "groups", 1) == 1 for layer in model.modules()):
            model = model.to(memory_format=torch.channels_last)  # faster on a GPU, but not for depthwise convolutions
        yield from halves(model, *prepared_images(network, pictures, model, settings), settings, mirror=True)
    else:
        shared = {key: getattr(settings, key) for key in ("data", "checkpoints", "device", "precision")}
        work = Work(name, Table2Settings(rows=(name,), models=settings.splits, **shared))
        for model in work.networks:
            count = len(work.data.test[1])
            mirrored, items = name.startswith("cifar"), torch.arange(count)
            yield Case(model, work.data.validation, work.data.test, items, mirrored, options_of(settings))


def halves(model: Any, inputs: Tensor, labels: Tensor, settings: Settings, mirror: bool) -> Iterator[Case]:
    """Random splits of the images into those that tune and those that test."""
    count = len(labels) if settings.images is None else min(settings.images, len(labels))
    for split in range(settings.splits):
        order = torch.from_numpy(np.random.default_rng(split).permutation(count))
        tuning, test = order.split([int(count * settings.tuning_share), count - int(count * settings.tuning_share)])
        tuning, test = tuning.sort().values, test.sort().values
        parts = [(inputs[part], labels[part]) for part in (tuning, test)]
        yield Case(model, *parts, test, mirror, options_of(settings, inputs[0, 0].numel()))


def examine(case: Case, seed: int, titles: Iterable[str], first: bool, passes: int) -> dict[str, Any]:
    """These methods on one split with one seed, those without noise with the first one only; the NLL of every item."""
    found: dict[str, Any] = {}
    for title in titles:
        noisy, make = METHODS[title]
        predictor = make(case, seed, passes) if noisy or first else None
        if predictor is None:
            continue
        predictions = pm.predict(predictor, case.test)
        found[title] = {
            "nll": float(-predictions.log_likelihoods.mean()),
            "ece": float(pm.metrics.expected_calibration_error(predictions.log_probs, predictions.labels)),
            "error": float((predictions.log_probs.argmax(1) != predictions.labels).double().mean()),
            "passes": getattr(predictor, "passes", 1),
            "items": [round(float(value), 6) for value in -predictions.log_likelihoods],
        }
        if title == "race":
            choice = predictor.race.choice
            found[title] |= {"choice": choice.name, "estimate": choice.nll, "spent": predictor.race.spent}
    return found


def rows_of(each: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every method's means and spreads over splits and seeds."""
    usual = {one["split"]: one["methods"][USUAL]["nll"] for one in reversed(each) if USUAL in one["methods"]}
    rows = {}
    for title in (title for title in METHODS if any(title in one["methods"] for one in each)):
        by_split: dict[int, list[dict[str, Any]]] = {}
        for one in each:
            if title in one["methods"]:
                by_split.setdefault(one["split"], []).append(one["methods"][title])
        means = {
            key: [float(np.mean([run[key] for run in runs])) for runs in by_split.values()]
            for key in ("nll", "ece", "error", "passes")
        }
        seeds = [np.std([run["nll"] for run in runs], ddof=1) for runs in by_split.values() if len(runs) > 1]
        rows[title] = {key: float(np.mean(values)) for key, values in means.items()}
        rows[title]["from T"] = float(np.mean(np.subtract(means["nll"], [usual[split] for split in by_split])))
        rows[title]["splits"] = len(by_split)
        rows[title] |= {
            "over splits": float(np.std(means["nll"], ddof=1)) if len(by_split) > 1 else 0.0,
            "over seeds": float(np.mean(seeds)) if seeds else 0.0,
        }
    return plain(rows)


def races_of(each: list[dict[str, Any]], rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the race chose and spent, paired tests over the items' mean differences, and how good its estimate was."""
    best = min((title for title in (USUAL, "vector scaling", "matrix scaling") if title in rows),
               key=lambda title: rows[title]["nll"])  # fmt: skip
    pairs = {f"race - {title}": paired(each, title) for title in dict.fromkeys((USUAL, best))}
    choices = [one["methods"]["race"]["choice"] for one in each]
    counts = {name: choices.count(name) for name in sorted(set(choices))}
    races = []
    for one in each:
        found, items = one["methods"]["race"], one["methods"]["race"]["items"]
        error = float(np.std(items) * np.sqrt(1 / one["tuning"] + 1 / len(items)))  # both numbers are means of a sample
        kept = {key: found[key] for key in ("choice", "passes", "nll", "estimate")}
        races.append({"split": one["split"], "seed": one["seed"], **kept, "error of the difference": error})
    inside = [abs(one["estimate"] - one["nll"]) <= 2 * one["error of the difference"] for one in races]
    spent = float(np.mean([one["methods"]["race"]["spent"] for one in each]))
    return plain({"best one pass": best, "paired": pairs, "choices": counts, "runs": len(each), "races": races,
                  "estimate within two standard errors": float(np.mean(inside)), "spent": spent})  # fmt: skip


def paired(each: list[dict[str, Any]], other: str) -> dict[str, float]:
    """The race against another method: every item's difference, averaged over seeds, then over the splits that test it.

    The first split runs with several seeds of the noise, and counts as much as any other.
    """
    theirs = {one["split"]: one["methods"][other]["items"] for one in each if other in one["methods"]}
    of_split: dict[int, list[Any]] = {}
    for one in each:
        of_split.setdefault(one["split"], []).append(np.subtract(one["methods"]["race"]["items"], theirs[one["split"]]))
    of_item: dict[int, list[float]] = {}
    for one in {one["split"]: one for one in each}.values():
        for number, difference in zip(one["numbers"], np.mean(of_split[one["split"]], axis=0), strict=True):
            of_item.setdefault(number, []).append(difference)
    means = np.array([np.mean(values) for values in of_item.values()])
    if not means.any():
        return {"mean": 0.0, "error": 0.0, "p": 1.0}
    test = stats.ttest_1samp(means, 0.0)
    return {"mean": float(means.mean()), "error": float(stats.sem(means)), "p": float(test.pvalue)}
