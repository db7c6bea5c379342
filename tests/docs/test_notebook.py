"""The example notebook runs in a kernel, shows progress and pictures, and is kept clean."""

import json

import pytest

from .markdown import ROOT

NOTEBOOK = json.loads((ROOT / "examples" / "digits.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
OF_JUPYTER = "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning"


def test_it_is_kept_without_outputs_and_with_distinct_cells():
    assert [cell["outputs"] for cell in CODE] == [[]] * len(CODE)
    assert {cell["execution_count"] for cell in CODE} == {None}
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(ids)) == len(ids)
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The cells of code with what a kernel shows below each, by the first line of the cell."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "extensions"))
        from notebook_page import executed

        played = executed(tmp_path_factory.mktemp("notebook"))
    return [cell for cell in played.cells if cell.cell_type == "code"]


def shown(cells, start):
    """What is shown below the cell that has this in it: by kind, or plain text.

    A slow kernel may print a line in parts.
    """
    (outputs,) = [cell.outputs for cell in cells if start in cell.source]
    found = []
    for output in outputs:
        kind, data = output.output_type, output.get("data", {"text/plain": output.get("text")})
        if found and found[-1][0] == kind == "stream":
            found[-1][1]["text/plain"] += data["text/plain"]
        else:
            found.append((kind, data))
    return [data for _, data in found]


@pytest.mark.filterwarnings(*OF_JUPYTER)
def test_a_run_shows_progress_in_one_line_and_a_picture(cells):
    headline, line, picture = shown(cells, 'out=runs / "first"')
    assert headline["text/plain"].startswith("fedtiny: resnet18 (width 16) to density 0.02")
    assert line["text/plain"].startswith("round 8/8: done: accuracy 0.")
    assert '<progress value="8" max="8">' in line["text/html"]
    assert picture["image/svg+xml"].startswith("<svg ")
    accuracy = float(line["text/plain"].split()[4])
    assert accuracy > 0.7


@pytest.mark.filterwarnings(*OF_JUPYTER)
def test_pictures_and_tables_are_shown(cells):
    kinds = [form for cell in cells for output in cell.outputs for form in output.get("data", ())]
    assert kinds.count("image/svg+xml") == 5
    (frame,) = shown(cells, "metrics_frame()")
    assert "<table" in frame["text/html"]
    assert "<table" in shown(cells, "fedtiny.sweep(")[-1]["text/html"]


@pytest.mark.filterwarnings(*OF_JUPYTER)
def test_a_stopped_run_says_how_it_goes_on_and_does(cells):
    _, line, why, result = shown(cells, "class Impatient")
    assert line["text/plain"].startswith("round 1/2: stopped; continue with: fedtiny.resume('runs/")
    assert why["text/plain"] == "this takes too long\n"
    assert ", 1 of 2 rounds, 'runs/notebook/second'>" in result["text/plain"]
    assert ", 2 of 2 rounds, " in shown(cells, "fedtiny.resume(")[-1]["text/plain"]
