"""Many configs in one call: each is run once, and what was cut goes on."""

from dataclasses import replace

import pytest

import fedtiny
from fedtiny.errors import ConfigError, DataError, RunError

from ..runs.tiny import TINY, own_data, tiny

CONFIGS = [tiny(rounds=1, density=density) for density in (0.4, 0.2)]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    return out, fedtiny.sweep(CONFIGS, out=out)


def test_results_come_in_the_order_of_the_configs(swept):
    out, results = swept
    assert len(results) == 2
    assert [result.config.density for result in results] == [0.4, 0.2]
    assert all(result.finished and result.path.parent == out for result in results)
    assert [result.path for result in results[:1]] == [results[0].path]
    assert results.failed == {}
    assert repr(results).splitlines() == [
        "<SweepResult: 2 runs>",
        *(f"  {result!r}" for result in results),
    ]


def test_what_is_finished_is_not_run_again(swept, capsys):
    out, results = swept
    made = [result.path.joinpath("result.json").stat().st_mtime_ns for result in results]
    again = fedtiny.sweep([CONFIGS[1], CONFIGS[0], CONFIGS[1]], out=out)
    assert [result.config.density for result in again] == [0.2, 0.4, 0.2]
    assert [result.path.joinpath("result.json").stat().st_mtime_ns for result in results] == made
    assert capsys.readouterr().out == ""


def test_what_was_cut_goes_on(tmp_path, monkeypatch):
    from fedtiny.experiments.runner import CellReporter

    def cut(self, record):
        raise KeyboardInterrupt

    config = replace(TINY, rounds=2)
    with monkeypatch.context() as patched:
        patched.setattr(CellReporter, "round_done", cut)
        with pytest.raises(KeyboardInterrupt):
            fedtiny.sweep([config], out=tmp_path)
    (folder,) = tmp_path.iterdir()
    assert len(fedtiny.load_run(folder).metrics) == 1
    (result,) = fedtiny.sweep([config], out=tmp_path)
    assert (result.path, len(result.metrics)) == (folder, 2)


def test_a_run_that_fails_is_told_and_others_go_on(tmp_path, capsys):
    lost = tiny(rounds=1, fleet=replace(TINY.fleet, fail_rate=0.99, min_replies=3))
    results = fedtiny.sweep([lost, CONFIGS[0]], out=tmp_path)
    (name,) = results.failed
    assert [result.config.density for result in results] == [0.4]
    assert f"failed: {name}: " in capsys.readouterr().out
    assert "1 run, 1 failed" in repr(results)


def test_settings_that_differ_and_figures_become_a_frame(swept):
    pytest.importorskip("pandas")
    _, results = swept
    frame = results.frame()
    assert frame.index.tolist() == [result.path.name for result in results]
    assert frame["accuracy"].tolist() == [result.accuracy for result in results]
    assert frame["rounds"].tolist() == [1, 1]
    assert frame.columns[:4].tolist() == ["method", "density", "density_kept", "seed"]
    assert frame["density"].tolist() == [0.4, 0.2], "as asked"
    assert frame["density_kept"].tolist() == [result.density for result in results]
    assert frame.groupby(["method", "density"])["accuracy"].count().tolist() == [1, 1]


def test_data_of_ones_own_serve_all_runs(tmp_path):
    data = own_data()
    configs = [tiny(rounds=1, seed=seed) for seed in (0, 1)]
    results = fedtiny.sweep(configs, out=tmp_path, data=data)
    assert [result.config.data.name for result in results] == ["custom:arrays"] * 2
    assert results[0].export("packed").is_file()
    assert len(fedtiny.sweep(configs, out=tmp_path, data=data)) == 2


def test_data_sets_of_one_name_have_runs_of_their_own(tmp_path):
    config, sets = tiny(rounds=1), [own_data(), own_data(shift=1)]
    paths = [fedtiny.sweep([config], out=tmp_path, data=data)[0].path for data in sets]
    by_hand = replace(own_data(), partition=fedtiny.Partition.by_ids([0, 1, 2, 3] * 30))
    paths.append(fedtiny.sweep([config], out=tmp_path, data=by_hand)[0].path)
    assert len(set(paths)) == 3
    assert fedtiny.sweep([config], out=tmp_path, data=own_data())[0].path == paths[0]


def test_models_of_one_class_have_runs_of_their_own(tmp_path):
    import torch
    from torch import nn

    def network(seed, activation=nn.ReLU):
        torch.manual_seed(seed)
        ends = nn.Linear(8, 8), nn.Linear(8, 10)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), activation(), *ends)

    config = tiny(rounds=1)
    models = [network(0), network(1), network(0, nn.Tanh)]
    paths = [fedtiny.sweep([config], out=tmp_path, model=model)[0].path for model in models]
    assert len(set(paths)) == 3
    assert fedtiny.sweep([config], out=tmp_path, model=network(0))[0].path == paths[0]


def test_the_report_compares_the_runs(swept):
    out, results = swept
    assert results.report() == out / "report.html"
    assert "2 runs, all finished" in (out / "report.html").read_text()
    with pytest.raises(RunError, match="no run is finished"):
        fedtiny.SweepResult(()).report()


def test_bad_input_is_told_at_once(tmp_path):
    with pytest.raises(ConfigError, match="configs= needs at least one"):
        fedtiny.sweep([], out=tmp_path)
    with pytest.raises(ConfigError, match=r"a run takes a fedtiny\.Config, got a value of type"):
        fedtiny.sweep(["density"], out=tmp_path)
    with pytest.raises(DataError, match="there is no data set 'digitz'"):
        fedtiny.sweep([tiny(data=replace(TINY.data, name="digitz"))], out=tmp_path)
    assert list(tmp_path.iterdir()) == []
