"""`peppermill demo`: the whole job on the embedded network and data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, cast

import typer

import peppermill as pm
from peppermill.cli.console import say
from peppermill.plumbing.files import refuse_unwritable
from peppermill.types import CalibratorName


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("peppermill-demo"),
    passes: Annotated[int, typer.Option("--passes", "--size", help="The most forward passes of a prediction.")] = 10,
    seed: Annotated[int, typer.Option(help="The seed of noise and bootstrap.")] = 0,
) -> None:
    """Let every method race on the embedded network, and test the choice beside temperature scaling and PEP."""
    start = time.monotonic()
    refuse_unwritable(out / "run.json")
    network = pm.demo.network()
    validation, test = pm.demo.data()
    say(
        "The network: a small CNN trained on Fashion-MNIST. Tuning on 5,000 images it has never seen, testing on "
        "5,000 others."
    )
    choice = pm.calibrate(network, validation, passes, noise=pm.Noise(seed=seed))
    race = choice.race
    assert race is not None
    say(f"\n{race}\n\nchosen: {race.choice.name}. The same methods on the other 5,000 images:")
    both = pm.fit(network, validation, size=passes, noise=pm.Noise(seed=seed), temperature=True)
    pep = both.without_temperature()
    methods = {"network": network, "temperature scaling": pm.fit_temperature(network, validation), "PEP": pep}
    methods["PEP with temperature"] = both
    rival = choice.one_pass
    if choice.passes == 1:  # what the passes that were not chosen would give
        noise, after = pm.Noise(seed=seed), cast(CalibratorName, choice.calibrator.name)
        rival = pm.fit(network, validation, size=passes, noise=noise, scale="layer", calibrator=after)
    if rival:
        methods[rival.method] = rival
    methods.pop(choice.method, None)
    methods[choice.method] = choice
    sweep = pm.sweep_around(pep, validation)
    run = pm.record_run(
        methods,
        test,
        title="The embedded network on Fashion-MNIST",
        sweep=sweep,
        class_names=pm.demo.CLASS_NAMES,
        settings={"model": "embedded network", "data": "Fashion-MNIST, 5,000 images to tune on and 5,000 to test on"},
        seed=seed,
    )
    choice.save(out / "pep.json")
    pm.write_run(run, out / "run.json")
    shown = {method.name: method.reliability for method in run.methods if method.reliability}
    try:
        pm.plots.save_figure(pm.plots.sigma_curve(sweep, pep.sigma), out / "sigma.png")
        pm.plots.save_figure(pm.plots.reliability_diagrams(shown), out / "reliability.png")
        pictures = ", sigma.png, reliability.png"
    except ImportError as error:
        pictures = f"; no pictures, because {error}"
    try:
        pm.write_report(run, out / "report.html")
        ending = f"Open {out / 'report.html'} in a browser: the whole result on one page."
    except ImportError as error:
        ending = f"no report, because {error}"
    say(run)
    say(f"wrote {out}/: pep.json, run.json{pictures} ({time.monotonic() - start:.0f} s)")
    say(NEXT_STEPS)
    say(ending)


NEXT_STEPS = """
Your own model, in Python:

    import peppermill as pm
    pep = pm.calibrate(model, validation)     # model.eval(), logits out; a DataLoader or a pair (x, y)
    print(pep.race)                           # what was tried, and why this one was chosen
    pep.predict_proba(x)                      # honest probabilities
    pep.save("pep.json")

or on the command line, with my_models.py in this folder:

    peppermill calibrate python:my_models:make npz:validation.npz --weights model.safetensors
    peppermill evaluate python:my_models:make npz:test.npz --weights model.safetensors --pep pep.json --out run.json
    peppermill report run.json
"""
