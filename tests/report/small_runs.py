"""Runs of a small network on small images, with names that try to break out of a page."""

from dataclasses import replace

import torch
from torch import nn

import peppermill as pm

HOSTILE = '<script>window.broken = "yes"</script>'
CLASS_NAMES = (HOSTILE, "</script><b>bold", "a & b", "\"quoted\" 'name'", "%{x} $y$", "<img src=x onerror=alert(1)>")


def images_and_labels(items, seed):
    """Images [items, 1, 8, 8] in 0..1 with a bright stripe in the row of their class, and a share of wrong labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(CLASS_NAMES), (items,), generator=generator)
    images = 0.6 * torch.rand(items, 1, 8, 8, generator=generator)
    images[torch.arange(items), 0, labels] += 0.4 * torch.rand(items, 1, generator=generator)
    noisy = torch.rand(items, generator=generator) < 0.15
    return images, torch.where(noisy, torch.randint(len(CLASS_NAMES), (items,), generator=generator), labels)


def overconfident_network(seed=0):
    """A linear classifier of the stripes whose logits are far too large."""
    torch.manual_seed(seed)
    linear = nn.Linear(64, len(CLASS_NAMES))
    with torch.no_grad():
        linear.weight.mul_(3)
        for k in range(len(CLASS_NAMES)):
            linear.weight[k, 8 * k : 8 * k + 8] += 3
    return nn.Sequential(nn.Flatten(), linear).eval()


def small_run(title="a small run", seed=0, items=400):
    """Network, temperature scaling and PEP on images, with a sweep, effects and all panels."""
    network = overconfident_network(seed)
    validation, test = images_and_labels(items, 2 * seed), images_and_labels(items, 2 * seed + 1)
    pep = pm.fit(network, validation, size=6, noise=pm.Noise(seed=seed))
    run = pm.record_run(
        {"network": network, "temperature <i>scaling</i>": pm.fit_temperature(network, validation), "PEP": pep},
        test,
        title=title,
        sweep=pm.sweep_around(pep, validation),
        class_names=CLASS_NAMES,
        settings={"model": HOSTILE, "data": "stripes"},
    )
    return replace(run, curvature=CURVATURE, overfitting=OVERFITTING, race=RACE)


CURVATURE = {
    "sigmas": [0.0, 0.1, 0.2, 0.3],
    "predicted": [0.0, 0.01, 0.04, 0.09],
    "predicted_error": [0.0, 0.002, 0.008, 0.018],
    "measured": [0.0, 0.011, 0.037, 0.06],
    "laplacian": -12.5,
    "fisher_trace": 14.5,
    "effect_rate": 2.0,
}

RACE = {
    "method": "PEP",
    "items": 400,
    "spent": 90.0,
    "note": "",
    "candidates": [
        pm.Candidate("6 members, matrix scaling", 6, 43, 0.50, -0.01, 0.02, "not better by a standard error"),
        pm.Candidate("2 members", 2, 1, 0.51, 0.0, 0.0, "chosen"),
        pm.Candidate("temperature scaling", 1, 1, 0.55, 0.04, 0.01, "worse"),
        pm.Candidate(HOSTILE, 1, 0, 2.5, 1.99, 0.1, "worse"),
    ],
}

OVERFITTING = {
    "points": [
        {"name": HOSTILE, "overfitting": 0.1, "effect": 0.01, "sigma": 0.02},
        {"name": "epoch 2", "overfitting": 0.2, "effect": 0.03, "sigma": 0.03},
        {"name": "epoch 3", "overfitting": 0.4, "effect": 0.05, "sigma": 0.05},
    ],
    "spearman": 1.0,
    "spearman_lower": 0.8,
    "spearman_upper": 1.0,
}
