"""Out-of-distribution detection (Section 3.2): a WideResNet-28x10 of five classes of CIFAR-10, asked about all ten.

How far apart are the predictive entropies of images of the five known classes and of the five unknown ones? The measure
is the symmetrized Kullback-Leibler divergence of their histograms, `pm.metrics.symmetrized_kl`. The paper (0.47 for the
network, 0.72 for PEP, 0.71 for temperature scaling) does not say how it estimated the divergence, so AUROC and FPR95 of
the entropy stand beside it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

import peppermill as pm
from experiments.image_sets import read_image_set
from experiments.resume import Stages, fingerprint, write_result
from experiments.settings import Machine, arithmetic
from experiments.table2.training import mixed
from experiments.wide_resnet import WideResNet, initialize

KIND = "peppermill out of distribution"
CHECKPOINT_SECONDS = 60.0  # between two checkpoints
KNOWN = (0, 1, 2, 8, 9)  # Maddox et al. (2019), whose experiment the paper repeats
UNKNOWN = (3, 4, 5, 6, 7)
PRINTED = {"network": 0.47, "temperature scaling": 0.71, "PEP": 0.72}  # Section 3.2


@dataclass(frozen=True)
class Settings(Machine):
    """The paper gives the network and the five classes; the training is that of the network's authors."""

    precision: str = "bfloat16"  # while training; predictions are made in TF32
    seed: int = 17  # the first of Table 2
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


@dataclass(frozen=True)
class FiveClasses:
    """Images in 0..1 on the device: the known classes, numbered 0 to 4, and the unknown ones of the test set."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    known: tuple[Tensor, Tensor]
    unknown: Tensor
    digest: str


def main(settings: Settings) -> dict[str, Any]:
    """The network, temperature scaling and PEP, into ood.json."""
    data = five_classes(settings)
    network = train(settings, data)
    options: dict[str, Any] = {"parameters": settings.parameters, "size": settings.size}
    with arithmetic("tf32"):
        pep = pm.fit(network, data.validation, **options)
        both = pm.fit(network, data.validation, temperature=True, **options)
        warm = pm.fit_temperature(network, data.validation)
        predictors = {"network": network, "temperature scaling": warm, "PEP": pep, "PEP with temperature": both}
        methods = {name: detection(predictor, data, settings.bins) for name, predictor in predictors.items()}
    for name, found in methods.items():
        settings.say(f"{name}: KL {found['kl']:.3f}, AUROC {found['auroc']:.4f}, FPR95 {found['fpr95']:.4f}")
    content = {
        "methods": methods,
        "fitted": {"sigma": pep.sigma, "temperature": warm.temperature, "joint": [both.sigma, both.temperature]},
        "printed": PRINTED,
        "definition": " ".join((pm.metrics.symmetrized_kl.__doc__ or "").split()),
        "items": {"inside": len(data.known[1]), "outside": len(data.unknown), "train": len(data.train[1])},
        "settings": settings.identity(),
        "machine": {"device": settings.device, "precision": settings.precision},
    }
    return write_result(settings.out / "ood.json", KIND, content, settings.seed)


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


def train(settings: Settings, data: FiveClasses) -> WideResNet:
    """SGD with momentum, the rate along a cosine, on shifted and mirrored images; continued from a checkpoint."""
    network = initialize(WideResNet(len(KNOWN), settings.depth, settings.width), settings.seed)
    network.to(settings.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        network.parameters(),
        settings.learning_rate,
        settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=True,
    )
    stages, done, saved = Stages(settings.checkpoints, data.digest), 0, time.monotonic()
    identity = settings.identity() | {"learning_rate": settings.learning_rate}
    kept = stages.read_tensors("ood", identity, settings.device)
    if kept:
        done = int(kept.pop("epoch"))
        network.load_state_dict({name: kept[f"state.{name}"] for name in network.state_dict()})
        for name, value in network.named_parameters():
            optimizer.state[value]["momentum_buffer"] = kept[f"momentum.{name}"]
    with arithmetic(settings.precision):
        for epoch in range(done, settings.epochs):
            loss = train_epoch(epoch, settings, network, optimizer, *data.train)
            settings.say(f"WideResNet, epoch {epoch + 1:2d}  training loss {loss:.4f}")
            if epoch + 1 == settings.epochs or time.monotonic() - saved > CHECKPOINT_SECONDS:
                tensors = {f"state.{name}": value for name, value in network.state_dict().items()}
                for name, value in network.named_parameters():
                    tensors[f"momentum.{name}"] = optimizer.state[value]["momentum_buffer"]
                stages.write_tensors("ood", identity, tensors | {"epoch": torch.tensor(epoch + 1)})
                saved = time.monotonic()
    return network.eval()


def train_epoch(
    epoch: int, settings: Settings, network: WideResNet, optimizer: torch.optim.SGD, images: Tensor, labels: Tensor
) -> float:
    """Every whole batch once; the mean training loss."""
    generator = Generator().manual_seed(mixed(settings.seed, epoch, 1))
    order = torch.randperm(len(labels), generator=generator).to(images.device)
    batches = order[: max(1, len(order) // settings.batch) * settings.batch].split(settings.batch)
    total = torch.zeros((), device=images.device)
    for number, chosen in enumerate(batches):
        done = (epoch + number / len(batches)) / settings.epochs
        optimizer.param_groups[0]["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        batch = shifted_and_mirrored(images[chosen], generator).contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            loss = F.cross_entropy(network(batch).float(), labels[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return float(total) / len(batches)


def shifted_and_mirrored(images: Tensor, generator: Generator) -> Tensor:
    """Each image moved by up to 4 pixels over a border of zeros, and half of them mirrored at random."""
    count, side = len(images), images.shape[-1]
    padded = F.pad(images, (4, 4, 4, 4))
    rows, columns = torch.randint(9, (2, count, 1), generator=generator).to(images.device)
    mirrored = torch.randint(2, (count, 1), generator=generator).to(images.device).bool()
    steps = torch.arange(side, device=images.device)
    across = columns + torch.where(mirrored, steps.flip(0), steps)
    index = torch.arange(count, device=images.device)
    moved: Tensor = padded.movedim(1, 3)[index[:, None, None], (rows + steps)[:, :, None], across[:, None, :]]
    return moved.movedim(3, 1)


def detection(predictor: Any, data: FiveClasses, bins: int) -> dict[str, float]:
    """How well the entropy separates unknown from known classes, and the scores on the known ones."""
    known = pm.predict(predictor, data.known)
    unlabelled = torch.zeros(len(data.unknown), dtype=torch.long, device=data.unknown.device)
    unknown = pm.predict(predictor, (data.unknown, unlabelled))
    inside, outside = pm.metrics.entropy(known.log_probs), pm.metrics.entropy(unknown.log_probs)
    return {
        "kl": pm.metrics.symmetrized_kl(inside, outside, bins),
        "auroc": pm.metrics.auroc(inside, outside),
        "fpr95": pm.metrics.false_positive_rate(inside, outside),
        "entropy_inside": float(inside.mean()),
        "entropy_outside": float(outside.mean()),
        "nll": pm.metrics.nll(known.log_probs, known.labels),
        "ece": pm.metrics.expected_calibration_error(known.log_probs, known.labels),
        "error": pm.metrics.error_rate(known.log_probs, known.labels),
    }
