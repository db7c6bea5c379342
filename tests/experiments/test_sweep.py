"""Cells are run, cut, resumed and carried to other machines."""

import io
import json
import shutil
from dataclasses import replace

import pytest
from rich.console import Console

from fedtiny.errors import ConfigError, RunError
from fedtiny.experiments import runner
from fedtiny.experiments.finished import note_machine
from fedtiny.experiments.places import Filter
from fedtiny.experiments.runner import Runner
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reading import machines
from fedtiny.runs.reporter import Silent
from fedtiny.runs.runner import resume

from ..runs.test_kills import KILLED
from ..runs.tiny import Mortal, differences, locked_elsewhere
from .own import make, sweep

NO_TIME = 1e-9


def finished(order):
    return {path.parent.name for path in order.cells_folder.glob("*/result.json")}


def rounds_done(order, cell):
    path = order.cells_folder / cell.name / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_experiments_share_a_run(suite, made):
    order = sweep(suite, made, ["all"])
    names = [cell.name for cell in order.cells()]
    assert len(names) == 5 + 1
    assert set(names) == finished(order)
    assert names[:2] == ["fedtiny-digits-small-d0.25-s0", "fedtiny-digits-small-d0.3-s0"]


def test_what_is_finished_is_not_run_again(suite, made, monkeypatch):
    monkeypatch.setattr(runner, "complete", lambda *_: pytest.fail("ran again"))
    make(sweep(suite, made, ["all"]))


def test_slices_come_to_the_same_end(suite, made, tmp_path):
    """However short a slice is, the work goes on by a checkpoint, and ends with the same bytes."""
    order, whole = sweep(suite, tmp_path / "sliced"), sweep(suite, made)
    for _ in range(100):
        account = make(order, NO_TIME)
        if not account.out_of_time:
            break
    assert finished(order) == {cell.name for cell in order.cells()}
    for name in finished(order):
        assert differences(order.cells_folder / name, whole.cells_folder / name) == []


def test_a_slice_ends_at_a_checkpoint(suite, tmp_path):
    order = sweep(suite, tmp_path, scale="rare")
    cell = order.cells()[0]
    done = []
    for _ in range(4):
        assert make(order, NO_TIME, [cell, order.cells()[1]]).out_of_time
        done.append(rounds_done(order, cell))
    assert done == [0, 2, 4, 5]
    assert finished(order) == {cell.name}


@pytest.fixture(scope="module")
def fedtiny():
    mortal = Mortal()
    yield mortal
    mortal.close()


KILLS = {
    3: (None, "in the set-up of the first cell"),
    9: ("goes on after round 1 of 3", "after its first round"),
    12: ("goes on after round 3 of 3", "before its result"),
    23: ("goes on after round 1 of 3", "in the second cell"),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", KILLS)
def test_killed_in_the_middle_and_continued_elsewhere(fedtiny, folder, suite, made, tmp_path, call):
    """Not a checkpoint is lost, and the end is the same; only where the data lies may differ."""
    flags = ["reproduce", "first", "--scale", "tiny", "--folder", folder, "--methods", "fedtiny"]
    flags += ["--keep-models"]
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    ended = fedtiny(*map(str, flags), "--out", str(there), at="renamed", call=call)
    assert ended["code"] == KILLED, ended["output"]
    shutil.copytree(there, elsewhere)
    shutil.rmtree(there)
    flags += ["--data.root", tmp_path / "data", "--out", elsewhere]
    ended = fedtiny.to_the_end(*map(str, flags))
    assert KILLS[call][0] is None or KILLS[call][0] in ended["output"]
    order, whole = sweep(suite, elsewhere), sweep(suite, made)
    assert len(finished(order)) == 2
    for name in finished(order):
        found = differences(order.cells_folder / name, whole.cells_folder / name)
        assert set(found) <= {"config"}


def test_a_network_that_was_not_kept_is_made_again_from_its_checkpoint(suite, made, tmp_path):
    order = sweep(suite, tmp_path)
    cell = order.cells()[0]
    make(order, None, [cell], keep_models=False)
    place = RunFolder(order.cells_folder / cell.name)
    assert place.result.exists()
    assert not place.model.exists()
    resume(place.path, reporter=Silent())
    assert differences(place.path, sweep(suite, made).cells_folder / cell.name) == []


def test_a_network_that_another_process_kept_is_left_there(suite, made):
    """It finished the cell after this one had found it to do."""
    order = sweep(suite, made)
    cell = order.cells()[0]
    place, said = order.cells_folder, Console(file=io.StringIO())
    account = Runner(place, said, keep_models=False).run([cell], [cell])
    title = f"1/1 {cell.name}"
    told = f"{title}: starts\n{title}: is finished already\n"
    assert (account.failed, said.file.getvalue()) == ({}, told)
    assert RunFolder(place / cell.name).model.exists()


def test_the_machines_that_worked_on_a_run_are_noted(suite, tmp_path):
    order = sweep(suite, tmp_path)
    make(order, NO_TIME)
    cell = order.cells()[0]
    folder = RunFolder(order.cells_folder / cell.name)
    (first,) = machines(folder)
    assert first["command"] == "fedtiny reproduce"
    assert first["cpu"]
    assert {"python", "torch", "fedtiny", "cores", "gpu"} <= first.keys()
    note_machine(folder, first)
    note_machine(folder, first | {"cpu": "another"})
    assert [found["cpu"] for found in machines(folder)] == [first["cpu"], "another"]


def test_a_cell_that_fails_does_not_stop_the_others(suite, tmp_path):
    order = sweep(suite, tmp_path)
    cells = order.cells()[:2]
    other = replace(cells[0].config, rounds=7)
    make(order, NO_TIME, [replace(cells[0], config=other)])
    account = make(order, None, cells)
    assert list(account.failed) == [cells[0].name]
    assert "holds a run with other settings (rounds)" in account.failed[cells[0].name]
    assert finished(order) == {cells[1].name}


def test_a_finished_cell_of_other_settings_is_refused_before_anything_runs(
    suite, made, monkeypatch
):
    monkeypatch.setattr(runner, "complete", lambda *_: pytest.fail("something ran"))
    order = sweep(suite, made)
    first, last = order.cells()[0], order.cells()[-1]
    shutil.rmtree(order.cells_folder / first.name)
    other = replace(last, config=replace(last.config, rounds=7))
    with pytest.raises(RunError, match=r"other settings \(rounds\); choose another --out"):
        make(order, None, [first, other])


def test_a_cell_that_breaks_does_not_stop_the_others_either(suite, tmp_path, monkeypatch):
    order = sweep(suite, tmp_path)
    broken, sound = order.cells()[:2]
    plain = runner.complete

    def breaking(cell, *rest):
        if cell is broken:
            raise RuntimeError("out of memory\nand more")
        return plain(cell, *rest)

    monkeypatch.setattr(runner, "complete", breaking)
    assert make(order, None, [broken, sound]).failed == {broken.name: "RuntimeError: out of memory"}
    assert finished(order) == {sound.name}
    monkeypatch.setenv("FEDTINY_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="out of memory"):
        make(order, None, [broken])


def test_a_failure_is_told_though_another_process_took_the_cell_meanwhile(suite, made, monkeypatch):
    def breaking(*_):
        raise RuntimeError("out of memory")

    order = sweep(suite, made)
    cell = order.cells()[0]
    (order.cells_folder / cell.name / "result.json").unlink()
    monkeypatch.setattr(runner, "complete", breaking)
    with locked_elsewhere(order.cells_folder / cell.name):
        account = make(order)
    assert account.failed == {cell.name: "RuntimeError: out of memory"}
    assert account.elsewhere == []


def test_a_data_set_that_is_not_here_is_left_out(suite, tmp_path):
    order = sweep(suite, tmp_path)
    here, there = order.cells()[:2]
    data = replace(there.config.data, name="svhn", root=str(tmp_path / "nothing"))
    account = make(order, None, [replace(there, config=replace(there.config, data=data)), here])
    assert list(account.without_data) == ["svhn"]
    assert "nothing" in account.without_data["svhn"]
    assert finished(order) == {here.name}


def test_what_cannot_work_is_refused_before_anything_runs(suite, tmp_path):
    order = sweep(suite, tmp_path)
    cells = order.cells()
    hopeless = replace(cells[-1], config=replace(cells[-1].config, density=0.0001))
    with pytest.raises(ConfigError, match=r"density 0\.0001 leaves 0 weights"):
        make(order, None, [*cells[:-1], hopeless])
    assert finished(order) == set()


def test_seeds_run_one_after_the_other(suite, tmp_path):
    order = sweep(suite, tmp_path, seeds=(0, 7))
    names = [cell.name for cell in order.cells()]
    assert len(names) == 10
    assert names[0].removesuffix("-s0") == names[5].removesuffix("-s7")
    assert order.cells()[5].config.seed == 7


def test_this_machines_own_settings_are_no_part_of_a_cell(suite, made, tmp_path):
    order = sweep(suite, made, root=tmp_path, workers=2)
    assert {cell.config.data.root for cell in order.cells()} == {str(tmp_path)}
    assert {cell.config.workers for cell in order.cells()} == {2}
    assert runner.unfinished(order.cells(), order.cells_folder) == []
    assert make(order).failed == {}
    text = json.dumps(
        order.results(order.experiments[0]).found["fedavg-digits-small-d1"][0].settings
    )
    assert str(tmp_path) not in text


def test_data_is_where_this_machine_has_it(suite, tmp_path, monkeypatch):
    def roots(**given):
        return {cell.config.data.root for cell in sweep(suite, tmp_path, **given).cells()}

    monkeypatch.delenv("FEDTINY_DATA", raising=False)
    assert roots() == {None}
    monkeypatch.setenv("FEDTINY_DATA", "somewhere")
    assert roots() == {"somewhere"}
    assert roots(root=tmp_path) == {str(tmp_path)}


# Parts


@pytest.mark.parametrize(
    ("part", "count"),
    [
        (Filter(), 44),
        (Filter(methods=("fedtiny", "snip")), 12),
        (Filter(models=("resnet18",)), 22),
        (Filter(models=("vgg11",)), 22),
        (Filter(models=("vgg11_small",)), 22),
        (Filter(density=(0.02,)), 2 * (7 + 1)),
        (Filter(density=(0.02,), methods=("fedtiny",), models=("resnet18",)), 1),
        (Filter(datasets=("cifar10",)), 44),
        (Filter(datasets=("digits",)), 44),
    ],
)
def test_a_part_of_an_experiment(paper_suite, tmp_path, part, count):
    assert len(sweep(paper_suite, tmp_path, ["table1"], "smoke", part=part).cells()) == count


@pytest.mark.parametrize(
    ("name", "variants", "count"),
    [
        ("schedule", ("entire", "entire_early"), 6),
        ("schedule", ("Block 3/30",), 3),
        ("noniid", ("0.1",), 3),
        ("pool_size", ("100",), 2),
        ("ablation", ("vanilla selection",), 8),
    ],
)
def test_a_part_by_variant(paper_suite, tmp_path, name, variants, count):
    part = Filter(variants=variants)
    assert len(sweep(paper_suite, tmp_path, [name], "mini", part=part).cells()) == count


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        (Filter(methods=("fedtinny",)), r"--methods: no cell has 'fedtinny' .*mean 'fedtiny'"),
        (Filter(models=("resnet81",)), r"--models: no cell has 'resnet81' .*mean 'resnet18'"),
        (Filter(datasets=("svhn",)), r"--datasets: no cell has 'svhn' \(known: digits, cifar10\)"),
        (Filter(density=(0.01,)), r"--density: no cell has '0\.01' \(known: 0\.02, 0\.1, 0\.05\)"),
        (Filter(variants=("x",)), r"--variants: no cell has 'x'"),
    ],
)
def test_a_part_that_is_not_there(paper_suite, tmp_path, part, complaint):
    with pytest.raises(ConfigError, match=complaint):
        sweep(paper_suite, tmp_path, ["table1"], "smoke", part=part).cells()
