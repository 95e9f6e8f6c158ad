"""Out-of-distribution detection (Section 3.2): a WideResNet-28x10 of five classes of CIFAR-10, asked about all ten.

How far apart are the predictive entropies of images of the five known classes and of the five unknown ones? The measure
is the symmetrized Kullback-Leibler divergence of their histograms, `pm.metrics.symmetrized_kl`. The paper (0.47 for the
network, 0.72 for PEP, 0.71 for temperature scaling) does not say how it estimated the divergence, so AUROC and FPR95 by
entropy, confidence and mutual information stand beside it, with intervals over several trained networks.

Each seed is a stage of its own: separate processes with `--seeds 17`, `--seeds 18`, ... and the same `--checkpoints`
can each train one network, and a last one with all seeds only collects their scores.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Generator, Tensor
from torch.nn import functional as F

import peppermill as pm
from experiments.image_sets import read_image_set
from experiments.resume import Stages, fingerprint, provenance, write_result
from experiments.settings import Machine, arithmetic
from experiments.table2.training import mixed
from experiments.wide_resnet import WideResNet, initialize

KIND = "peppermill out of distribution"
CHECKPOINT_SECONDS = 60.0  # between two checkpoints
BORDER = 4  # pixels of zeros around a training image, over which it moves: Zagoruyko and Komodakis
PREDICTION_BATCH = 1000  # images
NOT_IN_TRAINING = ("size", "parameters", "bins")  # settings that do not change the trained network
KNOWN = (0, 1, 2, 8, 9)  # Maddox et al. (2019), whose experiment the paper repeats
UNKNOWN = (3, 4, 5, 6, 7)
PRINTED = {"network": 0.47, "temperature scaling": 0.71, "PEP": 0.72}  # Section 3.2


@dataclass(frozen=True)
class Settings(Machine):
    """The paper gives the network and the five classes; the training is that of the network's authors."""

    precision: str = "bfloat16"  # while training; predictions are made in TF32
    seeds: tuple[int, ...] = (17, 18, 19)  # the first of Table 2, one for each network
    depth: int = 28  # Section 3.2
    width: int = 10  # Section 3.2
    epochs: int = 30  # the rate falls along a cosine, so fewer than the 200 of Zagoruyko and Komodakis are enough
    batch: int = 128  # Zagoruyko and Komodakis
    learning_rate: float = 0.1  # Zagoruyko and Komodakis
    momentum: float = 0.9  # Zagoruyko and Komodakis
    weight_decay: float = 5e-4  # Zagoruyko and Komodakis
    validation: int = 5_000  # the last of the training images, as in Table 2
    size: int = 10  # members: the default of `pm.fit`
    parameters: str = "kernels"  # the default of `pm.fit`
    bins: int = 50  # of the entropy histograms: the default of `pm.metrics.symmetrized_kl`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs < 1:
            raise ValueError(f"`epochs={self.epochs}` must be at least 1.")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"`seeds={self.seeds}` must name one seed or more, each of them once.")

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"learning_rate": self.learning_rate}

    def network_identity(self, seed: int) -> dict[str, Any]:
        """What decides the numbers of one network."""
        return {key: value for key, value in self.identity().items() if key != "seeds"} | {"seed": seed}


@dataclass(frozen=True)
class FiveClasses:
    """Images in 0..1 on the device: the known classes, numbered 0 to 4, and the unknown ones of the test set."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    known: tuple[Tensor, Tensor]
    unknown: Tensor
    digest: str


def main(settings: Settings) -> dict[str, Any]:
    """The network, temperature scaling and PEP for every seed, and their means, into ood.json."""
    data = five_classes(settings)
    stages = Stages(settings.checkpoints / "ood", data.digest)
    networks = []
    for seed in settings.seeds:

        def scored(seed: int = seed) -> dict[str, Any]:
            return examine(train(settings, seed, data, stages), settings, seed, data)

        networks.append(stages.json(f"scores-{seed}", settings.network_identity(seed), scored))
        for name, one in networks[-1]["methods"].items():
            numbers = f"KL {one['kl']:.3f}, AUROC {one['auroc']['entropy']:.4f}, FPR95 {one['fpr95']['entropy']:.4f}"
            settings.say(f"seed {seed}, {name}: {numbers}")
    content = {
        "methods": over_networks(networks),
        "networks": networks,
        "printed": PRINTED,
        "definition": " ".join((pm.metrics.symmetrized_kl.__doc__ or "").split()),
        "items": {"inside": len(data.known[1]), "outside": len(data.unknown), "train": len(data.train[1])},
        "settings": settings.identity(),
    }
    return write_result(settings.out / "ood.json", KIND, content, settings.seeds[0])


def examine(network: WideResNet, settings: Settings, seed: int, data: FiveClasses) -> dict[str, Any]:
    """Every method on one trained network: its scores, and what it fitted."""
    options: dict[str, Any] = {
        "parameters": settings.parameters,
        "size": settings.size,
        "noise": pm.Noise("gaussian", seed=seed),  # every network has noise of its own
        "batch_size": PREDICTION_BATCH,
    }
    with arithmetic("tf32"), warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)  # a best sigma of 0 is a number of the table
        pep = pm.fit(network, data.validation, **options)
        both = pm.fit(network, data.validation, temperature=True, **options)
        warm = pm.fit_temperature(network, data.validation)
        predictors = {"network": network, "temperature scaling": warm, "PEP": pep, "PEP with temperature": both}
        methods = {name: detection(predictor, data, settings.bins) for name, predictor in predictors.items()}
    fitted = {"sigma": pep.sigma, "temperature": warm.temperature, "joint": [both.sigma, both.temperature]}
    return {"seed": seed, "methods": methods, "fitted": fitted, "provenance": provenance(seed)}


def over_networks(networks: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every method's means over the networks, with intervals for AUROC and FPR95 by every score.

    `difference` is that of the AUROC from the network's own by its entropy, paired over the networks.
    """
    found: dict[str, dict[str, Any]] = {}
    reference = [one["methods"]["network"]["auroc"]["entropy"] for one in networks]
    for name in networks[0]["methods"]:
        each = [one["methods"][name] for one in networks]
        means = {key: float(np.mean([one[key] for one in each])) for key in each[0] if key not in ("auroc", "fpr95")}
        found[name] = {**means, "auroc": {}, "fpr95": {}, "difference": {}}
        for score in each[0]["auroc"]:
            auroc, fpr95 = ([one[measure][score] for one in each] for measure in ("auroc", "fpr95"))
            found[name]["auroc"][score] = mean_with_interval(auroc)
            found[name]["fpr95"][score] = mean_with_interval(fpr95)
            found[name]["difference"][score] = mean_with_interval(np.subtract(auroc, reference))
    return found


def mean_with_interval(values: Sequence[float] | np.ndarray) -> dict[str, float | None]:
    """The mean and its 95 % interval by Student's t; one value has no interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return {"mean": mean, "lower": None, "upper": None}
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return {"mean": mean, "lower": mean - half, "upper": mean + half}


def five_classes(settings: Settings) -> FiveClasses:
    """CIFAR-10 with labels 0 to 4 for the known classes."""
    found, device = read_image_set("cifar10", settings.data), settings.device
    pixels, labels = found.train
    held = min(settings.validation, len(labels) // 4)

    def known(pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.isin(labels, torch.tensor(KNOWN))
        numbers = torch.tensor([KNOWN.index(k) if k in KNOWN else -1 for k in range(10)])
        return pixels[kept].to(device).float() / 255, numbers[labels[kept]].to(device)

    unknown = found.test[0][torch.isin(found.test[1], torch.tensor(UNKNOWN))].to(device).float() / 255
    parts = (known(pixels[:-held], labels[:-held]), known(pixels[-held:], labels[-held:]), known(*found.test))
    return FiveClasses(*parts, unknown, fingerprint(*found.train, *found.test))


def train(settings: Settings, seed: int, data: FiveClasses, stages: Stages) -> WideResNet:
    """SGD with momentum, the rate along a cosine, on shifted and mirrored images; continued from a checkpoint."""
    network = initialize(WideResNet(len(KNOWN), settings.depth, settings.width), seed)
    network.to(settings.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        network.parameters(),
        settings.learning_rate,
        settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=True,
    )
    done, saved, name_of_stage = 0, time.monotonic(), f"training-{seed}"
    identity = {key: value for key, value in settings.network_identity(seed).items() if key not in NOT_IN_TRAINING}
    kept = stages.read_tensors(name_of_stage, identity, settings.device)
    if kept:
        done = int(kept.pop("epoch"))
        network.load_state_dict({name: kept[f"state.{name}"] for name in network.state_dict()})
        for name, value in network.named_parameters():  # in the parameter's order of dimensions: SGD is slow otherwise
            optimizer.state[value]["momentum_buffer"] = torch.empty_like(value).copy_(kept[f"momentum.{name}"])
    padded = F.pad(data.train[0], (BORDER,) * 4).movedim(1, 3).contiguous()  # once, with the channels last
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        with arithmetic(settings.precision):
            for epoch in range(done, settings.epochs):
                began = time.monotonic()
                loss = train_epoch(epoch, settings, seed, network, optimizer, padded, data.train[1])
                seconds = time.monotonic() - began
                settings.say(
                    f"WideResNet, seed {seed}, epoch {epoch + 1:2d}  training loss {loss:.4f}  {seconds:.1f} s"
                )
                if epoch + 1 == settings.epochs or time.monotonic() - saved > CHECKPOINT_SECONDS:
                    tensors = {f"state.{name}": value for name, value in network.state_dict().items()}
                    for name, value in network.named_parameters():
                        tensors[f"momentum.{name}"] = optimizer.state[value]["momentum_buffer"]
                    stages.write_tensors(name_of_stage, identity, tensors | {"epoch": torch.tensor(epoch + 1)})
                    saved = time.monotonic()
    finally:
        torch.backends.cudnn.benchmark = benchmark
    return network.eval()


def train_epoch(
    epoch: int,
    settings: Settings,
    seed: int,
    network: WideResNet,
    optimizer: torch.optim.SGD,
    padded: Tensor,
    labels: Tensor,
) -> float:
    """Every whole batch once; the mean training loss.

    Order, shifts and mirrors of the whole epoch are drawn from (seed, epoch) and sent to the device before the first
    step, so that no step waits for the device.
    """
    generator, device = Generator().manual_seed(mixed(seed, epoch, 1)), padded.device
    order = torch.randperm(len(labels), generator=generator).to(device)
    shifts = torch.randint(2 * BORDER + 1, (len(labels), 2), generator=generator).to(device)
    mirrored = torch.randint(2, (len(labels),), generator=generator).bool().to(device)
    steps = max(1, len(order) // settings.batch)
    total = torch.zeros((), device=device)
    for step in range(steps):
        done = (epoch + step / steps) / settings.epochs
        optimizer.param_groups[0]["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        chosen = order[step * settings.batch : (step + 1) * settings.batch]
        images = shifted_and_mirrored(padded, chosen, shifts[chosen], mirrored[chosen])
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            loss = F.cross_entropy(network(images).float(), labels[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return float(total) / steps


def shifted_and_mirrored(padded: Tensor, items: Tensor, shifts: Tensor, mirrored: Tensor) -> Tensor:
    """Windows [n, channels, height, width] of the padded images [N, height + 8, width + 8, channels], mirrored or not.

    `shifts` [n, 2] are the window's first row and column, 0 to 8.
    """
    height, width = (torch.arange(side - 2 * BORDER, device=padded.device) for side in padded.shape[1:3])
    rows = shifts[:, :1] + height
    columns = shifts[:, 1:] + torch.where(mirrored[:, None], width.flip(0), width)
    windows: Tensor = padded[items[:, None, None], rows[:, :, None], columns[:, None, :]]
    return windows.movedim(3, 1)


def detection(predictor: Any, data: FiveClasses, bins: int) -> dict[str, Any]:
    """How well each score separates unknown from known classes, and how good the method is on the known ones."""
    members = isinstance(predictor, pm.PepEnsemble) and predictor.size > 1  # temperature scaling is an ensemble of one
    unlabelled = torch.zeros(len(data.unknown), dtype=torch.long, device=data.unknown.device)
    known, unknown = (
        pm.predict(predictor, part, uncertainty=members) for part in (data.known, (data.unknown, unlabelled))
    )
    inside, outside = pm.metrics.entropy(known.log_probs), pm.metrics.entropy(unknown.log_probs)
    doubts = [1 - found.log_probs.double().exp().amax(1) for found in (known, unknown)]
    pairs = {"entropy": (inside, outside), "confidence": (doubts[0], doubts[1])}
    if known.uncertainty is not None and unknown.uncertainty is not None:  # only members can disagree
        pairs["mutual information"] = known.uncertainty.mutual_information, unknown.uncertainty.mutual_information
    return {
        "kl": pm.metrics.symmetrized_kl(inside, outside, bins),
        "auroc": {score: pm.metrics.auroc(*pair) for score, pair in pairs.items()},
        "fpr95": {score: pm.metrics.fpr_at_95(*pair) for score, pair in pairs.items()},
        "entropy_inside": float(inside.mean()),
        "entropy_outside": float(outside.mean()),
        "nll": pm.metrics.nll(known.log_probs, known.labels),
        "ece": pm.metrics.expected_calibration_error(known.log_probs, known.labels),
        "error": pm.metrics.error_rate(known.log_probs, known.labels),
    }
