"""pep.json: a recipe as one small file of JSON, which is read only for the network to which it belongs."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import nn

from peppermill import parameters
from peppermill.calibrators import calibrator_from, numbers_of
from peppermill.datasets.splitting import Split
from peppermill.likelihood import likelihood_named
from peppermill.noise import Noise
from peppermill.plumbing.files import read_json, versions, write_atomically
from peppermill.plumbing.nested import sha256
from peppermill.recipe import Fingerprint, Recipe, difference, fingerprint
from peppermill.tuning.result import Evaluation, SigmaSearch
from peppermill.views import VIEWS, saved_names, views_named

if TYPE_CHECKING:
    from peppermill.race import Race

KIND = "peppermill ensemble"
VERSION = 2
MAX_FILE_BYTES = 4000
SEARCH_FIELDS = ("items", "joint", "passes", "lower", "upper")

#: Every field of the file that is always there, by type and, if it is a number, by range.
FIELDS: tuple[tuple[type, float, float, tuple[str, ...]], ...] = (
    (int, 1, VERSION, ("version",)),
    (float, 0, sys.float_info.max, ("sigma", "search.lower", "search.upper")),
    (int, 1, 10**9, ("size", "selection.arrays")),
    (int, -math.inf, math.inf, ("noise.seed",)),
    (int, 0, 10**18, ("search.items", "fingerprint.tensors", "fingerprint.numbers")),
    (bool, 0, 1, ("noise.antithetic", "search.joint")),
    (list, 0, 0, ("views", "search.evaluations")),
    (str, 0, 0, ("noise.law", "calibrator.name", "likelihood.name", "selection.rule", "selection.mask")),
    (str, 0, 0, tuple(f"fingerprint.{name}" for name in ("types", "architecture", "parameters", "buffers"))),
)


def write_recipe(recipe: Recipe, path: str | Path, model: nn.Module) -> None:
    """Write one JSON file under 4 kB. If space runs out, the race is left out, then all but the search's best points.

    Arrays that do not fit, such as those of vector scaling for many classes, go to a safetensors file beside it.
    """
    if changed := difference(recipe.fingerprint, fingerprint(model)):
        raise ValueError(f"the network is not the one that was fitted ({changed}): fit again before saving.")
    path, evaluations, names = Path(path), list(recipe.search.evaluations), parameters.names(model)
    arrays = {f"scale.{name}": torch.tensor(factors) for name, factors in recipe.noise.scales}
    for kind, calibrator in (("calibrator", recipe.calibrator), ("one_pass", recipe.one_pass)):
        arrays |= {f"{kind}.{name}": value for name, value in (calibrator.arrays() if calibrator else {}).items()}
    inline: dict[str, Any] = {"arrays": {name: _digits(value.tolist(), 9) for name, value in arrays.items()}}
    inline = inline if arrays else {}
    if len(_text(recipe, names, evaluations[:2], inline)) > MAX_FILE_BYTES and arrays:
        raw = safetensors.torch.save({name: value.float().contiguous() for name, value in arrays.items()})
        path = path.resolve()  # of a link, the folder of the file that is written; pep-0.1 and pep-0.2 share a stem
        beside = path.with_name(f"{path.name.removesuffix('.json')}.arrays.safetensors")
        inline = {"arrays_file": beside.name, "arrays_digest": sha256([raw])}
        write_atomically(beside, raw)
    if recipe.race and all(math.isfinite(c.nll) for c in recipe.race.candidates):  # JSON has no infinity
        place = recipe.race.verdicts.index
        rows = [
            [c.name, c.passes, c.parameters, *_digits([c.nll, c.difference, c.error], 6), place(c.verdict)]
            for c in recipe.race.candidates
        ]
        with_race = {"race": {"note": recipe.race.note, "candidates": rows}, **inline}
        inline = with_race if len(_text(recipe, names, evaluations, with_race)) <= MAX_FILE_BYTES else inline
    while len(text := _text(recipe, names, evaluations, inline)) > MAX_FILE_BYTES and len(evaluations) > 2:
        evaluations.remove(min(evaluations, key=lambda e: (e.sigma == 0, e.tempered_log_likelihood)))
    write_atomically(path, text)


def read_recipe(path: str | Path, model: nn.Module) -> Recipe:
    """The recipe in a file, for the network on which it was fitted; any other network is refused."""
    content = read_content(path)
    changed = difference(Fingerprint(**content["fingerprint"]), fingerprint(model))
    if changed:
        raise ValueError(f"{path} was fitted on another network: this {type(model).__name__} differs, {changed}.")
    for name in content["views"]:
        if name not in VIEWS:
            raise ValueError(f"{path} has the view {name!r}: add its row to `peppermill.views.VIEWS` before loading.")
    try:
        return _recipe(content, parameters.names(model))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def read_content(path: str | Path) -> dict[str, Any]:
    """What a file holds, every field checked; a file of version one in the form of the present version."""
    content = read_json(path, KIND, VERSION)
    if content.get("version") == 1:
        temperature = content.pop("temperature", None)
        content |= {"views": [], "calibrator": {"name": "temperature", "temperature": temperature}}
    for kind, least, most, places in FIELDS:
        for place in places:
            value: Any = content
            for key in place.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            allowed = (int, float) if kind is float else kind
            right = isinstance(value, allowed) and isinstance(value, bool) == (kind is bool)
            if not right or (kind in (int, float) and not least <= value <= most):
                raise _damaged(path, f"{place} is {value!r}")
    if content["version"] > 1 and content.pop("checksum", None) != _checksum(content):
        raise _damaged(path, "it was changed after it was written")
    if "arrays_file" in content:
        beside = Path(path).resolve().with_name(content["arrays_file"])
        if not beside.is_file() or sha256([beside.read_bytes()]) != content["arrays_digest"]:
            raise _damaged(path, f"its arrays are in {beside.name}, which is missing or was changed")
        content["arrays"] = safetensors.torch.load(beside.read_bytes())
    return content


def search_of(content: dict[str, Any]) -> SigmaSearch:
    """The search for sigma in the content of a file."""
    search = content["search"]
    rows = (row if len(row) == 4 else (*row, 1.0, row[1]) for row in search["evaluations"])
    evaluations = [Evaluation(*(-math.inf if value is None else float(value) for value in row)) for row in rows]
    return SigmaSearch(tuple(evaluations), **{name: search.get(name) for name in SEARCH_FIELDS})


def race_of(content: dict[str, Any]) -> Race | None:
    """The race in the content of a file, if it holds one."""
    if "race" not in content:
        return None
    from peppermill.race import Candidate, Race  # most files hold none

    rows = [Candidate(*(*row[:-1], Race.verdicts[row[-1]])) for row in content["race"]["candidates"]]
    return Race(tuple(rows), content["search"]["items"], content["search"]["passes"], content["race"]["note"])


def _damaged(path: str | Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged ({why}): fit and save the ensemble again.")


def _text(recipe: Recipe, names: list[str], evaluations: list[Evaluation], arrays: dict[str, Any]) -> str:
    search, selected, noise = recipe.search, set(recipe.selected), recipe.noise
    mask = sum(1 << k for k, name in enumerate(names) if name in selected)  # the first name is the lowest bit
    draws = {"draws": noise.draws} if noise.draws else {}
    columns = ["sigma", "log_likelihood", "temperature", "tempered_log_likelihood"]
    found = columns[1:] if search.joint else columns[1:2]
    content = {
        "format": KIND,
        "version": VERSION,
        "sigma": recipe.sigma,
        "size": recipe.size,
        "noise": {"law": noise.law, "antithetic": noise.antithetic, "seed": noise.seed, **draws},
        "calibrator": numbers_of(recipe.calibrator),
        **({"one_pass": numbers_of(recipe.one_pass)} if recipe.one_pass else {}),
        "views": saved_names(recipe.views),
        "likelihood": {"name": recipe.likelihood.name, **recipe.likelihood.settings()},
        "selection": {"rule": recipe.rule, "arrays": len(recipe.selected), "mask": hex(mask)},
        "search": {
            **{name: getattr(search, name) for name in SEARCH_FIELDS},
            "columns": columns,
            "evaluations": [[e.sigma, *_digits([getattr(e, name) for name in found], 10)] for e in evaluations],
        },
        **arrays,
        "fingerprint": asdict(recipe.fingerprint),
        **({"split": asdict(recipe.split)} if recipe.split else {}),
        "versions": versions(),
    }
    content["checksum"] = _checksum(content)
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _checksum(content: dict[str, Any]) -> str:
    return sha256([json.dumps(content, sort_keys=True).encode()])


def _recipe(content: dict[str, Any], names: list[str]) -> Recipe:
    likelihood, noise = dict(content["likelihood"]), content["noise"]
    mask = int(content["selection"]["mask"], 16)
    selected = tuple(name for k, name in enumerate(names) if mask >> k & 1)
    if len(selected) != content["selection"]["arrays"]:
        raise ValueError(f"{len(selected)} arrays are selected instead of {content['selection']['arrays']}")
    arrays = {name: torch.as_tensor(value) for name, value in content.get("arrays", {}).items()}
    of = {
        kind: {name.removeprefix(kind): value for name, value in arrays.items() if name.startswith(kind)}
        for kind in ("calibrator.", "one_pass.", "scale.")
    }
    scales = tuple((name, tuple(factors.tolist())) for name, factors in of["scale."].items())
    usual: Any = likelihood_named(likelihood.pop("name"))
    if [(k, type(v)) for k, v in likelihood.items()] != [(k, type(v)) for k, v in usual.settings().items()]:
        raise ValueError(f"likelihood has the settings {likelihood}")
    split = Split(**content["split"]) if "split" in content else None
    if split and not 0 < split.validation < split.items:
        raise ValueError(f"{split.validation} of {split.items} items are split off")
    return Recipe(
        sigma=float(content["sigma"]),
        size=content["size"],
        noise=Noise(noise["law"], noise["antithetic"], noise["seed"], scales, tuple(noise.get("draws", ()))),
        rule=content["selection"]["rule"],
        selected=selected,
        likelihood=replace(usual, **likelihood),
        calibrator=calibrator_from(content["calibrator"], of["calibrator."]),
        search=search_of(content),
        fingerprint=Fingerprint(**content["fingerprint"]),
        views=views_named(content["views"]),
        one_pass=calibrator_from(content["one_pass"], of["one_pass."]) if "one_pass" in content else None,
        split=split,
        race=race_of(content),
    )


def _digits(value: Any, digits: int) -> Any:
    """Nested lists of numbers with this many digits, infinity as null; nine hold a float32 to the last bit."""
    if isinstance(value, list):
        return [_digits(part, digits) for part in value]
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
