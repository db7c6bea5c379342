"""One table in four forms: what is marked, what is in full, what is written."""

import csv
import io
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from fedtiny.compare import sheet as sheets
from fedtiny.compare import tables
from fedtiny.compare.rows import Row

DENSE = Row(1.0, "fedavg", 2, 0.99, 0.001, 2e9, 1.0, 4_000.0, 9_000.0, 0.0)


def row(density, method, accuracy, **changes):
    return replace(DENSE, density=density, method=method, accuracy=accuracy, **changes)


ROWS = [
    DENSE,
    row(0.05, "fl_pqsu", 0.7),
    row(0.05, "snip", 0.9),
    row(0.05, "fedtiny", 0.8, selection_bytes=1_870_000.0),
    row(0.01, "fl_pqsu", 0.6),
    row(0.01, "snip", 0.1),
    row(0.01, "fedtiny", 0.65),
]


def marked(rank):
    rows = [row for section in tables.sheet(ROWS).sections for row in section]
    return [(row[0].text, row[1].text) for row in rows if row[2].rank == rank]


def test_the_best_two_of_each_density_are_ranked_and_the_dense_one_is_not():
    assert marked(sheets.BEST) == [("0.05", "snip"), ("0.01", "fedtiny")]
    assert marked(sheets.SECOND) == [("0.05", "fedtiny"), ("0.01", "fl_pqsu")]


def test_a_single_method_is_best_and_there_is_no_second():
    assert sheets.ranks([0.7]) == [sheets.BEST]
    assert sheets.ranks([None, 0.0]) == [None, sheets.BEST]
    assert sheets.ranks([]) == []


def shown(form, rows=ROWS):
    return form(tables.sheet(rows))


def on_terminal(sheet):
    return sheets.terminal(sheet, width=120)


def accuracy_cells(table):
    (column,) = (column for column in table.columns if column.header == "accuracy")
    return list(column.cells)


def test_the_terminal_shows_best_in_bold_and_second_underlined():
    assert accuracy_cells(shown(on_terminal)) == [
        "0.9900 ± 0.001",
        "0.7000 ± 0.001",
        "[bold]0.9000 ± 0.001[/bold]",
        "[underline]0.8000 ± 0.001[/underline]",
        "[underline]0.6000 ± 0.001[/underline]",
        "0.1000 ± 0.001",
        "[bold]0.6500 ± 0.001[/bold]",
    ]


@pytest.mark.parametrize("width", [120, 72, 70, 30])
def test_no_figure_is_cut_however_narrow_the_terminal_is(width):
    out = io.StringIO()
    Console(file=out, width=width, soft_wrap=True).print(sheets.terminal(tables.sheet(ROWS), width))
    text = out.getvalue()
    assert "…" not in text
    assert all(f"{row.accuracy:.4f} ± 0.001" in text for row in ROWS)
    if width >= 70:
        assert max(map(len, text.splitlines())) <= width


def test_the_terminal_prints_every_row_and_no_markup():
    out = io.StringIO()
    Console(file=out, width=120).print(shown(on_terminal))
    text = out.getvalue()
    assert "[" not in text
    assert [text.count(method) for method in ("fedavg", "fl_pqsu", "snip", "fedtiny")] == [
        1,
        2,
        2,
        2,
    ]
    assert "1.87 MB" in text
    assert text.count("1.000x") == 7


def test_markdown_marks_and_lines_up():
    lines = shown(sheets.markdown).splitlines()
    assert len(lines) == 2 + len(ROWS)
    assert {line.count("|") for line in lines} == {len(tables.HEADINGS) + 1}
    assert [line for line in lines if "**" in line] == [lines[4], lines[8]]
    assert "| 0.05 | snip | **0.9000 ± 0.001** |" in lines[4]
    assert "| 0.05 | fedtiny | *0.8000 ± 0.001* |" in lines[5]
    assert "| 0.01 | fl_pqsu | *0.6000 ± 0.001* |" in lines[6]


def test_latex_marks_and_escapes():
    text = shown(sheets.latex)
    assert r"0.05 & snip & \textbf{0.9000 $\pm$ 0.001} & 1.000x" in text
    assert r"0.05 & fedtiny & \underline{0.8000 $\pm$ 0.001} &" in text
    assert r"0.01 & fl\_pqsu & \underline{0.6000 $\pm$ 0.001} &" in text
    assert (text.count(r"\textbf"), text.count(r"\underline")) == (2, 2)
    assert "±" not in text
    columns = text.splitlines()[0].removeprefix(r"\begin{tabular}").strip("{}")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in body} == {len(columns) - 1}
    assert text.endswith("\\bottomrule\n\\end{tabular}\n")


def test_one_seed_shows_no_spread():
    single = [replace(r, seeds=1) for r in ROWS]
    for text in (shown(sheets.markdown, single), shown(sheets.latex, single)):
        assert "±" not in text
        assert "pm" not in text


def test_csv_has_every_figure_in_full():
    exact = [replace(r, accuracy=r.accuracy / 3, spread=1 / 7, flops=1e13 / 3) for r in ROWS]
    read = list(csv.DictReader(io.StringIO(sheets.csv_text([asdict(row) for row in exact]))))
    kinds = {name: type(value) for name, value in asdict(exact[0]).items()}
    assert [{n: kinds[n](v) for n, v in line.items()} for line in read] == list(map(asdict, exact))


def test_every_form_is_written(tmp_path):
    paths = tables.write_all(ROWS, tmp_path)
    assert [path.name for path in paths] == ["table.csv", "table.md", "table.tex"]
    assert paths[0].read_text() == sheets.csv_text([asdict(row) for row in ROWS])
    assert paths[1].read_text(encoding="utf-8") == shown(sheets.markdown)
    assert paths[2].read_text() == shown(sheets.latex)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(p.name for p in paths)
