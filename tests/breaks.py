"""Break the method on purpose, one way at a time, and see that a test notices: `python tests/breaks.py [words]`.

Each break replaces some text in a copy of the package; the words choose breaks whose name has one of them. A new break
is one row. `test_breaks.py` runs all of them in the slow tier.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Break:
    """A text in a file of the package, what replaces it, and the tests that must notice."""

    name: str
    file: str
    text: str
    broken: str
    tests: str


BREAKS = [
    Break(
        "the sign of the noise is flipped",
        "perturbation.py",
        "(sigma * wide + value)",
        "(value - sigma * wide)",
        "tests/test_perturbation.py",
    ),
    Break(
        "antithetic members have the same sign",
        "noise.py",
        "(-1.0) ** member",
        "1.0",
        "tests/test_noise.py",
    ),
    Break(
        "eq. 6 averages logarithms",
        "likelihood.py",
        "member_log_likelihoods.logsumexp(dim=0) - math.log(len(member_log_likelihoods))",
        "member_log_likelihoods.mean(dim=0)",
        "tests/test_likelihood.py",
    ),
    Break(
        "the temperature multiplies",
        "likelihood.py",
        "(log_probs / temperature)",
        "(log_probs * temperature)",
        "tests/test_likelihood.py",
    ),
    Break(
        "the temperature is applied before the average",
        "ensemble.py",
        "self.calibrator(self.likelihood.average(different))",
        "self.likelihood.average(self.calibrator(different))",
        "tests/test_ensemble.py",
    ),
    Break(
        "folding forgets the member's noise",
        "engines/traced_form.py",
        "{**self.state, **params}",
        "{**params, **self.state}",
        "tests/test_ensemble.py",
    ),
    Break(
        "weights of a changed network are kept",
        "engines/member_weights.py",
        "and self.state.holds()",
        "",
        "tests/engines/test_engines.py",
    ),
    Break(
        "rows are gathered process by process, not in the order of the data",
        "distributed/gather.py",
        "[places.to(column.device)]",
        "",
        "tests/distributed/test_processes.py",
    ),
    Break(
        "the golden section takes every interval to start at zero",
        "tuning/search.py",
        "            right = lower + GOLDEN * (upper - lower)",
        "            right = GOLDEN * (upper - lower)",
        "tests/tuning/test_search.py",
    ),
    Break(
        "values on the subsample decide",
        "tuning/two_stage.py",
        "tuple(whole.known.values())",
        "tuple({**sampled.known, **whole.known}.values())",
        "tests/tuning/test_two_stage.py",
    ),
    Break(
        "norm layers are perturbed",
        "parameters.py",
        ' and "norm" not in kind.__name__.lower()',
        "",
        "tests/test_parameters.py",
    ),
    Break(
        "data may change between passes",
        "data.py",
        "if self._digest not in (None, digest):",
        "if False:",
        "tests/test_data.py",
    ),
    Break(
        "members are left in the order of their views",
        "engines/__init__.py",
        "view.argsort(stable=True).argsort()",
        "torch.arange(self.size)",
        "tests/views/test_views.py",
    ),
    Break(
        "labels of pixels are not flipped back",
        "views/__init__.py",
        "outputs.flip(2 + places[-1] + 2 + self.dimension)",
        "outputs",
        "tests/views/test_views.py",
    ),
    Break(
        "views at sigma = 0 are weighted by their members",
        "passes.py",
        "self.member_log_likelihoods[: self.different]",
        "self.member_log_likelihoods",
        "tests/views/test_views.py",
    ),
    Break(
        "items are judged by noise by layer that saw them",
        "race.py",
        "passes[-1].examples % 2 == 1",
        "passes[-1].examples % 2 == 0",
        "tests/test_race.py",
    ),
]


def first_failure(broken: Break) -> str | None:
    """The first test that fails on a copy of the package with the break in it."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("peppermill", "tests"):
            shutil.copytree(ROOT / part, Path(folder, part), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        path = Path(folder, "peppermill", broken.file)
        path.write_text(path.read_text().replace(broken.text, broken.broken))
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", broken.tests]
        environment = {**os.environ, "PYTHONPATH": folder}
        output = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment).stdout
    failure = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
    return failure[1].split("[")[0] if failure else None


def main(words: list[str]) -> int:
    """Print the test that notices each break; the result is the number of breaks that no test notices."""
    missed = 0
    for broken in BREAKS:
        if not words or any(word in broken.name for word in words):
            noticed = first_failure(broken)
            missed += noticed is None
            print(f"{broken.name}: {noticed or 'NOT NOTICED'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
