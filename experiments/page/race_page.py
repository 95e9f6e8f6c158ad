"""docs/race.md: what every method reaches on every network, and what the race chooses, from `results/race/*.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from experiments.page.markdown import holm, p_text, table, title_of
from experiments.resume import read_result

KIND = "peppermill race"
PAGE = Path("docs/race.md")
VIEWS = "mirror image, T"
USUAL = "temperature scaling"  # what every method is compared with, on the same splits

Result: TypeAlias = dict[str, Any]
PValues: TypeAlias = Mapping[tuple[str, str], float]  # of the network and the pair, after Holm

OPENING = """# The race: what do the passes buy?

Which method gives the best probabilities, and do its forward passes pay? Test NLL, mean over random splits
of the images (for networks of Table 2: over trained networks). *From T* is the difference from temperature
scaling on the same splits: use it to compare methods that ran on fewer splits, as their rows say.
*Splits* is the standard deviation over splits, *seeds* over seeds of the noise on the first split; every
other split has a seed of its own. Other numbers of members use the noise found for ten, as in the race.
The paired tests are over images: the difference of each is averaged over the splits that test it, so the mean
may differ from that of the table in the last digits.

laplace-torch is fitted on the tuning images, as the others are: with a Kronecker posterior of the last layer
and probit prediction; and with a diagonal posterior of all weights, ten networks drawn from it, and the
prior precision that is best on the tuning images (its Kronecker posterior of all weights refuses batch norm,
which every network here has). Neither was run for 1,000 classes: the gradients do not fit in memory.
`python -m experiments race` writes this page from the files in results/race."""


def write_page(folder: Path, titles: Sequence[str], additions: Sequence[str]) -> dict[str, Result]:
    """The page from all results in the folder; the titles are in the order of its rows."""
    contents = {path.stem: read_result(path, KIND) for path in sorted(folder.glob("*.json"))}
    found, *more = (
        {content["network"]: content for name, content in contents.items() if content and name.startswith(file)}
        for file in ("race-", "additions-", "views-")
    )
    PAGE.write_text(page_of(found, more, titles, additions), encoding="utf-8")
    return found


def page_of(
    found: dict[str, Result], more: Sequence[dict[str, Result]], titles: Sequence[str], additions: Sequence[str]
) -> str:
    """The page: what holds, and a table for each network; `more` has the methods that ran by themselves."""
    adjusted = holm({(name, pair): test["p"] for name, c in found.items() for pair, test in c["paired"].items()})
    sources = {name: [content, *(one[name] for one in more if name in one)] for name, content in found.items()}
    parts = [OPENING, *verdicts(found, adjusted), summary(sources, adjusted)]
    regrets = [title_of(name) for name, content in found.items() if _mirror_is_enough(content["methods"])]
    if regrets:
        parts.append(
            "Two views with T alone have a lower NLL than the race's choice, and need fewer passes, on "
            f"{'; '.join(regrets)}: one standard error on the tuning images may not show that noise adds nothing. "
            "Tuning and test images are parts of one set: what looks better by chance on one part looks worse on the "
            "other."
        )
    several = [name for name, c in found.items() if "races" not in c and c["settings"]["noise_seeds"] > 1]
    if several:  # files from before `paired` averaged over seeds first
        parts.append(
            "The paired tests count the first split once for each seed of the noise, and so more than the others, on "
            f"{'; '.join(map(title_of, several))}."
        )
    measured = {name for name, every in sources.items() for one in every if one["methods"].keys() & {*additions}}
    if without := "; ".join(title_of(name) for name in sorted(found.keys() - measured)):
        parts.append(f"The additions to PEP have not been measured separately on {without}.")
    for name, every in sources.items():
        parts += [f"## {title_of(name)}", methods_table(every, titles), choices(name, every, adjusted)]
    return "\n\n".join(parts) + "\n"


def verdicts(found: dict[str, Result], adjusted: PValues) -> list[str]:
    """Against temperature scaling, and against the best one-pass calibrator: on how many networks the race wins."""
    sentences = []
    for title in (USUAL, "the best one-pass calibrator"):
        tests = [
            test | {"p": adjusted[name, pair]}
            for name, content in found.items()
            for pair, test in content["paired"].items()
            if pair == f"race - {title if title in content['methods'] else content['best one pass']}"
        ]
        clear = [test["mean"] < 0 for test in tests if test["p"] < 0.05]
        sentences.append(
            f"Against {title}, the race's choice is significantly better on {sum(clear)} of {len(tests)} networks, and "
            f"significantly worse on {len(clear) - sum(clear)}."
        )
    return sentences


def summary(sources: dict[str, list[Result]], adjusted: PValues) -> str:
    """One row for each network."""
    lines = []
    for name, (content, *others) in sources.items():
        rows, best, cells = content["methods"], content["best one pass"], []
        for title in ("network", USUAL, best, VIEWS):
            clear = adjusted.get((name, f"race - {title}"), 1.0) < 0.05
            cells.append(f"{rows[title]['nll']:.4f}{'*' * clear}" if title in rows else "")
        cells[2] += f" ({best.split()[0]})"
        for other in others:
            if VIEWS in other["methods"] and not cells[3]:  # perhaps of other networks
                cells[3] = f"{other['methods'][VIEWS]['from T']:+.4f} from T"
        race = f"**{rows['race']['nll']:.4f}** ({rows['race']['passes']:.1f})"
        lines.append((title_of(name), *cells, race))
    heads = ("network", "network as it is", USUAL, "best one-pass calibrator", VIEWS, "race")
    legend = "The NLL of each; in brackets the passes. A star marks where the race's choice differs significantly."
    return f"{legend}\n\n{table(heads, lines)}"


def methods_table(sources: list[Result], titles: Sequence[str]) -> str:
    """Every method on one network."""
    content, lines = sources[0], []
    first = {title: source for source in reversed(sources) for title in source["methods"]}
    for title in titles:
        if title not in first:
            continue
        row, most = first[title]["methods"][title], content["settings"]["splits"]
        few = f" ({row['splits']} of {most} splits)" if row["splits"] < most else ""
        known = {"over splits": row["splits"] > 1, "over seeds": first[title]["settings"]["noise_seeds"] > 1}
        spreads = [f"{row[spread]:.4f}" if several else "" for spread, several in known.items()]
        scores = f"{100 * row['ece']:.2f}", f"{100 * row['error']:.2f}"
        from_usual = f"{round(row['from T'], 4) + 0.0:+.4f}"
        lines.append((f"{title}{few}", f"{row['passes']:.3g}", f"{row['nll']:.4f}", from_usual, *spreads, *scores))
    return table(("method", "passes", "NLL", "from T", "splits", "seeds", "ECE %", "error %"), lines)


def choices(name: str, sources: list[Result], adjusted: PValues) -> str:
    """What the race chose on one network, the paired tests, and the commands."""
    content, asked = sources[0], sources[0]["settings"]
    chosen = sorted(content["choices"].items(), key=lambda item: (-item[1], item[0]))
    shares = ", ".join(f"{choice} ({count} of {content['runs']})" for choice, count in chosen)
    images = f" of {asked['images']:,} images" if asked.get("images") else ""
    lines = [
        f"Splits{images}: {asked['splits']}; seeds of the noise on the first one: {asked['noise_seeds']}.",
        f"The race chose: {shares}. It spent {content['spent']:.0f} forward passes over the tuning images.",
    ]
    for pair, test in content["paired"].items():
        p = adjusted[name, pair]
        clear = "significantly better" if test["mean"] < 0 else "significantly worse"
        words = clear if p < 0.05 else "not significant"
        lines.append(f"- {pair}: {test['mean']:+.4f} ± {test['error']:.4f}, {p_text(p)} after Holm: {words}.")
    share = 100 * content["estimate within two standard errors"]
    lines.append(f"- Its own estimate was within two standard errors of the test result in {share:.0f} % of the runs.")
    for made in (source["provenance"] for source in sources):
        lines.append(f"- Made by `{made['command']}` at {made.get('commit', 'an unknown commit')}.")
    return "\n".join(lines)


def _mirror_is_enough(rows: dict[str, Any]) -> bool:
    """Whether two views without noise are better than what the race chooses, for fewer passes."""
    mirror, race = rows.get(VIEWS), rows["race"]
    return mirror is not None and mirror["nll"] < race["nll"] and mirror["passes"] < race["passes"]
