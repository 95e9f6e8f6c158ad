"""The part of docs/paper.md that is Table 2."""

from __future__ import annotations

from collections.abc import Sequence

from peppermill.paper import tables, texts
from peppermill.paper.printed import COLUMNS, UNROUNDED, WITHOUT_SWA, inside, inside_before_rounding, printed
from peppermill.paper.rates import Results, learning_rates
from peppermill.paper.result import where
from peppermill.paper.rows import ROWS


def table2_section(rows: tables.Rows, rates: Sequence[Results] = ()) -> list[str]:
    """The six columns of the paper beside the printed ones, what differs and why, then ours.

    `rates`: the results of MNIST (CNN) at one learning rate and at another.
    """
    lines = [*_others(rows), _counted(rows), "", f"{texts.SWA_COLUMN} {_schedules(rows)}", ""]
    for score, title in tables.SCORES.items():
        lines += [f"### {title}", "", *tables.paper_table(rows, score), ""]
    lines += ["### Cells that differ", "", *_outside(rows), ""]
    if rates:
        lines += ["### The learning rate of MNIST (CNN)", "", texts.RATES, "", *learning_rates(rates, rows), ""]
    lines += ["### The order that the paper reports", "", *tables.orderings(rows), ""]
    lines += ["### Our columns", "", texts.OURS, ""]
    for score, title in tables.SCORES.items():
        lines += [f"{title}:", "", *tables.our_table(rows, score), ""]
    lines += ["### The joint method, paired over models", "", texts.JOINT, "", *tables.joint_differences(rows), ""]
    lines += ["### What was fitted", "", *tables.fitted(rows), "", *_times(rows)]
    return lines


def _others(rows: tables.Rows) -> list[str]:
    """Rows that were run with other settings than the table's own."""
    changed = {
        f"{row['title']} ({name}={value})"
        for key, row in rows.items()
        for name, value in row["row_settings"].items()
        if value != getattr(ROWS[key], name)
    }
    return [f"**Not with the settings below: {', '.join(sorted(changed))}.**", ""] if changed else []


def _schedules(rows: tables.Rows) -> str:
    """Which schedule of SWA each row has."""
    found: dict[str, list[str]] = {}
    for row in rows.values():
        found.setdefault(row["settings"]["swa"], []).append(row["title"])
    return "Here: " + "; ".join(f"`{schedule}` in {', '.join(titles)}" for schedule, titles in found.items()) + "."


def _counted(rows: tables.Rows) -> str:
    outside, every, rounded = tables.agreement(rows, WITHOUT_SWA)
    swa_outside, swa_every, _ = tables.agreement(rows, ("swa",))
    inside = every - len(outside)
    return (
        f"**{inside} of {every} cells** ({100 * inside / every:.0f} %) lie within the printed plus-minus or 3 % of the "
        f"printed value, whichever is larger; {every - rounded} may do so before the printed numbers were rounded: "
        "± 0.00 stands for anything below 0.005. Of SWA, whose settings are unpublished, "
        f"{swa_every - len(swa_outside)} of {swa_every}. {texts.CELLS}"
    )


def _outside(rows: tables.Rows) -> list[str]:
    outside, _, _ = tables.agreement(rows, COLUMNS)
    if not outside:
        return ["None."]
    lines = ["| score | row | column | ours | printed | why |", "|---|---|---|---|---|---|"]
    for score, row, column in outside:
        ours, theirs = tables.cell(rows[row], column, score)[0], printed(score, row, column)
        why = "; ".join(
            filter(None, (what_rounding_hides(ours, (score, row, column)), "see SWA below" * (column == "swa")))
        )
        names = f"{tables.SCORES[score]} | {rows[row]['title']} | {tables.TITLES[column]}"
        lines.append(f"| {names} | {ours:.4f} | {theirs[0]:.3f} ± {theirs[1]:.2f} | {why} |")
    return lines


def what_rounding_hides(ours: float, place: tuple[str, str, str]) -> str:
    """What the printed digits hide of a cell."""
    if place in UNROUNDED:
        mean, spread = UNROUNDED[place]
        agrees = "and ours agrees" if inside(ours, (mean, spread)) else "and ours differs"
        return f"before rounding the printed cell is {mean:.4f} ± {spread:.4f} (the authors' notebook), {agrees}"
    return (
        "it may agree with the printed numbers before they were rounded"
        if inside_before_rounding(ours, printed(*place))
        else ""
    )


def _times(rows: tables.Rows) -> list[str]:
    lines = [
        "### Time",
        "",
        "| Experiment | training | with dropout | SWA | methods | all |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows.values():
        seconds = row["seconds"]
        trained = [seconds.get(stage, 0.0) for stage in ("training", "training with dropout")]
        averaged = sum(value for stage, value in seconds.items() if stage.startswith("training SWA"))
        rest = sum(value for stage, value in seconds.items() if not stage.startswith("training"))
        parts = [*trained, averaged, rest, sum(trained) + averaged + rest]
        lines.append(f"| {row['title']} | " + " | ".join(f"{part:.0f} s" for part in parts) + " |")
    total = sum(sum(row["seconds"].values()) for row in rows.values())
    places = " ".join(dict.fromkeys(where(row) for row in rows.values()))
    return [*lines, "", f"All rows: {total / 60:.1f} minutes. {places}"]
