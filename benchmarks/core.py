"""What PEP costs: `python -m benchmarks.core`.

- One pass of m = 10 members over a data set, against ten plain passes of the bare network (at most 1.05 times): by the
  loop, and by the engine that `fit` takes.
- `fit` on the demo's validation data, against the passes it makes (at most 5 % more).
- What of `fit` goes into care rather than passes: tracing and comparing plans, watching the network, copying inputs,
  checking outputs (at most 2 %). A thread looks a thousand times a second at what the main thread does.
- Memory of a member pass beyond a plain pass, against one copy of the selected parameters (at most one copy).
"""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm
from benchmarks.networks import ensemble_at, mnist_mlp, resnet20
from benchmarks.timing import median_ratio, peak_bytes, table_section, where, write_result

SIGMA = 0.01  # time does not depend on it
SIZE, BATCH, SMALL_BATCH = 10, 250, 32
SAMPLES = 10_000  # of a stack, at least, for a share of 2 % with a standard error below 0.2 %

#: Functions and classes of the package that are there for safety.
CAREFUL = {
    *("forms_of", "agree", "different", "moved_weight", "NetworkState", "is_current", "attributes_of", "same_objects"),
    *("copied", "is_written", "fingerprint", "digest_of", "refuse_training_mode", "check_batch"),
}


def main() -> None:
    warnings.simplefilter("ignore", pm.PepWarning)  # noise does not help networks that nobody trained
    torch.manual_seed(0)
    images, labels = pm.demo.data()[0]
    pictures, classes = torch.randn(500, 3, 32, 32), torch.randint(0, 10, (500,))
    write_result(
        "core",
        {
            "size": SIZE,
            "batch": BATCH,
            "member_pass_demo_network": member_pass(pm.demo.network(), images, labels),
            "member_pass_resnet20": member_pass(resnet20(), pictures, classes),
            "auto_pass_demo_network": member_pass(pm.demo.network(), images, labels, "auto"),
            "auto_pass_resnet20": member_pass(resnet20(), pictures, classes, "auto"),
            "auto_pass_mlp": member_pass(mnist_mlp(), images, labels, "auto", SMALL_BATCH),
            "fit_demo": fit_overhead(),
            "care_demo_network": care(lambda: pm.fit(pm.demo.network(), (images, labels), temperature=True)),
            "care_resnet20": care(lambda: pm.fit(resnet20(), (pictures, classes))),
            "care_mlp": care(lambda: pm.fit(mnist_mlp(), (images, labels))),
            "memory": memory(),
        },
    )


def member_pass(
    model: nn.Module, inputs: Tensor, labels: Tensor, engine: str = "loop", batch: int = BATCH
) -> dict[str, float]:
    """m members over the data, against m plain passes that keep their outputs."""
    batches = list(zip(inputs.split(batch), labels.split(batch), strict=True))
    pep = ensemble_at(model, (inputs, labels), SIGMA, SIZE, engine=engine)

    @torch.no_grad()
    def plain() -> Any:
        return [[model(x) for x, _ in batches] for _ in range(SIZE)]

    return median_ratio(lambda: pep.member_pass(batches), plain)


def fit_overhead() -> dict[str, float]:
    """The time of `fit`, against that of as many passes of a member as it needs."""
    model, (validation, _) = pm.demo.network(), pm.demo.data()
    pep = pm.fit(model, validation, size=SIZE, batch_size=BATCH, temperature=True)
    batches = list(zip(validation[0].split(BATCH), validation[1].split(BATCH), strict=True))
    found = median_ratio(
        lambda: pm.fit(model, validation, size=SIZE, batch_size=BATCH, temperature=True),
        lambda: pep.member_pass(batches),
    )
    passes = pep.search.passes or 0.0
    return {"ratio": found["ratio"] * SIZE / passes, "seconds": found["first_seconds"], "passes": passes}


def care(job: Callable[[], Any]) -> dict[str, float]:
    """The share of the time of a job, repeated, in which a careful function runs, from samples of its stack."""
    main_thread, done, counts = threading.main_thread().ident or 0, threading.Event(), {True: 0, False: 0}

    def look() -> None:
        while not done.wait(0.001):
            frame, names = sys._current_frames().get(main_thread), set[str]()
            while frame:
                names |= {*frame.f_code.co_qualname.split(".")}
                frame = frame.f_back
            counts[not names.isdisjoint(CAREFUL)] += 1

    sampler, before = threading.Thread(target=look), sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    sampler.start()
    try:
        while sum(counts.values()) < SAMPLES:
            job()
    finally:
        done.set()
        sampler.join()
        sys.setswitchinterval(before)
    return {"ratio": counts[True] / sum(counts.values()), "samples": float(sum(counts.values()))}


def memory() -> dict[str, float]:
    """Peak memory of a process that runs members, less one that runs the bare network, in copies of the weights."""
    plain, members = (_peak(kind) for kind in ("plain", "members"))
    weights = 4.0 * sum(p.numel() for p in _large_network().parameters() if p.ndim == 2)
    return {
        "ratio": (members - plain) / weights,
        "weights_bytes": weights,
        "plain_bytes": plain,
        "members_bytes": members,
    }


def _large_network() -> nn.Module:
    """Weights of 384 MiB and outputs of next to nothing."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(*layers, nn.Linear(4096, 10)).eval()


def _peak(kind: str) -> float:
    found = subprocess.run([sys.executable, "-m", "benchmarks.core", kind], capture_output=True, text=True, check=True)
    return float(found.stdout)


def _print_peak(kind: str) -> None:
    model, data = _large_network(), (torch.randn(8, 4096), torch.zeros(8, dtype=torch.long))
    if kind == "members":
        ensemble_at(model, data, SIGMA, 3, engine="loop").member_pass(data)
    else:
        pm.predict(model, data)
    print(peak_bytes())


def section(found: dict[str, Any]) -> str:
    rows = [
        ("m = 10 members over the demo's 5,000 images, one by one (`loop`)", "member_pass_demo_network", "1.05"),
        ("the same by the engine that `fit` takes (`auto`)", "auto_pass_demo_network", "1.05"),
        ("m = 10 members of a ResNet-20 over 500 images 32x32, `loop`", "member_pass_resnet20", "1.05"),
        ("the same, `auto`", "auto_pass_resnet20", "1.05"),
        (
            f"m = 10 members of the MNIST MLP over 5,000 images, batches of {SMALL_BATCH}, `auto`",
            "auto_pass_mlp",
            "1.05",
        ),
        ("`fit(temperature=True)` on the demo, against the time of its member passes", "fit_demo", "1.05"),
        ("care in `fit` on the demo (traces, comparisons, copies and checks), as a share", "care_demo_network", "0.02"),
        ("care in `fit` of a ResNet-20 on 500 images", "care_resnet20", "0.02"),
        ("care in `fit` of the MNIST MLP on 5,000 images", "care_mlp", "0.02"),
        ("peak memory beyond the bare network's, in copies of the selected weights (384 MiB)", "memory", "1"),
    ]
    above = [what for what, key, limit in rows if found[key]["ratio"] > float(limit)]
    missed = f"Above the aim: {'; '.join(above)}. " if above else ""
    return table_section(
        "The price of an ensemble",
        f"Time of one pass of all members over the data, divided by that of ten plain passes that keep their outputs, "
        f"in batches of {found['batch']}. {missed}`python -m benchmarks.core`; {where(found)}.",
        ("what", "ratio", "aim at most"),
        [(what, f"**{found[key]['ratio']:.3f}**", limit) for what, key, limit in rows],
    )


if __name__ == "__main__":
    _print_peak(sys.argv[1]) if len(sys.argv) > 1 else main()
