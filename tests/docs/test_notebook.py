"""The example notebook runs top to bottom, and is kept without outputs."""

import contextlib
import io
import json

import matplotlib
import matplotlib.pyplot as plt

from .markdown import ROOT

NOTEBOOK = json.loads((ROOT / "examples" / "digits.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_it_is_kept_without_outputs_and_with_distinct_cells():
    assert [cell["outputs"] for cell in CODE] == [[]] * len(CODE)
    assert {cell["execution_count"] for cell in CODE} == {None}
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(ids)) == len(ids)
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)


def test_it_runs_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    backend = matplotlib.get_backend()
    matplotlib.use("agg")
    names, said = {"__name__": "notebook"}, io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            for number, cell in enumerate(CODE):
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    finally:
        plt.close("all")
        matplotlib.use(backend)
    assert names["result"].accuracy > 0.7
    assert names["result"].density <= 0.02
    assert "<- chosen" in said.getvalue()
