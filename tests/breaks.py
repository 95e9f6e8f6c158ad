"""Break the core on purpose, one way at a time, and see that some test notices: `python tests/breaks.py [words]`.

Each break is a replacement of text in a copy of the package; the words choose breaks whose name has one of them. Not
run by pytest. A new break is one row below; prints the table of tests/README.md, and fails where a break is missed.
"""

# ruff: noqa: E501
from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: name, file of the package, its text, the broken text, the tests to run
BREAKS = [
    ("sign of the noise flipped", "perturbation.py", "_mul_(steps, sigma)", "_mul_(steps, -sigma)", "test_perturbation.py"),
    ("sigma squared", "perturbation.py", "_mul_(steps, sigma)", "_mul_(steps, sigma**2)", "test_perturbation.py"),
    ("noise left out", "perturbation.py", "_mul_(steps, sigma)", "_mul_(steps, 0)", "engines"),
    ("noise added in half precision", "perturbation.py", "torch.promote_types(v.dtype, torch.float32)", "v.dtype", "test_perturbation.py"),
    ("one noise for all parameters", "noise.py", "_key(self.seed, name)", '_key(self.seed, "")', "test_noise.py"),
    ("seed ignored", "noise.py", "_key(self.seed, name)", "_key(0, name)", "test_noise.py"),
    ("one noise for all members", "noise.py", "philox(counters, stream,", "philox(counters, 0,", "test_noise.py"),
    ("antithetic sign dropped", "noise.py", "(-1.0) ** member", "1.0", "test_noise.py"),
    ("variance of the uniform not 1", "noise.py", "math.sqrt(3) * (2", "(2", "test_noise.py"),
    ("nine rounds of Philox", "noise.py", "range(10)", "range(9)", "test_noise.py"),
    ("chunks that start over", "noise.py", "torch.arange(start, min(start + chunk, needed)", "torch.arange(0, min(chunk, needed - start)", "test_noise.py"),
    ("mean of the logs", "likelihood.py", "    return torch.fmin(largest, mean)  # no mean", "    return member_log_likelihoods.mean(dim=0)  # no mean", "test_likelihood.py"),
    ("sum in place of the mean of members", "likelihood.py", " - math.log(len(member_log_likelihoods))", "", "test_likelihood.py"),
    ("plain probabilities that underflow", "likelihood.py", "    return torch.fmin(largest, mean)  # no mean", "    return member_log_likelihoods.exp().mean(dim=0).log()  # no mean", "test_likelihood.py"),
    ("softmax twice", "likelihood.py", "_wide(outputs).log_softmax(dim=self.class_dimension)", "_wide(outputs).softmax(dim=self.class_dimension).log_softmax(dim=self.class_dimension)", "test_likelihood.py"),
    ("ignored label counted", "likelihood.py", "if bool(counted.all())", "if True", "test_likelihood.py"),
    ("temperature multiplies", "likelihood.py", "(log_probs / temperature)", "(log_probs * temperature)", "test_likelihood.py"),
    ("log-variance read as variance", "likelihood.py", "(-log_variance).exp()", "1 / log_variance", "test_likelihood.py"),
    ("minimum for maximum", "search.py", "if paid(left) >= paid(right)", "if paid(left) <= paid(right)", "test_search.py"),
    ("interval taken to start at zero", "search.py", "right = lower + GOLDEN * (upper - lower)\n    return", "right = GOLDEN * (upper - lower)\n    return", "test_search.py"),
    ("points paid for twice", "search.py", "rel_tol=1e-9", "rel_tol=0", "test_search.py"),
    ("a forgiven dip ends the walk", "search.py", "if fell and x", "if falls and x", "test_search.py"),
    ("joint tuning that follows the profile alone", "tuning.py", "found = golden_section(plain, lowest, upper or _end_of_walk(plain, start, lowest), iterations)", "found = golden_section(profile, lowest, upper or _end_of_walk(profile, start, lowest), iterations)", "test_tuning.py"),
    ("quick joint tuning that follows the profile alone", "quick.py", "    hunt.climb(lambda evaluation: evaluation.log_likelihood)\n", "    if not joint:\n        hunt.climb(lambda evaluation: evaluation.log_likelihood)\n", "test_quick.py"),
    ("values of the part taken for values of all items", "quick.py", "tuple(self.whole.known.values())", "tuple({**self.sketched.known, **self.whole.known}.values())", "test_quick.py"),
    ("items of the part weighed alike", "sample.py", "1 / chances[chosen].clamp(max=1)", "torch.ones_like(chances[chosen])", "test_sample.py"),
    ("the first examples in place of a walk through all", "sample.py", "chosen = ends.floor() > (ends - chances).floor()", "chosen = torch.arange(len(labels), device=labels.device) < len(labels) / 16", "test_sample.py"),
    ("passes over a part counted in full", "tuning.py", "self.passes += self.share * ", "self.passes += ", "test_quick.py"),
    ("a search that never stops for noise", "quick.py", "WORTH * self._noise()", "0.0", "test_quick.py"),
    ("pairs torn apart", "sizes.py", "2 if paired else 1", "1", "test_sizes.py"),
    ("sigma = 0 out of the race", "tuning.py", "    plain(0.0)\n", "", "test_tuning.py"),
    ("temperature before averaging", "ensemble.py", "averaged(self.likelihood, self.member_predictions(*args, **kwargs))", "averaged(self.likelihood, temper(self.member_predictions(*args, **kwargs), self.temperature))", "test_ensemble.py"),
    ("last member dropped", "engines/members.py", "return self.size if", "return self.size - 1 if", "engines"),
    ("weights kept that changed", "engines/state.py", "list(addresses), list(versions)", "list(addresses), []", "engines"),
    ("labels that go to other members' items", "engines/loop.py", "self.given.repeat(len(outputs), *[1] * (self.given.ndim - 1))", "self.given.repeat_interleave(len(outputs), dim=0)", "engines"),
    ("threads left out of the rule", "engines/choose.py", "CONVOLVED_BY_THREAD * (torch.get_num_threads() - 1)", "0", "engines"),
    ("members of another thread's sigma", "engines/kept.py", "        with self._lock:  # or another thread's sigma would come between the stack and its views\n", "        if True:\n", "engines"),
    ("the network looked at before its graph runs", "engines/choose.py", "if keep and not graphed else None", "if keep else None", "engines"),
    ("modules shared between threads", "engines/borrowed.py", "return lowered(Shell(model) if in_shell else _one_at_a_time(model)", "return lowered(lambda *given: functional_call(model, *given)", "engines"),
    ("members of a pair on one side", "engines/products.py", "torch.addcmul(center, steps, how.signs)", "torch.addcmul(center, steps, how.signs.abs())", "engines"),
    ("two arguments recorded as one", "engines/vmap.py", "map_tensors(Tensor.detach, (args, kwargs))", "(args, kwargs)", "engines"),
    ("a number read while recording", "engines/recorded.py", "func._schema.name in _READS_A_NUMBER or", "", "engines"),
    ("outputs of a graph handed out", "engines/graphs.py", "self.recording.outputs.clone()", "self.recording.outputs", "engines"),
    ("weights written in place", "perturbation.py", "if sigma == 0:", "for value in self.center.values():\n            value.add_(1e-3)\n        if sigma == 0:", "test_ensemble.py"),
    ("parameters of one dimension perturbed", "parameters.py", "candidate.value.ndim >= 2 and any", "any", "test_parameters.py"),
    ("embeddings perturbed", "parameters.py", "    return isinstance(module, (nn.Embedding, nn.EmbeddingBag))", "    return False", "test_parameters.py"),
    ("norm layers perturbed", "parameters.py", "and not _is_norm(owner)", "", "test_parameters.py"),
    ("chunks of data lost", "data.py", "                yield chunk\n                chunk, size", "                chunk, size", "test_data.py"),
    ("change between passes allowed", "data.py", "if changed:", "if False:", "test_data.py"),
    ("selection not saved", "recipe.py", 'selected=_unmask(names, content["selection"]["mask"])', "selected=tuple(names)", "test_ensemble.py"),
    ("other weights accepted", "ensemble.py", "difference(read_fingerprint(path), fingerprint(model))", '""', "test_ensemble.py"),
    ("bins [lower, upper)", "metrics.py", "edges[1:-1].contiguous())", "edges[1:-1].contiguous(), right=True)", "test_metrics.py"),
    ("Brier score divided by K", "metrics.py", "+ 1 - 2 * of_label", "/ len(probabilities[0]) + 1 - 2 * of_label", "test_metrics.py"),
    ("ties in AUROC counted in full", "metrics.py", "(counts - 1) / 2", "0", "test_metrics.py"),
]  # fmt: skip


def main(words: list[str]) -> int:
    """The number of breaks that no test caught."""
    missed = 0
    print("| break | caught by |\n|---|---|")
    for name, file, text, broken, tests in BREAKS:
        if not words or any(word in name for word in words):
            caught = first_failure(file, text, broken, tests)
            missed += caught is None
            print(f"| {name} | {f'`{caught}`' if caught else '**nothing**'} |", flush=True)
    return missed


def first_failure(file: str, text: str, broken: str, tests: str) -> str | None:
    """The first test that fails on a copy of the package with one text replaced by another."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("peppermill", "tests"):
            shutil.copytree(ROOT / part, Path(folder, part), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        path = Path(folder, "peppermill", file)
        if path.read_text().count(text) < 1:
            raise SystemExit(f"{file} no longer contains {text!r}: bring the row of this break up to date.")
        path.write_text(path.read_text().replace(text, broken))
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", f"tests/{tests}"]
        output = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
    failure = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return failure[1].split("[")[0].removeprefix("tests/") if failure else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
