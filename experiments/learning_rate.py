"""MNIST (CNN) at the learning rate of the authors' notebook, which skips the training: is it the rate they used?

The notebook shows the temperature and sigma* of 25 networks and, in a figure, the test NLL of five after every epoch.
Networks trained at 2.5e-4 are examined for the same three numbers; those of Table 2 and Figure 3 learned at 5e-4.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import peppermill as pm
from experiments.resume import write_result
from experiments.settings import Settings as Table2Settings
from experiments.settings import arithmetic
from experiments.table2.methods import paper_pep
from experiments.table2.training import Schedule, Trained
from experiments.table2.work import Work

KIND = "peppermill learning rate"


@dataclass(frozen=True)
class Settings(Table2Settings):
    """The networks of Table 2 at another learning rate."""

    rows: tuple[str, ...] = ("mnist-cnn",)
    models: int = 10
    learning_rate: float | None = 2.5e-4  # the authors' notebook


def main(settings: Settings) -> dict[str, Any]:
    """Three numbers of every network, into learning_rate.json."""
    work = Work(settings.rows[0], settings)
    with arithmetic(settings.precision):
        schedule = Schedule((work.row.learning_rate,) * settings.epochs, keep=(1,))
        networks = [
            work.stage(f"learning-rate-{seed}", partial(examine, work, one, seed))
            for seed, one in zip(settings.seeds, work.trained("learning rate training", schedule), strict=True)
        ]
    content = {"row": work.name, "learning_rate": work.row.learning_rate, "networks": networks}
    return write_result(settings.out / "learning_rate.json", KIND, content, settings.seeds[0])


def examine(work: Work, trained: Trained, seed: int) -> dict[str, float]:
    """The test NLL after the first epoch; T and sigma* after the last one, as Table 2 has them."""
    first, last = (work.network(trained.states[epoch]) for epoch in (1, work.settings.epochs))
    after_one = pm.predict(first, work.data.test)
    found = {
        "first_epoch_nll": float(pm.metrics.nll(after_one.log_probs, after_one.labels)),
        "temperature": pm.fit_temperature(last, work.data.validation).temperature,
        "sigma": paper_pep(work, last, pm.Noise("gaussian", antithetic=False, seed=seed)).sigma,
    }
    work.settings.say(f"{work.row.title}, seed {seed}: " + ", ".join(f"{key} {found[key]:.4g}" for key in found))
    return found
