"""`fedtiny report`, and the page that a run ends with."""

import shutil
import sys
from types import SimpleNamespace

import pytest

from fedtiny import finish
from fedtiny.report import comparison
from fedtiny.report.run import read
from fedtiny.runs.folder import RunFolder

from ..runs.tiny import FLAGS, assert_one_sentence, differences, tiny, train


def test_the_page_and_its_figures_are_written_beside_the_run(fedtiny, finished):
    said = fedtiny("report", finished)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        f"report: {finished / 'report.html'}",
        f"figures: 16 in {finished / 'report_figures'}",
    ]
    stems = {path.stem for path in (finished / "report_figures").iterdir()}
    files = {path.name for path in (finished / "report_figures").iterdir()}
    assert files == {f"{stem}.{form}" for stem in stems for form in ("svg", "png")}
    assert len(stems) == 16


def test_several_runs_go_into_one_page(fedtiny, several, tmp_path):
    said = fedtiny("report", several, "--out", tmp_path / "all.html")
    assert (said.code, said.err) == (0, "")
    files = {path.name for path in (tmp_path / "all_figures").iterdir()}
    names = ("accuracy_over_density", "front", "front_by_bytes", "front_by_size", "accuracies")
    names = (
        *names,
        "accuracies_by_bytes",
        "accuracies_by_time",
        "accuracies_by_flops",
        "front_by_plain_flops",
    )
    assert files == {f"comparison1_{name}.{form}" for name in names for form in ("png", "svg")}


def test_without_matplotlib_only_the_pngs_are_missing(fedtiny, finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    said = fedtiny("report", finished)
    assert said.code == 0
    assert "no PNG files: matplotlib is not installed; it comes with" in said.out
    assert "fedtiny[plot]" in said.out
    assert {path.suffix for path in (finished / "report_figures").iterdir()} == {".svg"}


def test_what_is_no_run_is_told_in_a_sentence(fedtiny, tmp_path):
    said = fedtiny("report", tmp_path / "nowhere")
    assert_one_sentence(said.code, said.err, "there is no ", "give the folder of a run")


def test_a_run_ends_with_its_report_and_is_the_same_without(fedtiny, tmp_path):
    said = fedtiny("run", *FLAGS, "--out", tmp_path / "run")
    assert f"report: {tmp_path / 'run' / 'report.html'}" in said.out.splitlines()
    assert "<!doctype html>" in (tmp_path / "run" / "report.html").read_text()
    said = fedtiny("run", *FLAGS, "--no-report", "--out", tmp_path / "plain")
    assert "report" not in said.out
    assert not (tmp_path / "plain" / "report.html").exists()
    assert differences(tmp_path / "run", tmp_path / "plain") == []


def test_a_resumed_run_ends_with_its_report(fedtiny, stopped):
    said = fedtiny("resume", stopped)
    assert f"report: {stopped / 'report.html'}" in said.out.splitlines()


def test_a_report_that_fails_leaves_the_run_finished(finished, monkeypatch, capsys):
    monkeypatch.setattr(finish, "write_page", lambda *_: 1 / 0)
    finish.finish(SimpleNamespace(path=finished, graph=None))
    said = "no report (ZeroDivisionError: division by zero); the run itself is complete"
    assert said in capsys.readouterr().out.splitlines()


def test_runs_with_other_settings_stand_in_tables_of_their_own_and_in_one_of_all(
    fedtiny, several, tmp_path
):
    other = train(tiny(rounds=1, fleet={"devices": 2}), tmp_path / "other").path
    paths = [*sorted(several.iterdir()), other]
    found = comparison.groups([read(RunFolder(path)) for path in paths])
    assert [len(group.runs) for group in found] == [6, 1]
    assert fedtiny("report", several, other, "--out", tmp_path / "both.html").code == 0
    page = (tmp_path / "both.html").read_text()
    assert "Comparison: small on the digits, 3 devices, Dirichlet(0.5), 2 rounds" in page
    assert "Comparison: small on the digits, 2 devices, Dirichlet(0.5), 1 round" in page
    assert "Here: fleet.devices 2" in page
    overall = page.partition("All runs on")[2].partition("Comparison:")[0]
    listed = overall.partition("<tbody>")[2].partition("</tbody>")[0]
    assert listed.count("<tr>") == 1 + len(
        {(r.config.method, r.config.density) for r in found[0].runs}
    )
    assert "fleet.devices 2" in listed


def test_the_same_run_made_twice_counts_once(fedtiny, finished, tmp_path):
    again = shutil.copytree(finished, tmp_path / "again")
    (group,) = comparison.groups([read(RunFolder(path)) for path in (finished, again)])
    assert ([run.folder.path for run in group.runs], len(group.repeats)) == ([finished], 1)
    results, left_out = comparison.table_results(group)
    assert [len(runs) for runs in results.found.values()] == [1]
    assert left_out == ["again repeats another run to the seed, and counts once"]


def test_a_run_that_cannot_be_costed_is_left_out_with_a_word(evil, tmp_path):
    old = shutil.copytree(evil, tmp_path / "old")
    (old / "about.json").unlink()
    (group,) = comparison.groups([read(RunFolder(old))])
    results, left_out = comparison.table_results(group)
    assert results.places == []
    assert "is not in the table" in left_out[0]


@pytest.mark.parametrize("damage", ["result.json", "partition.safetensors"])
def test_a_damaged_run_among_several_is_left_out_of_the_table(several, tmp_path, damage):
    copies = shutil.copytree(several, tmp_path / "copies")
    (copies / "fedavg" / damage).write_text("{")
    runs = [read(RunFolder(path)) for path in sorted(copies.iterdir())]
    (group,) = comparison.groups(runs)
    results, _ = comparison.table_results(group)
    assert {place.config.method for place in results.places} == {"fedtiny", "fl_pqsu"}
