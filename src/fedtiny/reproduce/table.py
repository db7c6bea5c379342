"""An experiment as a table: in the terminal, as Markdown, CSV and LaTeX."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fedtiny.compare import sheet as sheets
from fedtiny.compare.sheet import Entry, Sheet
from fedtiny.reproduce import labels
from fedtiny.reproduce.outcome import Outcome, Value
from fedtiny.reproduce.places import Place, along, in_order
from fedtiny.reproduce.quantities import QUANTITIES
from fedtiny.runs.folder import write_atomically

MISSING = "-"


def sheet(outcome: Outcome) -> Sheet:
    """The table; the paper's values stand in columns of their own, or in brackets."""
    layout = outcome.experiment.table
    headings, rows = _across(outcome) if layout.columns else _down(outcome)
    left = tuple(labels.axis(axis) for axis in layout.rows if _is_words(outcome, axis))
    title = f"{outcome.experiment.title} ({outcome.experiment.source})"
    return Sheet(title, headings, _sections(rows, len(layout.rows)), left)


def _is_words(outcome: Outcome, axis: str) -> bool:
    return any(isinstance(place.at[axis].value, str) for place in outcome.places)


Rows = list[tuple[Entry, ...]]


def _down(outcome: Outcome) -> tuple[tuple[str, ...], Rows]:
    """A row for each place, and the paper's values in columns of their own."""
    layout = outcome.experiment.table
    beside = [q for q in layout.values if any(outcome.printed(p, q) for p in outcome.places)]
    headings = [labels.axis(axis) for axis in layout.rows]
    for quantity in layout.values:
        headings += [QUANTITIES[quantity].label, *(["paper"] if quantity in beside else [])]
    ranks, rows = _ranks(outcome), []
    for place in in_order(outcome.places, layout.rows):
        row = [Entry(place.at[axis].label) for axis in layout.rows]
        for quantity in layout.values:
            row.append(_ours(outcome, place, quantity, ranks))
            if quantity in beside:
                printed = outcome.printed(place, quantity)
                row.append(Entry(printed.text if printed else ""))
        rows.append(tuple(row))
    return tuple(headings), rows


def _across(outcome: Outcome) -> tuple[tuple[str, ...], Rows]:
    """Columns for an axis, with the paper's value in brackets behind ours."""
    layout = outcome.experiment.table
    (quantity,), (column,) = layout.values, layout.columns
    across = along(outcome.places, column)
    heading = [labels.axis(axis) for axis in layout.rows]
    heading += [labels.with_axis(column, at.label) for at in across]
    at_place = {place.where(*layout.rows, column): place for place in outcome.places}
    ranks, rows = _ranks(outcome), []
    firsts = {place.where(*layout.rows): place for place in outcome.places}
    for first in in_order(list(firsts.values()), layout.rows):
        row = [Entry(first.at[axis].label) for axis in layout.rows]
        for at in across:
            place = at_place.get((*first.where(*layout.rows), at.value))
            row.append(_both(outcome, place, quantity, ranks) if place else Entry(""))
        rows.append(tuple(row))
    return tuple(heading), rows


Ranks = dict[str, int | None]


def _ranks(outcome: Outcome) -> Ranks:
    """The best and second best accuracy among those that differ on one axis only."""
    best_of = outcome.experiment.table.best_of
    if best_of is None:
        return {}
    others = [axis.name for axis in outcome.experiment.axes if axis.name != best_of]
    groups: dict[tuple[Any, ...], list[Place]] = {}
    for place in outcome.places:
        if not place.dense:
            groups.setdefault(place.where(*others), []).append(place)
    ranks: Ranks = {}
    for group in groups.values():
        values = [outcome.ours(place, "accuracy") for place in group]
        found = sheets.ranks(value.mean if value else None for value in values)
        ranks |= {place.stem: rank for place, rank in zip(group, found, strict=True)}
    return ranks


def _ours(outcome: Outcome, place: Place, quantity: str, ranks: Ranks) -> Entry:
    value = outcome.ours(place, quantity)
    if value is None:
        return Entry(MISSING)
    return Entry(_text(value, quantity), ranks.get(place.stem) if quantity == "accuracy" else None)


def _both(outcome: Outcome, place: Place, quantity: str, ranks: Ranks) -> Entry:
    entry, printed = _ours(outcome, place, quantity, ranks), outcome.printed(place, quantity)
    return Entry(entry.text, entry.rank, f"({printed.text})" if printed else "")


def _text(value: Value, quantity: str) -> str:
    spread = f" ± {value.spread:.3f}" if value.seeds > 1 and quantity == "accuracy" else ""
    return QUANTITIES[quantity].show(value.mean) + spread


def _sections(rows: Rows, axes: int) -> tuple[tuple[tuple[Entry, ...], ...], ...]:
    """Rows that share all but the last of their axes stand together."""
    groups = groupby(rows, key=lambda row: [entry.text for entry in row[: max(0, axes - 1)]])
    return tuple(tuple(group) for _, group in groups)


def markdown(outcome: Outcome) -> str:
    """The table with its title and notes, to be pasted into a page."""
    made = sheet(outcome)
    notes = "".join(f"- {note.strip()}\n" for note in (*_key(outcome), *outcome.notes()))
    return f"**{made.title}**\n\n{sheets.markdown(made)}\n{notes}"


def _key(outcome: Outcome) -> list[str]:
    missing = f" {MISSING} is not run yet." if outcome.missing else ""
    if outcome.experiment.table.columns:
        return [f"Ours, and the paper's in brackets.{missing}"]
    return [f"Ours, and the paper's beside.{missing}"]


def lines(outcome: Outcome) -> list[dict[str, Any]]:
    """Every figure in full, a line for each place."""
    found = []
    for place in in_order(outcome.places, [axis.name for axis in outcome.experiment.axes]):
        line: dict[str, Any] = {"cell": place.stem}
        line |= {name: at.value for name, at in place.at.items()}
        line["seeds"] = len(outcome.found.get(place.stem, []))
        for quantity in outcome.experiment.table.values:
            line |= _figures(outcome, place, quantity)
        found.append(line)
    return found


def _figures(outcome: Outcome, place: Place, quantity: str) -> dict[str, Any]:
    ours, printed = outcome.ours(place, quantity), outcome.printed(place, quantity)
    spread = {"spread": ours.spread if ours else None} if quantity == "accuracy" else {}
    return {
        quantity: ours.mean if ours else None,
        **spread,
        f"paper_{quantity}": printed.number if printed else None,
        f"source_{quantity}": printed.source if printed else None,
    }


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Write the table in every form; gives the paths."""
    texts = {
        "table.md": markdown(outcome),
        "table.csv": sheets.csv_text(lines(outcome)),
        "table.tex": sheets.latex(sheet(outcome)),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


def notes(outcome: Outcome) -> Sequence[str]:
    """What stands below the table in a terminal."""
    return [note.strip() for note in (*_key(outcome), *outcome.notes())]
