"""The table of a comparison, in every form."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from fedtiny.compare import sheet as sheets
from fedtiny.compare.rows import Row
from fedtiny.compare.sheet import Entry, Sheet
from fedtiny.runs import formatting
from fedtiny.runs.folder import write_atomically

HEADINGS = ("density", "method", "accuracy", "FLOPs", "memory", "bytes", "select")


def sheet(rows: Sequence[Row]) -> Sheet:
    """A section for each density; the dense method is not ranked."""
    by_density = [list(group) for _, group in groupby(rows, key=lambda row: row.density)]
    sections = tuple(_section(group) for group in by_density)
    return Sheet("Comparison", HEADINGS, sections, left=("method",))


def _section(rows: list[Row]) -> tuple[tuple[Entry, ...], ...]:
    ranks = sheets.ranks(row.accuracy if row.density < 1 else None for row in rows)
    return tuple(_entries(row, rank) for row, rank in zip(rows, ranks, strict=True))


def _entries(row: Row, rank: int | None) -> tuple[Entry, ...]:
    """A row as text; FLOPs as a share of the dense network's, bytes of a device in a round."""
    spread = f" ± {row.spread:.3f}" if row.seeds > 1 else ""
    return (
        Entry(f"{row.density:g}"),
        Entry(row.method),
        Entry(f"{row.accuracy:.4f}{spread}", rank),
        Entry(f"{row.flops_ratio:.3f}x"),
        Entry(formatting.size(row.memory)),
        Entry(formatting.size(row.bytes_round)),
        Entry(formatting.size(row.selection_bytes) if row.selection_bytes else ""),
    )


def write_all(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the table in every form; gives the paths."""
    made = sheet(rows)
    texts = {
        "table.csv": sheets.csv_text([asdict(row) for row in rows]),
        "table.md": sheets.markdown(made),
        "table.tex": sheets.latex(made),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]
