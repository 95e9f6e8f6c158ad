"""Why does PEP gain less on our ResNet50 than in the printed row? One change at a time, and what is left.

Members pass over all images once at each sigma, for every way to prepare the images and for both values of batch norm's
epsilon that Keras has had. Numbers of tuning images and members, the printed sigma, a wider range and a harder set of
images are then arithmetic on the same passes. Each way is a stage: a run that was killed continues.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn

import peppermill as pm
from experiments import table1
from experiments.printed import TABLE1_NETWORKS, printed_fit, printed_score
from experiments.resume import Stages, fingerprint, write_result
from experiments.settings import arithmetic
from experiments.table1.imagenet import WAYS, listing, pictures
from experiments.table1.imagenet_networks import PRINTED_RANGE, network_named
from experiments.table1.resnet50 import EPSILON
from experiments.table1.split_methods import splits_of

KIND = "peppermill gap"
KERAS_3 = "the epsilon of batch norm in Keras 3"
WIDER_RANGE, SHORTER_RANGE = (6e-3, 8e-3), PRINTED_RANGE[2:6]  # beyond the paper's, and around the best sigma


@dataclass(frozen=True)
class Settings(table1.Settings):
    """What to run."""

    networks: tuple[str, ...] = ("ResNet50",)  # with a printed row
    precision: str = "tf32"  # of products on a GPU: float32 or tf32; or float16, for the members alone
    tuning: int = 1000  # images that tune, of those that there are
    splits: int = 20
    noise_seeds: int = 1
    ways: tuple[str, ...] = (*WAYS, KERAS_3)  # the first is what the others are compared with

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.networks) != 1 or self.networks[0] not in TABLE1_NETWORKS:
            raise ValueError(f"`networks` must be one network with a printed row: {', '.join(TABLE1_NETWORKS)}.")
        if self.ways[:1] != WAYS[:1] or not {*self.ways} <= {*WAYS, KERAS_3}:
            known = ", ".join((*WAYS, KERAS_3))
            raise ValueError(f"`ways` must begin with {WAYS[0]!r} and may go on with the others of {known}.")


def main(settings: Settings) -> dict[str, Any]:
    """Every way, into gap-NETWORK.json."""
    name = settings.networks[0]
    network, began = network_named(name), time.monotonic()
    if settings.imagenet is None:
        raise ValueError(f"{network.title} needs the validation images: name their folder with `--imagenet`.")
    source = listing(settings.imagenet, network.classes, settings.labels)
    model = network.build(table1.weights_of(name, settings)).to(settings.device)
    stages = Stages(settings.checkpoints / "gap", source.digest)
    identity = {key: value for key, value in settings.identity().items() if key not in ("ways", "splits", "tuning")}
    found: dict[str, Any] = {}
    for way in settings.ways:
        made_of = identity | {"way": way, "weights": fingerprint(*model.state_dict().values())}
        found[way] = stages.json(
            f"{name}-{way.replace(' ', '-')}", made_of, partial(passes, way, model, source, settings)
        )
        settings.say(f"{network.title}, {way}: NLL {-np.mean(found[way]['network']):.4f}")
    rows = explained(found, settings)
    base, printed = rows[0]["pep"], printed_gain(name)
    for row in rows:
        row["share"] = (row["pep"] - base) / (printed - base)
        settings.say(f"{row['name']}: PEP changes the NLL by {row['pep']:+.4f}, {100 * row['share']:.0f} % of the gap")
    content = {
        "network": name,
        "title": network.title,
        "rows": rows,
        "printed": printed,
        "seconds": time.monotonic() - began,
    }
    content |= {
        "settings": settings.identity(),
        "machine": {"device": settings.device, "precision": settings.precision},
    }
    return write_result(settings.out / f"gap-{name}.json", KIND, content, 0)


def printed_gain(name: str) -> float:
    """The NLL of PEP less that of the network, as printed."""
    return printed_score(name, "nll", "pep") - printed_score(name, "nll", "network")


def passes(way: str, model: nn.Module, source: Any, settings: Settings) -> dict[str, Any]:
    """ln p of every image's class: by the network, with the best T of all images, by few and by all members."""
    network = network_named(settings.networks[0])
    prepared = way if way in WAYS else "bicubic"
    shown = pictures(source, network.short, network.crop, settings.checkpoints, settings.say, prepared)
    if way == KERAS_3:
        model = copy.deepcopy(model)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = EPSILON
    data = table1.prepared_images(network, shown, model, settings)
    sigmas = (*PRINTED_RANGE, *WIDER_RANGE) if way == "bicubic" else SHORTER_RANGE
    few, many = dict[float, list[Any]](), dict[float, list[Any]]()
    with arithmetic(settings.precision):
        bare = pm.predict(model, data)
        tempered = pm.predict(pm.fit_temperature(model, data), data)
        for seed in range(settings.noise_seeds):
            noise = pm.Noise("gaussian", antithetic=False, seed=seed)
            options: dict[str, Any] = {"parameters": settings.parameters, "size": settings.size, "noise": noise}
            pep = pm.PepEnsemble.at_sigma(model, sigmas[0], engine=settings.engine, **options)
            for sigma in sigmas:
                rows = pep.with_sigma(sigma).member_pass(data).member_log_likelihoods
                for kept, size in ((few, settings.tuning_size), (many, settings.size)):
                    averaged = rows[:size].logsumexp(dim=0) - np.log(len(rows[:size]))
                    kept.setdefault(sigma, []).append(averaged.float().tolist())
    return {
        "network": bare.log_likelihoods.float().tolist(),
        "temperature": tempered.log_likelihoods.float().tolist(),
        "wrong": (bare.log_probs.argmax(1) != bare.labels).tolist(),
        "sigmas": sigmas,
        "few": [few[sigma] for sigma in sigmas],  # [sigmas][seeds][images]
        "many": [many[sigma] for sigma in sigmas],
    }


def explained(found: dict[str, Any], settings: Settings) -> list[dict[str, Any]]:
    """One row for each change: the network's error and NLL, and what T and PEP change, mean over splits and seeds."""
    printed_sigma, tuning = printed_fit(settings.networks[0])[1], settings.tuning
    first = next(iter(found.values()))
    items, wrong = len(first["wrong"]), np.array(first["wrong"])
    wanted = printed_score(settings.networks[0], "error", "network") / 100
    harder = np.where(wrong, wanted / wrong.mean(), (1 - wanted) / (1 - wrong.mean()))
    inside = [k for k, sigma in enumerate(first["sigmas"]) if sigma <= PRINTED_RANGE[-1]]
    nearest = [int(np.argmin([abs(sigma - printed_sigma) for sigma in first["sigmas"]]))]
    base: dict[str, Any] = {
        "one": first,
        "tuning": tuning,
        "members": "many",
        "sigmas": inside,
        "weights": np.ones(items),
    }
    changes: dict[str, dict[str, Any]] = {
        "as in Table 1": {},
        f"{items - tuning:,} tuning images in place of {tuning:,}": {"tuning": items - tuning},
        f"{settings.tuning_size} members at test": {"members": "few"},
        f"the printed sigma ({first['sigmas'][nearest[0]]:g} on our grid)": {"sigmas": nearest},
        f"sigma up to {first['sigmas'][-1]:g}": {"sigmas": range(len(first["sigmas"]))},
        "images re-weighted to the printed error": {"weights": harder},
        **{way: {"one": one, "sigmas": range(len(one["sigmas"]))} for way, one in list(found.items())[1:]},
    }
    return [{"name": name, **gains(**base | change, splits=settings.splits)} for name, change in changes.items()]


def gains(
    one: dict[str, Any], tuning: int, members: str, sigmas: Any, weights: np.ndarray, splits: int
) -> dict[str, float]:
    """Means over splits and seeds on the test images; the error of PEP's gain is over images."""
    few, tested = np.array(one["few"])[list(sigmas)], np.array(one[members])[list(sigmas)]  # [sigmas, seeds, images]
    network, temperature, wrong = (np.array(one[key], dtype=float) for key in ("network", "temperature", "wrong"))
    columns: dict[str, list[float]] = {"nll": [], "error": [], "temperature": [], "pep": [], "sigma": []}
    total, count = np.zeros(len(network)), np.zeros(len(network))
    for known, test in splits_of(len(network), tuning, splits):
        weight = weights[test] / weights[test].sum()
        for seed in range(few.shape[1]):
            best = int(np.argmax(few[:, seed][:, known] @ weights[known]))
            gain = network[test] - tested[best, seed, test]  # of the NLL: negative is better
            total[test] += gain
            count[test] += 1
            columns["pep"].append(float(gain @ weight))
            columns["sigma"].append(float(np.array(one["sigmas"])[list(sigmas)][best]))
        columns["nll"].append(float(-network[test] @ weight))
        columns["error"].append(float(wrong[test] @ weight))
        columns["temperature"].append(float((network - temperature)[test] @ weight))
    tested_images = count > 0
    mean, weight = total[tested_images] / count[tested_images], weights[tested_images]
    squares = (mean - np.average(mean, weights=weight)) ** 2
    spread = np.sqrt(np.average(squares, weights=weight) / tested_images.sum())
    return {key: float(np.mean(values)) for key, values in columns.items()} | {"pep_error": float(spread)}
