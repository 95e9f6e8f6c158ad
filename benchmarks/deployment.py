"""What an exported ensemble costs: `python -m benchmarks.deployment`.

The embedded network with m = 10, by torch.export and as ONNX: the size of the files, and the time of a call for
one image and for a batch, against the ensemble itself and against ten plain passes of the network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import peppermill as pm
from benchmarks.rivals import SIZE, Rivals
from benchmarks.timing import clock_name, in_turns, ratio, table_section, where, write_result

BATCH, CALLS, ROUNDS = 250, 20, 7


def main() -> None:
    images, labels = pm.demo.test()
    rivals = Rivals(pm.demo.network(), images, labels)
    with tempfile.TemporaryDirectory() as folder:
        files = {suffix: Path(folder) / f"model.{suffix}" for suffix in ("pt2", "onnx")}
        exporting = in_turns(
            {
                suffix: lambda path=path: rivals.ensemble("kernels").export(path, images[:2])
                for suffix, path in files.items()
            },
            "cpu",
            1,
        )
        write_result(
            "deployment",
            {
                "size": SIZE,
                "batch": BATCH,
                "rounds": ROUNDS,
                "clock": clock_name("cpu"),
                "network_bytes": sum(value.nbytes for value in rivals.model.state_dict().values()),
                "file_bytes": {suffix: path.stat().st_size for suffix, path in files.items()},
                "exporting_seconds": {suffix: taken[0] for suffix, taken in exporting.items()},
                "one_item": against_plain(rivals, files, images[:1], CALLS),
                "batches": against_plain(rivals, files, images[:BATCH], 1),
                "onnxruntime": version("onnxruntime"),
            },
        )


def against_plain(rivals: Rivals, files: dict[str, Path], images: Tensor, calls: int) -> dict[str, Any]:
    """Seconds of this many calls of each, and as a multiple of ten plain passes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(files["onnx"], options)
    exported, ensemble = torch.export.load(files["pt2"]).module(), rivals.ensemble("kernels")
    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: [rivals.model(images) for _ in range(SIZE)],
        "ensemble": lambda: ensemble.predict_proba(images),
        "pt2": lambda: exported(images)["probabilities"],
        "onnx": lambda: session.run(["probabilities"], {"images": images.numpy()}),
    }
    jobs = {name: torch.no_grad()(lambda way=way: [way() for _ in range(calls)]) for name, way in ways.items()}
    in_turns(jobs, "cpu", 1)  # warms up
    seconds = in_turns(jobs, "cpu", ROUNDS)
    return {name: {**ratio(taken, seconds["plain"]), "seconds": taken} for name, taken in seconds.items()}


NAMES = {"ensemble": "the ensemble, `pep(x)`", "pt2": "model.pt2, by torch", "onnx": "model.onnx, by onnxruntime"}


def section(found: dict[str, Any]) -> str:
    size = {name: f"{bytes / 1e6:.2f} MB" for name, bytes in found["file_bytes"].items()}
    return table_section(
        "An ensemble as one file",
        f"The demo network ({found['network_bytes'] / 1e6:.2f} MB) with m = {found['size']}: the time of a call, "
        f"divided by that of ten plain passes of the network ({found['clock']}); below 1 is faster. "
        f"onnxruntime {found['onnxruntime']}. `python -m benchmarks.deployment`; {where(found)}.",
        ("what", "size", "one image", f"{found['batch']} images"),
        [
            (
                title,
                size.get(name, ""),
                f"**{found['one_item'][name]['ratio']:.2f}**",
                f"**{found['batches'][name]['ratio']:.2f}**",
            )
            for name, title in NAMES.items()
        ],
    )


if __name__ == "__main__":
    main()
