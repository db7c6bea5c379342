"""An experiment as a table: ours beside the paper's."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fedtiny.experiments import labels
from fedtiny.experiments import sheet as sheets
from fedtiny.experiments.places import Place, along, in_order
from fedtiny.experiments.quantities import QUANTITIES
from fedtiny.experiments.results import Results
from fedtiny.experiments.sheet import Entry, Section, Sheet

MISSING = "-"
Ranks = dict[str, int | None]


def sheet(results: Results) -> Sheet:
    """The table; the paper's values stand in columns of their own, or in brackets."""
    experiment, layout = results.experiment, results.experiment.table
    headings, rows = _across(results) if layout.columns else _down(results)
    words = [a for a in layout.rows if any(isinstance(p.at[a].value, str) for p in results.places)]
    title = f"{experiment.title} ({experiment.source})" if experiment.source else experiment.title
    left = tuple(labels.axis(axis) for axis in words)
    headings = (*(labels.axis(axis) for axis in layout.rows), *headings)
    return Sheet(title, headings, _sections(rows, len(layout.rows)), left)


def _down(results: Results) -> tuple[tuple[str, ...], Section]:
    """A row for each place, and the paper's values in columns of their own."""
    layout, ranks, headings, rows = results.experiment.table, _ranks(results), [], []
    beside = [q for q in layout.values if any(results.printed(p, q) for p in results.places)]
    for quantity in layout.values:
        headings += [QUANTITIES[quantity].label, *(["paper"] if quantity in beside else [])]
    for place in in_order(results.places, layout.rows):
        row = [Entry(place.at[axis].label) for axis in layout.rows]
        for quantity in layout.values:
            row.append(_ours(results, place, quantity, ranks))
            if quantity in beside:
                printed = results.printed(place, quantity)
                row.append(Entry(printed.text if printed else ""))
        rows.append(tuple(row))
    return tuple(headings), tuple(rows)


def _across(results: Results) -> tuple[tuple[str, ...], Section]:
    """Columns for an axis, with the paper's value in brackets behind ours."""
    layout, ranks, rows = results.experiment.table, _ranks(results), []
    (quantity,), (column,) = layout.values, layout.columns
    across = along(results.places, column)
    at_place = {place.where(*layout.rows, column): place for place in results.places}
    firsts = {place.where(*layout.rows): place for place in results.places}
    for first in in_order(list(firsts.values()), layout.rows):
        row = [Entry(first.at[axis].label) for axis in layout.rows]
        for at in across:
            place = at_place.get((*first.where(*layout.rows), at.value))
            row.append(_both(results, place, quantity, ranks) if place else Entry(""))
        rows.append(tuple(row))
    return tuple(labels.with_axis(column, at.label) for at in across), tuple(rows)


def _ranks(results: Results) -> Ranks:
    """The best and second best accuracy among those that differ on one axis only."""
    best_of = results.experiment.table.best_of
    if best_of is None:
        return {}
    others = [axis.name for axis in results.experiment.axes if axis.name != best_of]
    groups: dict[tuple[Any, ...], list[Place]] = {}
    for place in results.places:
        if not place.dense:
            groups.setdefault(place.where(*others), []).append(place)
    ranks: Ranks = {}
    for group in groups.values():
        values = [results.ours(place, "accuracy") for place in group]
        found = sheets.ranks(value.mean if value else None for value in values)
        ranks |= {place.stem: rank for place, rank in zip(group, found, strict=True)}
    return ranks


def _ours(results: Results, place: Place, quantity: str, ranks: Ranks) -> Entry:
    value = results.ours(place, quantity)
    if value is None:
        return Entry(MISSING)
    text = QUANTITIES[quantity].show(value.mean)
    if quantity != "accuracy":
        return Entry(text)
    spread = f" ± {value.spread:.3f}" if value.seeds > 1 else ""
    return Entry(text + spread, ranks.get(place.stem))


def _both(results: Results, place: Place, quantity: str, ranks: Ranks) -> Entry:
    entry, printed = _ours(results, place, quantity, ranks), results.printed(place, quantity)
    return Entry(entry.text, entry.rank, f"({printed.text})" if printed else "")


def _sections(rows: Section, axes: int) -> tuple[Section, ...]:
    """Rows that share all but the last of their axes stand together."""
    groups = groupby(rows, key=lambda row: [entry.text for entry in row[: max(0, axes - 1)]])
    return tuple(tuple(group) for _, group in groups)


def markdown(results: Results) -> str:
    """The table with its title and notes, to be pasted into a page."""
    made = sheet(results)
    told = "".join(f"- {note}\n" for note in notes(results))
    return f"**{made.title}**\n\n{sheets.markdown(made)}\n{told}"


def notes(results: Results) -> list[str]:
    """What stands below the table."""
    where = "in brackets" if results.experiment.table.columns else "beside"
    missing = f" {MISSING} is not run yet." if results.missing else ""
    told = (f"Ours, and the paper's {where}.{missing}", *results.notes())
    return [note.strip() for note in told]


def lines(results: Results, quantities: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every figure in full, a line for each place: these quantities, or the table's.

    With the table's, the paper's values stand beside them.
    """
    found = []
    for place in in_order(results.places, [axis.name for axis in results.experiment.axes]):
        line: dict[str, Any] = {} if quantities else {"cell": place.stem}
        line |= {name: at.value for name, at in place.at.items()}
        line["seeds"] = len(results.found.get(place.stem, []))
        for quantity in quantities or results.experiment.table.values:
            ours, printed = results.ours(place, quantity), results.printed(place, quantity)
            line[quantity] = ours.mean if ours else None
            if quantity == "accuracy":
                line["spread"] = ours.spread if ours else None
            if not quantities:
                line[f"paper_{quantity}"] = printed.number if printed else None
                line[f"source_{quantity}"] = printed.source if printed else None
        found.append(line)
    return found


def write(results: Results, folder: Path) -> list[Path]:
    """Write the table in every form; returns the paths."""
    return sheets.write(folder, sheet(results), lines(results), markdown(results))
