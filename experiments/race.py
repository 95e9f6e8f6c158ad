"""What the passes buy: one-pass calibrators, views, noise of one size and by layer, and what the race chooses.

The first split runs with several seeds of the noise, every other one with a seed of its own. Each split and seed is a
stage: a run that was killed continues with the first one that is missing. docs/race.md is written from the results.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import peppermill as pm
from experiments.page.markdown import holm, title_of
from experiments.resume import Stages, fingerprint, plain, read_result, write_result
from experiments.settings import Machine, arithmetic
from experiments.settings import Settings as Table2Settings
from experiments.table1 import prepared_images, row_pictures, weights_of
from experiments.table1.imagenet_networks import NETWORKS
from experiments.table2.work import Work

KIND = "peppermill race"
PAGE = Path("docs/race.md")
MIRROR = "horizontal_flip"


@dataclass(frozen=True)
class Settings(Machine):
    """What to run."""

    out: Path = Path("results/race")  # the folder of the results
    networks: tuple[str, ...] = ("demo",)  # demo, a network of Table 1, or a row of Table 2
    splits: int = 10  # random halves of the images; for a row of Table 2, networks from other seeds
    noise_seeds: int = 5  # for the first split; every other one has a seed of its own
    passes: int = 10
    additions: bool = True  # each addition to PEP alone, too; they cost most of the time
    images: int | None = None  # only the first images
    imagenet: Path | None = None  # the folder of the validation images
    labels: Path | None = None  # their classes, if the folder is flat
    weights: Path | None = None  # a file, or a folder of files with the networks' names
    tuning_share: float = 0.5  # of the images that tune
    batch_size: int = 500
    precision: str = "tf32"  # of products on a GPU: float32 or tf32; or float16, for the members alone
    only: int | None = None  # run this split alone and write no result: for several processes


@dataclass(frozen=True, eq=False)
class Case:
    """One network with the images that tune it and those that test it; `items` numbers the latter."""

    model: Any
    tuning: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    items: Tensor
    mirrored: bool  # whether mirror images mean the same
    options: dict[str, Any]  # of `pm.fit`, that do not change its numbers


#: The methods: a title, whether the noise decides its numbers, and how it is made from a case, a seed and the passes.
METHODS: dict[str, tuple[bool, Callable[[Case, int, int], Any]]] = {
    "network": (False, lambda case, seed, passes: case.model),
    "temperature scaling": (False, lambda case, seed, passes: pm.fit_temperature(case.model, case.tuning)),
    "vector scaling": (False, lambda case, seed, passes: pm.fit_calibrator(case.model, case.tuning, "vector")),
    "matrix scaling": (False, lambda case, seed, passes: matrix_scaling(case)),
    "mirror image, T": (False, lambda case, seed, passes: mirrored(case)),
    "PEP": (True, lambda case, seed, passes: members(case, seed, passes)),
    "PEP, T": (True, lambda case, seed, passes: members(case, seed, passes, calibrator="temperature")),
    "PEP by layer, T": (True, lambda case, seed, passes: by_layer(case, seed, passes)),
    "PEP, vector": (True, lambda case, seed, passes: members(case, seed, passes, calibrator="vector")),
    "PEP by layer, vector": (True, lambda case, seed, passes: sized(case, seed, passes, passes)),
    "PEP by layer, vector, m = 2": (True, lambda case, seed, passes: sized(case, seed, passes, 2)),
    "PEP by layer, vector, m = 4": (True, lambda case, seed, passes: sized(case, seed, passes, 4)),
    "PEP by layer, vector, m = 30": (True, lambda case, seed, passes: sized(case, seed, passes, 30)),
    "PEP by layer, matrix": (True, lambda case, seed, passes: members_and_matrix(case, seed, passes)),
    "PEP by filter, vector": (True, lambda case, seed, passes: members(case, seed, passes, "filter", "vector")),
    "PEP from a pool, vector": (True, lambda case, seed, passes: chosen(case, seed, passes)),
    "PEP and mirror image, T": (True, lambda case, seed, passes: twins(case, seed, passes)),
    "laplace-torch, last layer": (False, lambda case, seed, passes: laplace(case)),
    "race": (True, lambda case, seed, passes: race(case, seed, passes)),
}


def members(case: Case, seed: int, passes: int, scale: str | None = None, calibrator: str | None = None) -> Any:
    """`pm.fit` with this seed of the noise."""
    noise = pm.Noise(seed=seed)
    return pm.fit(case.model, case.tuning, size=passes, noise=noise, scale=scale, calibrator=calibrator, **case.options)


@lru_cache(maxsize=1)
def by_layer(case: Case, seed: int, passes: int) -> Any:
    """Noise by layer with T; kept for the methods that share its noise."""
    return members(case, seed, passes, "layer", "temperature")


def sized(case: Case, seed: int, passes: int, size: int, calibrator: str = "vector") -> Any:
    """Another number of members and another calibrator, with the noise by layer that `passes` members found."""
    noise = by_layer(case, seed, passes).perturbation.noise
    return pm.fit(case.model, case.tuning, size=size, noise=noise, calibrator=calibrator, **case.options)


def few_classes(case: Case) -> bool:
    """Whether matrix scaling is for this many."""
    return int(case.tuning[1].max()) < 100


def matrix_scaling(case: Case) -> Any:
    """One pass with matrix scaling; None if there are too many classes."""
    return pm.fit_calibrator(case.model, case.tuning, "matrix") if few_classes(case) else None


def members_and_matrix(case: Case, seed: int, passes: int) -> Any:
    """Noise by layer with matrix scaling; None if there are too many classes."""
    return sized(case, seed, passes, passes, "matrix") if few_classes(case) else None


def chosen(case: Case, seed: int, passes: int) -> Any:
    """Members chosen among six times as many draws."""
    options = {"size": passes, "noise": pm.Noise(seed=seed), "pool": 6 * passes, "calibrator": "vector"} | case.options
    return pm.fit(case.model, case.tuning, **options)


def mirrored(case: Case) -> Any:
    """The network on the picture and on its mirror image, with T; None where that makes no sense."""
    return pm.fit_temperature(pm.TestTimeAugmentation(case.model, MIRROR), case.tuning) if case.mirrored else None


def twins(case: Case, seed: int, passes: int) -> Any:
    """Members of which every second one sees the mirror image; None where that makes no sense."""
    options = {"size": passes, "noise": pm.Noise(seed=seed), "views": MIRROR, "temperature": True} | case.options
    return pm.fit(case.model, case.tuning, **options) if case.mirrored else None


def laplace(case: Case) -> Any:
    """The last layer's Kronecker posterior on the tuning images, probit prediction; None without the library."""
    if not find_spec("laplace"):
        return None
    from laplace import Laplace

    images, labels = case.tuning
    posterior = Laplace(copy.deepcopy(case.model), "classification", "last_layer", "kron")
    posterior.fit(DataLoader(TensorDataset(images, labels), batch_size=500))
    posterior.optimize_prior_precision(method="marglik")
    return lambda images: posterior(images.to(labels.device), link_approx="probit").log().to(images.device)


def race(case: Case, seed: int, passes: int) -> Any:
    """What `pm.calibrate` chooses."""
    views = MIRROR if case.mirrored else None
    return pm.calibrate(case.model, case.tuning, passes, views=views, noise=pm.Noise(seed=seed), **case.options)


def main(settings: Settings) -> dict[str, Any]:
    """Every network: computed, continued, or read if it is done; then the page."""
    for name in settings.networks:
        began, each, digest = time.monotonic(), list[dict[str, Any]](), ""
        for split, case in enumerate(cases(name, settings)):
            digest = digest or fingerprint(*case.tuning, *case.test)
            if settings.only not in (None, split):
                continue
            stages = Stages(settings.checkpoints / "race", digest)
            for seed in range(settings.noise_seeds) if split == 0 else [split]:
                made_of = {"passes": settings.passes, "split": fingerprint(case.items), "seed": seed}
                made_of |= {} if settings.additions else {"additions": False}
                made_of |= {} if settings.precision == "tf32" else {"precision": settings.precision}
                with arithmetic(settings.precision), warnings.catch_warnings():
                    warnings.simplefilter("ignore", pm.PepWarning)  # a best sigma of 0 is a number of the table
                    compute = partial(examine, case, seed, split > 0 or seed == 0, settings)
                    found = stages.json(f"{name}-{split}-{seed}", made_of, compute)
                each.append({"split": split, "seed": seed, "tuning": len(case.tuning[1]), **found})
                shown = ", ".join(f"{m} {v['nll']:.4f}" for m, v in found["methods"].items() if m in SHOWN)
                settings.say(f"{name}, split {split + 1}, noise {seed + 1}: {shown}; chosen: {found['choice']}")
        if settings.only is not None:
            continue
        content = {"network": name, **summary(each), "seconds": time.monotonic() - began, "device": settings.device}
        content |= {"settings": settings.identity(), "data": digest}
        write_result(settings.out / f"race-{name}.json", KIND, content, seed=0)
    return {} if settings.only is not None else write_page(settings.out)


WITHOUT_ADDITIONS = (
    *("network", "temperature scaling", "vector scaling", "matrix scaling", "mirror image, T"),
    *("PEP, T", "PEP and mirror image, T", "race"),
)
SHOWN = ("temperature scaling", "vector scaling", "PEP, T", "PEP by layer, vector", "race")


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


def examine(case: Case, seed: int, first: bool, settings: Settings) -> dict[str, Any]:
    """Every method on one split with one seed, those without noise with the first one only; the NLL of every item."""
    found, choice = {}, ""
    for title, (noisy, make) in METHODS.items():
        if not settings.additions and title not in WITHOUT_ADDITIONS:
            continue
        predictor = make(case, seed, settings.passes) if noisy or first else None
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
            choice, estimate = predictor.race.choice.name, predictor.race.choice.nll
            found[title] |= {"estimate": estimate, "spent": predictor.race.spent}
    return {"methods": found, "choice": choice, "numbers": case.items}


def summary(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and spreads over splits and seeds, and paired tests over the items' mean differences."""
    methods = list(dict.fromkeys(title for one in each for title in one["methods"]))
    rows = {}
    for title in methods:
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
        rows[title] |= {
            "over splits": float(np.std(means["nll"], ddof=1)) if len(by_split) > 1 else 0.0,
            "over seeds": float(np.mean(seeds)) if seeds else 0.0,
        }
    one_pass = [title for title in ("temperature scaling", "vector scaling", "matrix scaling") if title in rows]
    best = min(one_pass, key=lambda title: rows[title]["nll"])
    pairs = {f"race - {title}": paired(each, title) for title in dict.fromkeys(("temperature scaling", best))}
    counts = {name: sum(one["choice"] == name for one in each) for name in {one["choice"] for one in each}}
    inside = []
    for one in each:
        found, items = one["methods"]["race"], one["methods"]["race"]["items"]
        error = np.std(items) * np.sqrt(1 / one["tuning"] + 1 / len(items))  # both numbers are means of a sample
        inside.append(abs(found["estimate"] - found["nll"]) <= 2 * error)
    spent = float(np.mean([one["methods"]["race"]["spent"] for one in each]))
    return plain({"methods": rows, "best one pass": best, "paired": pairs, "choices": counts, "runs": len(each),
                  "estimate within two standard errors": float(np.mean(inside)), "spent": spent})  # fmt: skip


def paired(each: list[dict[str, Any]], other: str) -> dict[str, float]:
    """The race against another method: every item's difference, averaged over the splits and seeds that test it."""
    plain_runs = {one["split"]: one["methods"][other]["items"] for one in each if other in one["methods"]}
    total: dict[int, list[float]] = {}
    for one in each:
        for number, mine, theirs in zip(
            one["numbers"], one["methods"]["race"]["items"], plain_runs[one["split"]], strict=True
        ):
            total.setdefault(number, []).append(mine - theirs)
    means = np.array([np.mean(values) for values in total.values()])
    if not means.any():
        return {"mean": 0.0, "error": 0.0, "p": 1.0}
    test = stats.ttest_1samp(means, 0.0)
    return {"mean": float(means.mean()), "error": float(stats.sem(means)), "p": float(test.pvalue)}


def write_page(folder: Path) -> dict[str, Any]:
    """docs/race.md from all results in the folder."""
    contents = [read_result(path, KIND) for path in sorted(folder.glob("race-*.json"))]
    found = {content["network"]: content for content in contents if content}
    PAGE.write_text(page(found), encoding="utf-8")
    return found


def _mirror_is_enough(rows: dict[str, Any]) -> bool:
    """Whether two views without noise are better than what the race chooses, for fewer passes."""
    mirror, race = rows.get("mirror image, T"), rows["race"]
    return mirror is not None and mirror["nll"] < race["nll"] and mirror["passes"] < race["passes"]


def page(found: dict[str, dict[str, Any]]) -> str:
    """The page: a table for each network, and what holds."""
    lines = [
        "# The race: what do the passes buy?",
        "",
        "Which method gives the best probabilities, and do its forward passes pay? Test NLL, mean over random splits",
        "of the images (for networks of Table 2: over trained networks). *Splits* is the standard deviation over them,",
        "*seeds* over seeds of the noise on the first split; every other split has a seed of its own. laplace-torch is",
        "fitted on the tuning images, as the others are, and for the last layer alone: its Kronecker posterior over",
        "all weights refuses batch norm, which every network here has, and a diagonal one was not run.",
        "`python -m experiments race` writes this page from the files in results/race.",
    ]
    adjusted = holm({(name, pair): test["p"] for name, c in found.items() for pair, test in c["paired"].items()})
    for title in ("temperature scaling", "the best one-pass calibrator"):
        tests = [
            test | {"p": adjusted[name, pair]}
            for name, c in found.items()
            for pair, test in c["paired"].items()
            if pair == f"race - {title if title in c['methods'] else c['best one pass']}"
        ]
        clear = [test["mean"] < 0 for test in tests if test["p"] < 0.05]
        lines += [
            "",
            f"Against {title}, the race's choice is significantly better on {sum(clear)} of {len(tests)} networks, and "
            f"significantly worse on {len(clear) - sum(clear)}.",
        ]
    lines += [
        "",
        "The NLL of each; in brackets the passes. A star marks where the race's choice differs significantly.",
        "",
        "| network | network as it is | temperature scaling | best one-pass calibrator | mirror image, T | race |",
        "|---|---|---|---|---|---|",
    ]
    for name, content in found.items():
        rows, best, cells = content["methods"], content["best one pass"], []
        for title in ("network", "temperature scaling", best, "mirror image, T"):
            clear = adjusted.get((name, f"race - {title}"), 1.0) < 0.05
            cells.append(f"{rows[title]['nll']:.4f}{'*' * clear}" if title in rows else "")
        cells[2] += f" ({best.split()[0]})"
        race = f"**{rows['race']['nll']:.4f}** ({rows['race']['passes']:.1f})"
        lines.append(f"| {title_of(name)} | {' | '.join(cells)} | {race} |")
    regrets = [title_of(name) for name, c in found.items() if _mirror_is_enough(c["methods"])]
    if regrets:
        lines += [
            "",
            "Two views with T alone have a lower NLL than the race's choice, and need fewer passes, on "
            f"{'; '.join(regrets)}: one standard error on the tuning images may not show that noise adds nothing.",
        ]
    for name, content in found.items():
        made, asked = content["provenance"], content["settings"]
        lines += [
            "",
            f"## {title_of(name)}",
            "",
            "| method | passes | NLL | splits | seeds | ECE % | error % |",
            "|---|---|---|---|---|---|---|",
        ]
        for title, row in content["methods"].items():
            known = {"over splits": asked["splits"] > 1, "over seeds": asked["noise_seeds"] > 1}
            spreads = " | ".join(f"{row[name]:.4f}" if several else "" for name, several in known.items())
            scores = f"{100 * row['ece']:.2f} | {100 * row['error']:.2f}"
            lines.append(f"| {title} | {row['passes']:.3g} | {row['nll']:.4f} | {spreads} | {scores} |")
        choices = sorted(content["choices"].items(), key=lambda item: (-item[1], item[0]))
        chosen = ", ".join(f"{choice} ({count} of {content['runs']})" for choice, count in choices)
        images = f" of {asked['images']:,} images" if asked.get("images") else ""
        lines += [
            "",
            f"Splits{images}: {asked['splits']}; seeds of the noise on the first one: {asked['noise_seeds']}.",
            f"The race chose: {chosen}. It spent {content['spent']:.0f} forward passes over the tuning images.",
        ]
        for pair, test in content["paired"].items():
            p = adjusted[name, pair]
            words = (
                "not significant"
                if p >= 0.05
                else "significantly better"
                if test["mean"] < 0
                else "significantly worse"
            )
            lines.append(f"- {pair}: {test['mean']:+.4f} ± {test['error']:.4f}, p = {p:.2g} after Holm: {words}.")
        share = content["estimate within two standard errors"]
        lines.append(
            f"- Its own estimate was within two standard errors of the test result in {100 * share:.0f} % of the runs."
        )
        lines.append(f"- Made by `{made['command']}` at {made.get('commit', 'an unknown commit')}.")
    return "\n".join(lines) + "\n"
