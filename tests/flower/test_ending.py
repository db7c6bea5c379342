"""A run over Flower ends as a simulated one does: with a packed model and a report."""

import numpy as np
from PIL import Image

from fedtiny.cli.main import dispatch
from fedtiny.errors import ModelError
from fedtiny.export import after

from .federation import Grid, federate, tiny


def test_it_ends_with_a_packed_model_and_a_report(tmp_path, capsys):
    run = federate(Grid(), tiny(rounds=1), tmp_path / "run")
    said = capsys.readouterr().out
    assert f"report: {run / 'report.html'}" in said
    assert f"packed model: {run / 'model.packed'}" in said
    assert "laptop" not in (run / "report.html").read_text(), "names of nodes stay in nodes.json"
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "digit.png")
    assert dispatch(["predict", str(run), str(tmp_path / "digit.png"), "--top", "10"]) == 0
    assert capsys.readouterr().out.count("%") == 10


def test_a_model_that_cannot_be_packed_leaves_the_run_whole(tmp_path, monkeypatch, capsys):
    def refuse(path, graph):
        raise ModelError("its layers have no packed form")

    monkeypatch.setattr(after, "pack_run", refuse)
    run = federate(Grid(), tiny(rounds=1), tmp_path / "run")
    assert "no packed model: its layers have no packed form" in capsys.readouterr().out
    assert (run / "result.json").exists()
