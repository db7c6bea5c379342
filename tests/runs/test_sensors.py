"""Data that are no images, end to end: a sensor array, a table, and users who have their own."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fedtiny
from fedtiny.cli.main import dispatch
from fedtiny.config import DataConfig
from fedtiny.errors import ConfigError, DataError, ExportError, ModelError
from fedtiny.export.network import as_images
from fedtiny.export.numpy_model import load as load_numpy
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.inputs import load_images
from fedtiny.runs.reporter import Silent
from fedtiny.runs.split import load_split

from ..export.c_program import COMPILERS, compiled
from ..export.c_program import run as run_program
from .tiny import differences, stop, tiny, train

COUNT, USERS = 200, 4
LABELS = np.arange(COUNT) % 3
OWNERS = np.random.default_rng(1).integers(0, USERS, COUNT)


def sequences():
    """Waves of three frequencies on six channels, far from zero and far from one."""
    draw = np.random.default_rng(0)
    phase = draw.random((COUNT, 6, 1)) * 6
    waves = np.sin(np.arange(128) * (LABELS[:, None, None] + 1) / 4 + phase)
    return (500 + 40 * waves + draw.normal(0, 4, waves.shape)).astype(np.float32)


SEQUENCES = sequences()
SENSOR = tiny(
    model="cnn1d",
    width=4,
    rounds=2,
    density=0.25,
    data=DataConfig(n_shots=2),
    train={"batch_size": 16},
)


def sensor_data(**options):
    pair = SEQUENCES, LABELS
    return fedtiny.from_arrays(pair, (SEQUENCES[:40], LABELS[:40]), layout="NCT", **options)


@pytest.fixture
def file(tmp_path):
    np.savez(tmp_path / "waves.npz", x=SEQUENCES, y=LABELS, device_ids=OWNERS)
    return tmp_path / "waves.npz"


def test_a_sensor_array_trains_on_the_command_line(tmp_path, file, capsys):
    run = tmp_path / "run"
    flags = [
        *("--data.name", "file", "--data.root", file, "--data.layout", "NCT", "--model", "cnn1d"),
        *("--width", "8", "--rounds", "6", "--density", "0.2", "--workers", "1"),
        *("--train.batch-size", "16", "--train.local-epochs", "3", "--train.lr", "0.01"),
        *("--selection.pool-size", "2", "--pruning.delta-r", "2"),
    ]
    assert dispatch(["run", *map(str, flags), "--out", str(run)]) == 0
    said = capsys.readouterr().out
    assert "image" not in said
    assert "natural, 6 rounds; native sparse devices\n" in said
    assert f"classify with: fedtiny.load('{run / 'model.packed'}')" in said
    result = json.loads((run / "result.json").read_text())
    assert result["accuracy"] > 0.9  # of three classes
    about = json.loads((run / "about.json").read_text())
    assert (about["shape"], about["layout"]) == ([6, 128], "NCT")
    data = fedtiny.data.load("file", file, layout="NCT")
    test = data.test.images[:, :, 0]
    predicted = load_numpy(run / "model.packed")(test).argmax(axis=1)
    assert (predicted == data.test.labels).mean() == pytest.approx(result["accuracy"])
    with torch.no_grad():
        again = fedtiny.load(run)(torch.from_numpy(test)).argmax(dim=1).numpy()
    np.testing.assert_array_equal(again, predicted)
    export = ["export", str(run), "--format", "c", "--values", "fp32", "--out", str(tmp_path / "c")]
    assert dispatch(export) == 0
    if COMPILERS:
        classes, _, _ = run_program(compiled(tmp_path / "c"), test, "raw")
        np.testing.assert_array_equal(classes, predicted)


def test_methods_are_compared_on_a_sensor_array(tmp_path, file, capsys):
    flags = [
        *("--data.name", "file", "--data.root", file, "--data.layout", "NCT", "--model", "cnn1d"),
        *("--width", "4", "--rounds", "1", "--density", "0.3", "--workers", "1"),
        *("--train.batch-size", "16", "--train.local-epochs", "1", "--data.n-shots", "2"),
        *("--out", tmp_path / "out"),
    ]
    chosen = ["--methods", "fedavg", "fl_pqsu", "small_model"]
    for _ in range(2):  # trained, then read
        assert dispatch(["compare", *chosen, *map(str, flags)]) == 0
        said = capsys.readouterr().out
        assert said.count("left out: small_model trains 'small', which reads images") == 1
        rows = (tmp_path / "out" / "table.md").read_text()
        assert "| fl_pqsu | paper | uniform | 0." in rows
        assert "small_model" not in rows
    assert dispatch(["compare", "--methods", "small_model", *map(str, flags)]) == 1
    assert "take another method" in capsys.readouterr().err
    assert dispatch(["report", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "2 runs, all finished" in page
    assert "not in the table" not in page


def test_runs_on_arrays_of_ones_own_are_in_the_table_of_a_report(tmp_path):
    configs = [tiny(**{**vars(SENSOR), "rounds": 1, "seed": seed}) for seed in (0, 1)]
    page = fedtiny.sweep(configs, out=tmp_path, data=sensor_data()).report().read_text()
    assert "2 runs, all finished" in page
    assert "not in the table" not in page


def test_an_array_without_a_layout_says_which_flag_it_needs(tmp_path, file, capsys):
    flags = ["--data.name", "file", "--data.root", str(file), "--model", "cnn1d"]
    assert dispatch(["run", *flags, "--out", str(tmp_path / "run")]) == 1
    assert "layout='NCT' or 'NTC' for sequences" in capsys.readouterr().err


def test_a_network_for_images_is_refused_with_one_that_fits(tmp_path):
    with pytest.raises(ModelError, match="take --model cnn1d"):
        train(tiny(), tmp_path / "run", data=sensor_data())


def test_a_method_that_brings_a_network_for_images_says_so(tmp_path):
    config = tiny(**{**vars(SENSOR), "method": "small_model"})
    with pytest.raises(ModelError, match=r"small_model trains 'small', .* take another method"):
        train(config, tmp_path / "run", data=sensor_data())


def test_samples_are_named_in_the_shape_that_their_owner_knows(tmp_path):
    pair = SEQUENCES, LABELS
    with pytest.raises(DataError, match=r"float32 \(6, 128\) and float32 \(6, 64\)"):
        fedtiny.from_arrays(pair, (SEQUENCES[:, :, :64], LABELS), layout="NCT")
    with pytest.raises(DataError, match=r"shape \[0, 6, 128\] holds no samples"):
        fedtiny.from_arrays((SEQUENCES[:0], LABELS[:0]), pair, layout="NCT")
    with pytest.raises(ExportError, match=r"samples of shape \(6, 128\), not \(6, 64\)"):
        as_images(SEQUENCES[:, :, :64], (6, 1, 128))
    with pytest.raises(ExportError, match=r"samples of shape \(20,\), not \(6, 128\)"):
        as_images(SEQUENCES, (20, 1, 1))


def test_devices_compute_the_same_in_native_code_and_in_pytorch(tmp_path):
    native, dense = (
        train(
            tiny(**{**vars(SENSOR), "rounds": 1, "device_backend": backend}),
            tmp_path / backend,
            data=sensor_data(),
        )
        for backend in ("native", "torch")
    )
    states = [load_file(run.path / "model.safetensors") for run in (native, dense)]
    for name, value in states[0].items():
        np.testing.assert_allclose(value, states[1][name], rtol=1e-3, atol=1e-4)
    assert native.network(torch.zeros(2, 6, 128)).shape == (2, 3)


def test_the_gpu_simulator_reads_sequences_too(tmp_path):
    gpu = {"precision": "fp32", "compile": False}
    config = tiny(**{**vars(SENSOR), "simulator": "gpu", "rounds": 1, "gpu": gpu})
    on_gpu = train(config, tmp_path / "gpu", data=sensor_data())
    config = tiny(**{**vars(SENSOR), "rounds": 1, "device_backend": "torch"})
    reference = train(config, tmp_path / "reference", data=sensor_data())
    assert on_gpu.selection["selection"]["chosen"] == reference.selection["selection"]["chosen"]
    assert on_gpu.loss == pytest.approx(reference.loss, rel=1e-3)


def test_a_table_trains_an_mlp(tmp_path):
    rows = np.random.default_rng(0).normal(5, 1, (COUNT, 10))
    rows[:, 0] += 6 * LABELS
    data = fedtiny.from_arrays((rows, LABELS), (rows, LABELS), layout="NF")
    lively = {"batch_size": 16, "lr": 0.01, "local_epochs": 3}
    options = {"model": "mlp", "width": 16, "rounds": 5, "density": 0.5, "train": lively}
    config = tiny(**{**vars(SENSOR), **options, "fleet": {"partition": "iid"}})
    found = train(config, tmp_path / "run", data=data)
    assert found.accuracy > 0.9
    assert found.network(torch.zeros(2, 10)).shape == (2, 3)


# Whose samples


def owners_of(run, data):
    split = load_split(RunFolder(run))
    return split, [{OWNERS[i] for i in device.tolist()} for device in split.devices.devices]


def test_natural_partitions_go_by_user_and_a_run_goes_on_with_them(tmp_path):
    data = sensor_data(device_ids=OWNERS)
    whole = train(SENSOR, tmp_path / "whole", data=data)
    assert (whole.config.fleet.devices, whole.config.fleet.partition) == (USERS, "natural")
    split, owners = owners_of(whole.path, data)
    assert owners == [{user} for user in range(USERS)]
    everyone = np.sort(np.concatenate([split.public, *split.devices.devices]))
    np.testing.assert_array_equal(everyone, np.arange(COUNT))
    half = stop(SENSOR, tmp_path / "half", 1, data=data)
    fedtiny.resume(half, data=data, reporter=Silent())
    assert differences(whole.path, half) == []


def test_a_partition_may_be_handed_in_and_is_the_run_s_from_then_on(tmp_path):
    partition = fedtiny.Partition.by_ids(OWNERS)
    by_ids = train(SENSOR, tmp_path / "ids", data=sensor_data(device_ids=OWNERS))
    handed = stop(SENSOR, tmp_path / "handed", 1, data=sensor_data(), partition=partition)
    fedtiny.resume(handed, data=sensor_data(), reporter=Silent())
    assert differences(by_ids.path, handed) == []


def test_users_with_few_samples_take_no_part_and_are_counted(tmp_path, capsys):
    ids = OWNERS.copy()
    ids[:3] = 9
    config = tiny(**{**vars(SENSOR), "rounds": 1})
    found = fedtiny.run(config, out=tmp_path / "run", data=sensor_data(device_ids=ids))
    assert found.config.fleet.devices == USERS
    said = capsys.readouterr().out
    assert "1 of the 5 devices that the data name have fewer than 10 samples" in said
    with pytest.raises(DataError, match="none of the 200 devices"):
        train(config, tmp_path / "none", data=sensor_data(device_ids=np.arange(COUNT)))


def test_a_natural_partition_needs_to_be_named(tmp_path):
    config = tiny(fleet={"partition": "natural"})
    with pytest.raises(DataError, match=r"--data\.device-column, or pass device_ids="):
        train(config, tmp_path / "run")


def test_the_column_of_a_table_is_a_partition_for_a_run(tmp_path):
    lines = ["x,y,z,who,label", *(f"{i},{i % 7},{i % 3},u{i % 4},{i % 3}" for i in range(120))]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    data = {"name": "file", "root": str(tmp_path / "own.csv"), "device_column": "who", "n_shots": 2}
    config = tiny(**{**vars(SENSOR), "model": "mlp", "width": 8, "rounds": 1, "data": data})
    found = train(config, tmp_path / "run")
    assert found.config.fleet.devices == 4
    assert load_images(found.config).partition is not None
    assert load_file(found.path / "partition.safetensors")["offsets"].shape == (5,)


def test_too_few_users_for_the_replies_asked_for_are_told(tmp_path):
    config = tiny(**{**vars(SENSOR), "fleet": {"min_replies": 5, "devices": 9}})
    with pytest.raises(ConfigError, match="min-replies is 5"):
        train(config, tmp_path / "run", data=sensor_data(device_ids=OWNERS))


# What is said before training


def test_a_transformer_runs_and_says_first_what_it_does_not_do(tmp_path, capsys):
    config = tiny(model="vit_tiny", width=16, rounds=1, density=0.1)
    found = fedtiny.run(config, out=tmp_path / "run")
    first, *rest = capsys.readouterr().out.splitlines()
    assert "dense PyTorch: native devices lack" in first
    assert any("vanilla selection" in line for line in rest)
    assert found.density <= 0.1


def test_depthwise_layers_are_pruned_if_that_is_asked_for(tmp_path):
    config = tiny(model="ds_cnn", width=8, rounds=1, device_backend="torch")
    usual = train(config, tmp_path / "usual")
    asked = tiny(
        model="ds_cnn", width=8, rounds=1, device_backend="torch", pruning={"depthwise": True}
    )
    pruned = train(asked, tmp_path / "asked")
    names = [set(run.metrics[-1]["densities"]) for run in (usual, pruned)]
    assert len(names[1] - names[0]) == 4
    results = [json.loads((run.path / "result.json").read_text()) for run in (usual, pruned)]
    assert results[0]["whole_density"] > results[1]["whole_density"] > 0.3
