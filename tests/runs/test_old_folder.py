"""What version 0.1 wrote goes on working: run folders, packed models, configs and flags."""

import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import fedtiny
from fedtiny import config
from fedtiny.cli.main import dispatch
from fedtiny.config.flat import flattened
from fedtiny.export import numpy_model
from fedtiny.native.library import available

from .tiny import essence, lines

FIXTURES = Path(__file__).parents[1] / "fixtures"
RUNS = FIXTURES / "run_folder_0_1"
PACKED = FIXTURES / "packed_0_1"
NATIVE = pytest.mark.skipif(not available(), reason="needs the native library")
STOPPED = [
    "torch",
    "lotteryfl",
    *(pytest.param(name, marks=NATIVE) for name in ("native", "feddst")),
]


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_is_resumed_after_its_last_round(name, tmp_path):
    before = lines(RUNS / name)
    assert [line["round"] for line in before] == [0, 1]
    once, again = (resumed(name, tmp_path / place) for place in ("once", "again"))
    assert [line["round"] for line in lines(once)] == [0, 1, 2, 3]
    assert lines(once)[:2] == before, "what was measured is kept as it is"
    assert essence(once) == essence(again), "however often it is resumed"
    result = json.loads((once / "result.json").read_text())
    assert result["rounds"] == 4
    assert 0 <= result["accuracy"] <= 1
    assert result["density"] == lines(once)[3]["density"]


def resumed(name, path):
    shutil.copytree(RUNS / name, path)
    assert dispatch(["resume", str(path)]) == 0
    return path


def test_the_resumed_rounds_have_the_settings_they_were_begun_with(tmp_path):
    """Late devices and a robust mean: settings that have other names by now."""
    later = lines(resumed("torch", tmp_path / "run"))[2:]
    assert all(set(map(int, line["failed"])).isdisjoint(line["answered"]) for line in later)
    asked = tomllib.loads((RUNS / "torch" / "config.toml").read_text())
    kept = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert leaves(kept) == leaves(asked)


def images():
    """The noise whose logits are kept."""
    return np.random.default_rng(0).integers(0, 256, (4, 1, 8, 8), dtype=np.uint8)


def leaves(values):
    """All settings of a config in an order that names play no part in."""
    if isinstance(values, Mapping):
        return sorted(leaf for value in values.values() for leaf in leaves(value))
    return [repr(values)]


def test_a_finished_run_can_be_looked_at_and_exported(tmp_path, capsys):
    run = shutil.copytree(RUNS / "finished", tmp_path / "run")
    for command in (["inspect"], ["report"], ["export", "--format", "torch"], ["resume"]):
        assert dispatch([command[0], str(run), *command[1:]]) == 0, command
    assert "0.2" in capsys.readouterr().out
    assert (run / "report.html").stat().st_size > 10_000
    expected = json.loads((PACKED / "logits.json").read_text())["fp32"]
    assert np.allclose(numpy_model.load(run)(images()), expected, atol=1e-3)


@pytest.mark.parametrize("values", ["fp32", "fp16", "int8"])
def test_a_packed_model_still_gives_its_logits(values):
    expected = json.loads((PACKED / "logits.json").read_text())[values]
    path = PACKED / f"{values}.packed"
    assert np.allclose(numpy_model.load(path)(images()), expected, atol=1e-3)
    network = fedtiny.load(path)
    assert np.allclose(network(torch.from_numpy(images())).detach(), expected, atol=1e-3)


def test_a_packed_model_still_classifies(tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.full((8, 8), 90, dtype=np.uint8)).save(tmp_path / "image.png")
    assert dispatch(["predict", str(PACKED / "fp32.packed"), str(tmp_path / "image.png")]) == 0
    assert "%" in capsys.readouterr().out


OLD_CONFIG = FIXTURES / "config_0_1.toml"


def test_a_config_with_every_key_is_read():
    asked = tomllib.loads(OLD_CONFIG.read_text())
    read = config.to_dict(config.load(OLD_CONFIG, programs=True))
    known, now, usual = (
        flattened(asked),
        flattened(read),
        flattened(config.to_dict(config.Config())),
    )
    assert leaves({name: now[name] for name in known}) == leaves(asked)
    for younger in now.keys() - known.keys():
        assert now[younger] == usual[younger]
    assert read["density"] == 0.25
    assert read["pruning"]["delta_r"] == 5


def test_every_flag_is_taken(tmp_path):
    """The same settings one by one on the command line, small enough to be run."""
    flags = {
        **{"model": "small", "width": 2, "rounds": 1, "device-backend": "torch", "threads": 1},
        **{"data.limit-train": 120, "data.limit-test": 40, "fleet.devices": 3},
        **{"fleet.straggler-rate": 0.15, "fleet.min-replies": 1, "selection.pool-size": 2},
        **{"robustness.mean": "trimmed", "robustness.trim": 0.35, "robustness.clip-norm": 2.5},
        **{"robustness.max-samples": 1234, "gpu.lanes": 9, "simulator": "reference"},
    }
    out = tmp_path / "run"
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert dispatch(["run", *words, "--no-report", "--out", str(out)]) == 0
    kept = leaves(tomllib.loads((out / "config.toml").read_text()))
    for value in (0.15, "trimmed", 0.35, 2.5, 1234, 9):
        assert repr(value) in kept
