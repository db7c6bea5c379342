"""Result files: enough for tables and figures, and nothing of this machine's folders."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedtiny.config.presets import RECIPES
from fedtiny.errors import RunError
from fedtiny.experiments import regimes, table
from fedtiny.experiments.regimes import DECIDING, OLDER, REGIMES, TODAY
from fedtiny.experiments.results import read_file, regime_of, scale_of

from .own import sweep

RESULTS = Path(__file__).parents[2] / "results"
COMMITTED = sorted(str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*.json"))


@pytest.fixture
def written(suite, made):
    """The tiny suite's first experiment and its results.json."""
    order = sweep(suite, made)
    paths, _ = order.write(order.results(order.experiments[0]), "fedtiny reproduce first")
    (path,) = [path for path in paths if path.name == "results.json"]
    return order, path


def shown(order):
    return table.page(order.results(order.experiments[0]))


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_every_cell_is_told_with_settings_figures_and_machine(written):
    document = json.loads(written[1].read_text())
    assert (document["experiment"], document["scale"]) == ("first", "tiny")
    assert document["command"] == "fedtiny reproduce first"
    assert len(document["cells"]) == 5
    (machine,) = document["machines"]
    assert {"cpu", "cores", "gpu", "torch", "python", "fedtiny", "command"} <= machine.keys()
    (cell,) = [c for c in document["cells"] if c["name"] == "fedtiny-digits-small-d0.25-s0"]
    assert (cell["seed"], cell["machines"]) == (0, [0])
    assert cell["settings"]["density"] == 0.25
    assert cell["settings"]["method"] == "fedtiny"
    assert cell["settings"]["rounds"] == 3
    numbers = cell["numbers"]
    assert {
        "accuracy",
        "density",
        "seconds",
        "bytes_down",
        "bytes_up",
        "flops_ratio",
    } <= numbers.keys()


def test_tables_come_from_the_file_alone(written, tmp_path):
    order, path = written
    alone = replace(order, out=tmp_path / "nothing", result_files=(path,), _places={})
    assert shown(alone) == shown(order)
    assert alone.count(alone.experiments[0]) == (5, 5)


def test_folders_and_files_of_several_machines_are_merged(written, suite, tmp_path):
    order, path = written
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    for copy, part in ((one, slice(0, 2)), (other, slice(1, 3))):
        shutil.copy(path, copy)
        edit(copy, lambda d, part=part: d.update(cells=d["cells"][part]))
    some = tmp_path / "out" / "tiny" / "cells"
    names = [cell.name for cell in order.cells()]
    shutil.copytree(order.cells_folder / names[-1], some / names[-1])
    merged = sweep(suite, tmp_path / "out", result_files=(one, other))
    assert merged.count(merged.experiments[0]) == (5, 4)
    assert "4 of 5 cells are finished" in shown(merged)


def test_the_first_source_of_a_cell_counts(written, suite, tmp_path):
    _, path = written
    shutil.copy(path, tmp_path / "other.json")
    edit(tmp_path / "other.json", lambda d: d["cells"][0]["numbers"].update(accuracy=0.125))
    for files, expected in (
        ((path, tmp_path / "other.json"), False),
        ((tmp_path / "other.json", path), True),
    ):
        found = sweep(suite, tmp_path / "none", result_files=files)
        assert ("0.1250" in shown(found)) is expected


def test_results_of_other_settings_are_refused(written, suite, tmp_path):
    _, path = written
    edit(path, lambda d: d["cells"][0]["settings"].update(rounds=9))
    found = sweep(suite, tmp_path, result_files=(path,))
    with pytest.raises(RunError, match=r"results\.json holds 'fedtiny.*other settings \(rounds\)"):
        shown(found)


def test_usual_settings_are_told_too_so_that_another_usual_one_is_refused(written, suite, tmp_path):
    _, path = written
    edit(path, lambda d: d["cells"][0]["settings"].update({"pruning.gradient_epsilon": 0.5}))
    with pytest.raises(RunError, match=r"other settings \(pruning\.gradient_epsilon\)"):
        shown(sweep(suite, tmp_path, result_files=(path,)))


def test_a_setting_that_a_method_does_not_go_by_may_differ(written, suite, tmp_path):
    _, path = written
    other = {"pruning.gradient_epsilon": 0.5, "recipe": "momentum"}
    edit(path, lambda d: [c["settings"].update(other) for c in d["cells"] if "pqsu" in c["name"]])
    assert "5 of 5" in shown(sweep(suite, tmp_path, result_files=(path,)))


def test_a_setting_that_is_younger_than_a_cell_must_be_declared(written, monkeypatch):
    _, path = written
    monkeypatch.setattr(regimes, "DECIDING", DECIDING | {"pruning.made_up"})
    with pytest.raises(RunError, match=r"-s0' is older than pruning\.made_up: .* into OLDER"):
        read_file(path)
    monkeypatch.setitem(OLDER, "pruning.made_up", 0.5)
    assert all(r.settings["pruning.made_up"] == 0.5 for rs in read_file(path).values() for r in rs)


def test_an_older_cell_had_what_was_declared_and_not_the_default(
    written, suite, tmp_path, monkeypatch
):
    _, path = written
    today = json.loads(path.read_text())["cells"][0]["settings"]["pruning.rate"]
    edit(path, lambda d: d["cells"][0]["settings"].pop("pruning.rate"))
    monkeypatch.setitem(OLDER, "pruning.rate", today / 2)
    with pytest.raises(RunError, match=r"other settings \(pruning\.rate\)"):
        shown(sweep(suite, tmp_path, result_files=(path,)))
    monkeypatch.setitem(OLDER, "pruning.rate", today)
    assert "5 of 5" in shown(sweep(suite, tmp_path, result_files=(path,)))


def test_a_file_says_its_regime(written):
    order, path = written
    assert json.loads(path.read_text())["regime"] == regime_of([path]) == TODAY
    assert f"Regime {TODAY}: {REGIMES[TODAY].title}." in shown(order)


@pytest.mark.parametrize("regime", [None, "golden"])
def test_a_file_of_no_known_regime_is_refused(written, regime):
    _, path = written
    edit(path, lambda d: d.update(regime=regime))
    with pytest.raises(RunError, match=r"names no regime that is known \(undefended, defended"):
        read_file(path)


def as_in(path, regime):
    """Make a file one of an earlier regime."""
    edit(path, lambda d: [c["settings"].update(REGIMES[regime].settings) for c in d["cells"]])
    edit(path, lambda d: d.update(regime=regime))
    return path


def test_no_table_has_two_regimes(written, suite, tmp_path):
    _, path = written
    other = as_in(shutil.copy(path, tmp_path / "other.json"), "defended")
    mixed = sweep(suite, tmp_path / "none", result_files=(path, other))
    told = r"one regime only.*results\.json is of fair, .*other\.json is of defended; give those"
    with pytest.raises(RunError, match=told):
        shown(mixed)


def test_an_earlier_regime_has_a_table_of_its_own(written, suite):
    order, path = written
    other = as_in(shutil.copy(path, path.with_name("other.json")), "defended")
    earlier = sweep(suite, order.out, result_files=(other,))
    assert f"Regime defended: {REGIMES['defended'].title}." in shown(earlier)
    results = earlier.results(earlier.experiments[0])
    assert sum(map(len, results.found.values())) == 5
    paths, _ = earlier.write(results, "fedtiny reproduce first")
    assert {p.parent for p in paths} == {order.out / "tiny-defended" / "first"}
    (again,) = [p for p in paths if p.name == "results.json"]
    assert (regime_of([again]), regime_of([path])) == ("defended", TODAY)
    assert "scale tiny, regime defended" in next(p for p in paths if p.suffix == ".svg").read_text()
    shutil.copy(again, path)
    with pytest.raises(RunError, match=r"is of regime defended, not fair; choose another --out"):
        shown(order)


def test_a_regime_is_more_than_a_word(written, suite, tmp_path):
    _, path = written
    edit(path, lambda d: d.update(regime="defended"))
    with pytest.raises(RunError, match=r"other settings \(.*robustness\.bound, robustness\.reject"):
        shown(sweep(suite, tmp_path, result_files=(path,)))


@pytest.mark.parametrize("name", COMMITTED)
def test_every_committed_cell_names_every_setting_and_is_of_its_regime(name):
    document = json.loads((RESULTS / name).read_text())
    regime, earlier = document["regime"], name.split("/")[1]
    assert regime == (earlier if name.startswith("earlier/") else TODAY)
    undefended = {"robustness.bound": 0.0, "robustness.reject": 0.0}
    for cell in document["cells"]:
        assert cell["settings"].keys() >= DECIDING
        assert (REGIMES[regime].settings or undefended).items() <= cell["settings"].items()
        if "recipe" in cell["settings"]:
            pruning = RECIPES[cell["settings"]["recipe"]]["pruning"]
            assert cell["settings"]["pruning.gradient_epsilon"] == pruning["gradient_epsilon"]


def test_a_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "results.json"
    for text, complaint in (
        ("{}", "not a results.json"),
        ("[", "is not a results.json, or a damaged one"),
        ("[]", "is not a results.json, or a damaged one"),
        ('{"format": 1, "scale": "mini", "machines": [], "cells": {}}', "not a results.json that"),
        ('{"format": 1, "scale": "mini", "machines": [], "cells": []}', "names no regime"),
        (
            '{"format": 1, "scale": "mini", "regime": "fair", "machines": [], "cells": [{}]}',
            "damaged: cell 0",
        ),
        ('{"format": 2, "scale": "mini", "cells": []}', "not a results.json that this version"),
    ):
        path.write_text(text)
        with pytest.raises(RunError, match=complaint):
            read_file(path)


SPOILT = {
    "no object": lambda cells: cells.insert(0, ["fedtiny"]),
    "without a name": lambda cells: cells[0].pop("name"),
    "without machines": lambda cells: cells[0].pop("machines"),
    "of an unknown machine": lambda cells: cells[0].update(machines=[9]),
    "a name of no text": lambda cells: cells[0].update(name=5),
    "a seed of no number": lambda cells: cells[0].update(seed="0"),
    "another seed than named": lambda cells: cells[0].update(seed=4),
    "settings of no table": lambda cells: cells[0].update(settings=[1]),
    "numbers of no table": lambda cells: cells[0].update(numbers=[0.5]),
    "a number of text": lambda cells: cells[0]["numbers"].update(accuracy="0.5"),
}
UNTOLD = {
    "no number": lambda cells: cells[0]["numbers"].pop("accuracy"),
    "a number that is null": lambda cells: cells[0]["numbers"].update(accuracy=None),
    "a number beyond all bounds": lambda cells: cells[0]["numbers"].update(accuracy=10**400),
}


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False], ids=["given", "lying there"])
@pytest.mark.parametrize("how", [*SPOILT, *UNTOLD])
def test_a_file_of_the_wrong_shape_is_told_with_what_to_do(written, suite, tmp_path, how, given):
    order, path = written
    edit(path, lambda document: (SPOILT | UNTOLD)[how](document["cells"]))
    trouble = "is damaged: cell 0 is not as" if how in SPOILT else "does not tell the accuracy of"
    if how == "a number beyond all bounds":
        trouble = "is not a results.json, or a damaged"
    way_out = (
        "give another copy of it, or leave it out" if given else "choose another --out, or move"
    )
    found = sweep(suite, tmp_path / "none", result_files=(path,)) if given else order
    with pytest.raises(RunError, match=f"{path} {trouble} .*; {way_out}"):
        shown(found)


def test_one_scale_at_a_time(written, tmp_path):
    _, path = written
    other = shutil.copy(path, tmp_path / "mini.json")
    edit(other, lambda d: d.update(scale="mini"))
    assert scale_of([path]) == "tiny"
    assert scale_of([]) is None
    with pytest.raises(RunError, match=r"of one scale only.*mini\.json is of mini"):
        scale_of([path, other])
