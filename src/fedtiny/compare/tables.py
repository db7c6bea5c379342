"""A comparison as a table: in the terminal, as CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich.table import Table

from fedtiny.compare.rows import Row
from fedtiny.runs import words
from fedtiny.runs.folder import write_atomically

HEADINGS = ("density", "method", "accuracy", "FLOPs", "memory", "bytes", "select")
BEST, SECOND = 0, 1

Mark = Callable[[str, int], str]


def ranks(rows: Sequence[Row]) -> dict[Row, int]:
    """The best and the second best method of each density, as the paper marks them."""
    found: dict[Row, int] = {}
    for density in {row.density for row in rows if row.density < 1}:
        ordered = sorted(
            (row for row in rows if row.density == density), key=lambda row: -row.accuracy
        )
        found |= {row: rank for rank, row in enumerate(ordered[:2])}
    return found


def cells(row: Row, rank: int | None, mark: Mark) -> list[str]:
    """A row as text; FLOPs as a share of the dense network's, bytes of a device in a round."""
    spread = f" ± {row.spread:.3f}" if row.seeds > 1 else ""
    accuracy = f"{row.accuracy:.4f}{spread}"
    return [
        f"{row.density:g}",
        row.method,
        accuracy if rank is None else mark(accuracy, rank),
        f"{row.flops_ratio:.3f}x",
        words.size(row.memory),
        words.size(row.bytes_round),
        words.size(row.selection_bytes) if row.selection_bytes else "",
    ]


def terminal(rows: Sequence[Row]) -> Table:
    """The table for a terminal: best in bold, second underlined."""
    table = words.titled("Comparison")
    table.pad_edge = False
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    marked, before = ranks(rows), None
    for row in rows:
        if before is not None and row.density != before:
            table.add_section()
        table.add_row(*cells(row, marked.get(row), _rich))
        before = row.density
    return table


def _rich(text: str, rank: int) -> str:
    return f"[bold]{text}[/bold]" if rank == BEST else f"[underline]{text}[/underline]"


def markdown(rows: Sequence[Row]) -> str:
    """The table in Markdown: best in bold, second in italics."""
    marked = ranks(rows)
    lines = [HEADINGS, ["---"] * len(HEADINGS)]
    body = [cells(row, marked.get(row), _markdown) for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in [*lines, *body])


def _markdown(text: str, rank: int) -> str:
    return f"**{text}**" if rank == BEST else f"*{text}*"


def latex(rows: Sequence[Row]) -> str:
    """The table in LaTeX (booktabs): best in bold, second underlined."""
    marked = ranks(rows)
    body = [cells(row, marked.get(row), _latex) for row in rows]
    lines = [" & ".join(line).replace("_", r"\_").replace("±", r"$\pm$") for line in body]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{rl{'r' * (len(HEADINGS) - 2)}}}",
            r"\toprule",
            " & ".join(HEADINGS) + r" \\",
            r"\midrule",
            *(line + r" \\" for line in lines),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _latex(text: str, rank: int) -> str:
    return rf"\textbf{{{text}}}" if rank == BEST else rf"\underline{{{text}}}"


def csv_text(rows: Sequence[Row]) -> str:
    """Every figure in full, for other programs."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()


def write_all(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the table in every form; gives the paths."""
    texts = {"table.csv": csv_text(rows), "table.md": markdown(rows), "table.tex": latex(rows)}
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]
