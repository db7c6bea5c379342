"""Run folders are read as they are: finished, stopped, old or damaged."""

import json
import re

import pytest

import fedtiny
from fedtiny.errors import ConfigError, RunError
from fedtiny.report.devices import moved, quantities
from fedtiny.report.figures import figures
from fedtiny.report.run import open_runs, read
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.metrics import number, numbers
from fedtiny.runs.reporter import Silent

EVERY_FIGURE = {
    *("accuracy", "loss", "confusion", "class_accuracy", "cost", "partition", "device_spread"),
    *("accuracy_by_bytes", "accuracy_by_time", "accuracy_by_flops", "pool", "pool_layers"),
    *("density", "layers", "adjustments", "adjusted_layers"),
}


def names(path):
    return {f.name for drawn in figures(read(RunFolder(path))).values() for f in drawn}


def rewritten(path, change):
    """Change every line of a run's metrics."""
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    text = "".join(json.dumps(change(record)) + "\n" for record in records)
    (path / "metrics.jsonl").write_text(text)


def test_a_finished_run_has_every_figure_and_lacks_nothing(finished):
    assert names(finished) == EVERY_FIGURE
    assert read(RunFolder(finished)).missing == ()


def test_a_stopped_run_tells_how_to_go_on(stopped):
    run = read(RunFolder(stopped))
    assert names(stopped) == EVERY_FIGURE - {"confusion", "class_accuracy"}
    assert run.missing == (
        f"The run is not finished (2 of 3 rounds); go on with: fedtiny resume {stopped}",
    )
    assert run.outcome == run.records[-1]


def test_a_run_that_has_lost_files_tells_what_they_would_show(finished):
    for name in ("about.json", "evaluation.json"):
        (finished / name).unlink()
    run = read(RunFolder(finished))
    lost = {"cost", "pool_layers", "adjusted_layers", "confusion", "class_accuracy"}
    assert names(finished) == EVERY_FIGURE - lost
    dense, measured = run.missing
    assert "costs of a dense run are not known" in dense
    assert "accuracy by class is not known" in measured
    assert measured.endswith(f"measure it with: fedtiny resume {finished}")


def test_resuming_a_finished_run_measures_by_class_again(finished):
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    (finished / "evaluation.json").unlink()
    fedtiny.resume(finished, reporter=Silent())
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("selection.json", {"pool", "pool_layers"}),
        ("partition.safetensors", {"partition"}),
        ("about.json", {"cost", "pool_layers", "adjusted_layers"}),
        (
            "metrics.jsonl",
            {"accuracy", "loss", "density", "layers", "adjustments", "adjusted_layers"}
            | {"accuracy_by_bytes", "accuracy_by_time", "accuracy_by_flops"},
        ),
        ("evaluation.json", {"confusion", "class_accuracy"}),
    ],
)
def test_a_damaged_file_costs_its_own_figures_only(finished, file, lost):
    (finished / file).write_text("{nonsense\n{}\n")
    run = read(RunFolder(finished))
    assert EVERY_FIGURE - names(finished) == lost
    assert any(file in told and "damaged" in told for told in run.missing)


def test_a_run_that_has_only_just_begun_has_a_report(finished):
    for file in finished.iterdir():
        if file.name != "config.toml":
            file.unlink()
    run = read(RunFolder(finished))
    assert figures(run) == {}
    assert "not finished (0 of 4 rounds)" in run.missing[0]


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"layer_counts": [[1], [2, 3]]}, {"pool_layers"}),
        ({"layers": ["another"]}, {"pool_layers"}),
        ({"layer_counts": "many"}, {"pool", "pool_layers"}),
        ({"chosen": 99}, {"pool", "pool_layers"}),
        ({"layer_counts": [["1", None]]}, {"pool", "pool_layers"}),
    ],
)
def test_a_pool_that_makes_no_sense_has_no_picture(finished, change, lost):
    found = json.loads((finished / "selection.json").read_text())
    found["selection"] |= change
    (finished / "selection.json").write_text(json.dumps(found))
    assert names(finished) == EVERY_FIGURE - lost
    assert any(
        "selection.json is damaged" in told for told in read(RunFolder(finished)).missing
    ) == ("pool" in lost)


def test_wrong_types_are_no_numbers():
    values = {"a": 1, "b": "1", "c": True, "d": float("nan"), "e": None, "f": {"x": 2, "y": "z"}}
    assert [number(values, key) for key in "abcdef"] == [1.0, None, None, None, None, None]
    assert numbers(values, "f") == {"x": 2.0}
    assert number(None, "a") is None


def test_a_folder_of_runs_stands_for_all_of_them(several, finished):
    found = [folder.path.name for folder in open_runs([several, finished, several / "fedavg"])]
    assert found == [*sorted(path.name for path in several.iterdir()), "run"]


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(RunError, match="name a run folder"):
        open_runs([])
    with pytest.raises(RunError, match=r"is not a run folder: it has no config\.toml"):
        open_runs([tmp_path])


@pytest.mark.parametrize("key", ["failed", "bounded", "device_accuracies"])
@pytest.mark.parametrize("device", ["9" * 5000, "-1", "x", "٣"], ids=["long", "sign", "x", "digit"])
def test_keys_that_are_no_devices_make_a_line_damaged(finished, key, device):
    value = 0.5 if key == "device_accuracies" else "late"
    rewritten(finished, lambda record: {**record, key: {device: value}})
    run = read(RunFolder(finished))
    assert run.records == []
    assert "line 1 of" in run.missing[0]
    assert "metrics.jsonl is damaged" in run.missing[0]
    assert "device_spread" in names(finished)


def with_devices(path, count):
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(re.sub(r"(?m)^devices = \d+", f"devices = {count}", text))


def test_a_report_shows_the_devices_that_there_are_whatever_the_config_says(finished):
    told = quantities(read(RunFolder(finished)))
    with_devices(finished, 10**7)
    now = quantities(read(RunFolder(finished)))
    assert [list(one.values) for one in now] == [list(one.values) for one in told]
    (finished / "partition.safetensors").unlink()
    assert set(moved(read(RunFolder(finished)))) == set(next(iter(told)).values)


def test_more_devices_than_any_machine_has_are_refused(finished):
    with_devices(finished, 900_000_000)
    with pytest.raises(ConfigError, match=r"--fleet\.devices must be at most 10,000,000, got 900"):
        read(RunFolder(finished))
