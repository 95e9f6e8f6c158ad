"""`peppermill demo`: the whole job on the embedded network and data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

import peppermill.demo
from peppermill.baselines.temperature import fit_temperature
from peppermill.cli.console import say, show_methods
from peppermill.cli.evaluate import compared_methods
from peppermill.data import Batches
from peppermill.ensemble import PepEnsemble, fit
from peppermill.files import refuse_unwritable
from peppermill.metrics import BINS
from peppermill.predictions import predict
from peppermill.report import plots
from peppermill.results import Method, Run, plain, provenance, write_run
from peppermill.sweep import sweep_sigma

EXAMPLES = "peppermill demo --out peppermill-demo"
SETTINGS = {"model": "embedded network", "data": "Fashion-MNIST, 5,000 + 5,000", "parameters": "kernels"}
GRID = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5)  # of the sweep, in units of sigma*


def command(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("peppermill-demo"),
    size: Annotated[int, typer.Option(help="Members of the ensemble.")] = 10,
    seed: Annotated[int, typer.Option(help="The seed of noise and bootstrap.")] = 0,
) -> None:
    """Calibrate the embedded network; compare it with temperature scaling, PEP, and PEP with temperature."""
    start = time.monotonic()
    refuse_unwritable(out / "run.json")
    network = peppermill.demo.network()
    validation, test = peppermill.demo.data()
    say(
        "The network: a small CNN trained on Fashion-MNIST. Tuning on 5,000 images it has never seen, testing on "
        "5,000 others."
    )

    tempered = fit_temperature(network, validation)
    pep = fit(network, validation, size=size, seed=seed)
    both = fit(network, validation, size=size, seed=seed, temperature=True)
    say(
        f"found sigma = {pep.sigma:.4g} for PEP; sigma = {both.sigma:.4g} and T = {both.temperature:.3g} tuned together"
    )

    methods = _methods(Batches(test, network), seed, network, tempered, pep, both)
    sweep = sweep_sigma(network, validation, [pep.sigma * step for step in GRID], size=size, seed=seed)
    settings = {**SETTINGS, "size": size, "seed": seed}
    run = Run("the embedded network on Fashion-MNIST", settings, methods, sweep, provenance(seed))

    pep.save(out / "pep.json")
    both.save(out / "pep-temperature.json")
    write_run(run, out / "run.json")
    show_methods(plain(run))
    pictures = _draw(run, pep.sigma, out)
    say(f"wrote {out}/: pep.json, pep-temperature.json, run.json{pictures} ({time.monotonic() - start:.0f} s)")
    say(_NEXT)


def _methods(
    data: Batches, seed: int, network: nn.Module, tempered: Any, pep: PepEnsemble, both: PepEnsemble
) -> tuple[Method, ...]:
    """The four methods on the test data, with what was fitted for each."""
    predictors = {"network": network, "temperature scaling": tempered, "PEP": pep, "PEP with temperature": both}
    return compared_methods(
        {name: predict(predictor, data) for name, predictor in predictors.items()},
        BINS,
        seed,
        fitted={
            "temperature scaling": {"temperature": tempered.temperature},
            "PEP": {"sigma": pep.sigma},
            "PEP with temperature": {"sigma": both.sigma, "temperature": both.temperature},
        },
        passes={"PEP": pep.size, "PEP with temperature": both.size},
    )


def _draw(run: Run, sigma: float, out: Path) -> str:
    """Draw the two pictures, or say what is missing for them."""
    shown = {method.name: method.reliability for method in run.methods if method.reliability}
    try:
        plots.save_figure(plots.sigma_curve(run.sweep, sigma), out / "sigma.png")  # type: ignore[arg-type]
        plots.save_figure(plots.reliability_diagrams(shown), out / "reliability.png")
    except ImportError as error:
        return f"; no pictures, for {error}"
    return ", sigma.png, reliability.png"


_NEXT = """
Your own model, in Python:

    import peppermill as pm
    pep = pm.fit(model, validation, temperature=True)     # model.eval(), logits out; a DataLoader or a pair (x, y)
    pep.predict_proba(x)                                  # honest probabilities
    pep.save("pep.json")

or on the command line, with my_models.py in this folder:

    peppermill fit python:my_models:make npz:validation.npz --weights model.safetensors --temperature
    peppermill evaluate python:my_models:make npz:test.npz --weights model.safetensors --pep pep.json
"""
