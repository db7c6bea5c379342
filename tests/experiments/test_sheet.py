"""One table in four forms: what is marked, what is in full, what is written."""

import csv
import io
from dataclasses import replace

import pytest
from rich.console import Console

from fedtiny.config import Config
from fedtiny.experiments import compare, table
from fedtiny.experiments.compare import COMPARISON, places
from fedtiny.experiments.finished import Finished
from fedtiny.experiments.results import Results

COSTS = {"flops_round": 2e9, "flops_ratio": 1.0, "memory_paper": 4_000.0, "bytes_round": 9_000.0}
COSTS |= {"flops_training": 2e9, "selection_flops": 0.0, "pretraining_passes": 150}
COSTS |= {"server_passes": 100}
ACCURACIES = {
    ("fedavg", 1.0): 0.99,
    ("fl_pqsu", 0.05): 0.7,
    ("snip", 0.05): 0.9,
    ("fedtiny", 0.05): 0.8,
    ("fl_pqsu", 0.01): 0.6,
    ("snip", 0.01): 0.1,
    ("fedtiny", 0.01): 0.65,
}
SPREAD = 0.001


def results(seeds=2, share=1.0):
    """A comparison with these accuracies, each the mean of two that differ by the spread."""
    apart = SPREAD / 2**0.5
    found = {}
    for (method, density), mean in ACCURACIES.items():
        moved = 1_870_000.0 if (method, density) == ("fedtiny", 0.05) else 0.0
        stem = f"{method}-d{density:g}"
        found[stem] = [
            Finished(
                *(f"{stem}-s{seed}", seed, {}),
                COSTS | {"accuracy": a, "selection_bytes": moved, "selection_flops": 3.5e3 * moved},
            )
            for seed, a in enumerate([share * mean - apart, share * mean + apart][:seeds])
        ]
    shown = places(Config(method=method, density=density) for method, density in ACCURACIES)
    return Results(COMPARISON, shown, found)


ROWS = results()


def marked(rank):
    rows = [row for section in table.sheet(ROWS).sections for row in section]
    return [(row[0].text, row[1].text) for row in rows if row[4].rank == rank]


def test_the_best_two_of_each_density_are_ranked_and_the_dense_one_is_not():
    assert marked(table.BEST) == [("0.05", "snip"), ("0.01", "fedtiny")]
    assert marked(table.SECOND) == [("0.05", "fedtiny"), ("0.01", "fl_pqsu")]


def test_a_single_method_is_not_the_best_of_anything():
    assert table.ranks([0.7]) == [None]
    assert table.ranks([None, 0.0]) == [None, None]
    assert table.ranks([]) == []
    assert table.ranks([None, 0.0, 0.0]) == [None, table.BEST, table.SECOND]


def shown(form, rows=ROWS):
    return form(table.sheet(rows))


def on_terminal(sheet):
    return table.terminal(sheet, width=120)


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


@pytest.mark.parametrize("width", [120, 80, 72, 70, 30])
def test_no_figure_is_cut_however_narrow_the_terminal_is(width):
    out = io.StringIO()
    Console(file=out, width=width, soft_wrap=True).print(table.terminal(table.sheet(ROWS), width))
    text = out.getvalue()
    assert "…" not in text
    assert all(f"{accuracy:.4f} ± 0.001" in text for accuracy in ACCURACIES.values())
    if width >= 70:
        assert max(map(len, text.splitlines())) <= width
    assert ("no room for:" in text) == (width < 120)
    assert ("1.87 MB" in text) == (width > 72)


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
    assert " 3.3 " in text, "selection, in plain rounds"


def test_markdown_marks_and_lines_up():
    lines = shown(table.markdown).splitlines()
    assert len(lines) == 2 + len(ACCURACIES)
    assert {line.count("|") for line in lines} == {11 + 1}
    assert [line for line in lines if "**" in line] == [lines[4], lines[8]]
    assert "| 0.05 | snip | paper | uniform | **0.9000 ± 0.001** |" in lines[4]
    assert "| 0.05 | fedtiny | paper | uniform | *0.8000 ± 0.001* |" in lines[5]
    assert "| 0.01 | fl_pqsu | paper | uniform | *0.6000 ± 0.001* |" in lines[6]


def test_latex_marks_and_escapes():
    text = shown(table.latex)
    assert r"0.05 & snip & paper & uniform & \textbf{0.9000 $\pm$ 0.001} & 1.000x" in text
    assert r"0.05 & fedtiny & paper & uniform & \underline{0.8000 $\pm$ 0.001} &" in text
    assert r"0.01 & fl\_pqsu & paper & uniform & \underline{0.6000 $\pm$ 0.001} &" in text
    assert (text.count(r"\textbf"), text.count(r"\underline")) == (2, 2)
    assert "±" not in text
    columns = text.splitlines()[0].removeprefix(r"\begin{tabular}").strip("{}")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in body} == {len(columns) - 1}
    assert text.endswith("\\bottomrule\n\\end{tabular}\n")


def test_one_seed_shows_no_spread():
    single = results(seeds=1)
    for text in (shown(table.markdown, single), shown(table.latex, single)):
        assert "±" not in text
        assert "pm" not in text


def test_one_seed_is_ranked_and_not_marked():
    assert "*" not in shown(table.markdown, results(seeds=1))
    mixed = results()
    found = {stem: runs[:1] if stem == "snip-d0.05" else runs for stem, runs in mixed.found.items()}
    text = shown(table.markdown, replace(mixed, found=found))
    assert "| snip | paper | uniform | 0.8993 |" in text
    assert "| fedtiny | paper | uniform | *0.8000 ± 0.001* |" in text, "it is second all the same"


def test_csv_has_every_figure_in_full():
    exact = table.lines(results(share=1 / 3), compare.IN_FULL)
    read = list(csv.DictReader(io.StringIO(table.csv_text(exact))))
    assert list(read[0]) == [
        *("density", "method", "recipe", "budgets", "seeds", "accuracy", "spread"),
        *("flops", "flops_ratio", "flops_plain", "memory", "bytes_round", "selection_bytes"),
        *("selection_flops", "selection_rounds", "pretraining_passes", "server_passes"),
    ]
    kinds = {name: type(value) for name, value in exact[0].items()}
    assert [{n: kinds[n](v) for n, v in line.items()} for line in read] == exact
    assert exact[2]["accuracy"] == pytest.approx(0.3)
    assert exact[2]["spread"] == pytest.approx(SPREAD)


def test_every_form_is_written(tmp_path):
    paths = table.write(ROWS, tmp_path, compare.IN_FULL)
    assert [path.name for path in paths] == ["table.csv", "table.md", "table.tex"]
    assert paths[0].read_text() == table.csv_text(table.lines(ROWS, compare.IN_FULL))
    assert paths[1].read_text(encoding="utf-8") == shown(table.markdown)
    assert paths[2].read_text() == shown(table.latex)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(p.name for p in paths)
