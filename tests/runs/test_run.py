"""What a run leaves behind, and that it repeats."""

import json
import tomllib
from importlib.metadata import version

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors

import fedtiny
from fedtiny import data, models
from fedtiny.config import load
from fedtiny.devices.torch_layers import Transform
from fedtiny.errors import ConfigError
from fedtiny.graph.trace import trace
from fedtiny.runs.assembly import TEST_PART, Assembly, assemble, computing_on
from fedtiny.runs.checkpoint import load_checkpoint
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reporter import Silent
from fedtiny.runs.resolve import resolved
from fedtiny.runs.split import read_split, save_split

from .tiny import FILES, TINY, differences, lines, own_data, tiny, train

KEYS = {
    *("round_number", "accuracy", "loss", "train_loss", "density", "densities", "mask_change"),
    *("bytes_down", "bytes_up", "seconds", "answered", "failed", "bounded", "counted"),
    *("bytes_evaluation", "adjusted", "flops", "memory_paper", "memory_device"),
    *("effective_density", "effective_densities", "grown", "dropped"),
    *("flops_plain", "memory_arena"),
}


def read_json(path):
    return json.loads(path.read_text())


def test_the_folder_holds_every_file_of_a_run_and_nothing_else(finished):
    assert {file.name for file in finished.path.iterdir()} - {".lock"} == FILES


def test_the_saved_config_has_its_presets_filled_in_and_reloads(finished):
    values = tomllib.loads((finished.path / "config.toml").read_text())
    assert load(finished.path / "config.toml") == finished.config
    assert values["train"]["batch_size"] == 32
    assert (values["pruning"]["delta_r"], values["pruning"]["r_stop"]) == (1, 10)
    assert values["selection"]["pool_size"] == 2
    assert values["threads"] == values["workers"] == 1


def test_threads_and_workers_left_open_are_saved_as_what_they_were(tmp_path):
    train(tiny(rounds=1, threads=None, workers=None), tmp_path / "run")
    values = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert values["threads"] >= 1
    assert values["workers"] >= 1


def test_threads_are_for_one_process_only(tmp_path):
    """A forked child of a process whose PyTorch has computed on threads hangs on its own."""
    with pytest.raises(ConfigError, match="--threads 2 needs --workers 1"):
        train(tiny(threads=2, workers=2), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert train(tiny(rounds=1, threads=2, workers=None), tmp_path / "run").config.workers == 1


def test_a_gpu_simulator_forks_nothing_and_so_refuses_no_workers(monkeypatch):
    """The second run of a process finds the GPU in use, where children could not compute."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert resolved(tiny(simulator="gpu", workers=2, threads=2), None, None).workers == 2
    with pytest.raises(ConfigError, match="once PyTorch has used a GPU; use --workers 1"):
        resolved(tiny(simulator="reference", workers=2), None, None)


def test_versions_are_those_of_this_machine(finished):
    versions = read_json(finished.path / "versions.json")
    for package in ("fedtiny", "torch", "numpy", "safetensors"):
        assert versions[package] == version(package)
    assert versions["python"].count(".") == 2


def test_the_saved_partition_gives_each_image_to_one_holder(finished):
    split = load_file(finished.path / "partition.safetensors")
    starts, ends = split["offsets"][:-1], split["offsets"][1:]
    devices = [split["indices"][a:b] for a, b in zip(starts, ends, strict=True)]
    everyone = np.concatenate([split["public"], *devices])
    assert len(devices) == 3
    assert sorted(everyone.tolist()) == list(range(120))
    assert split["table"].sum(axis=1).tolist() == [len(own) for own in devices]
    assert min(len(own) for own in devices) >= 10


def test_a_split_survives_its_file(finished, tmp_path):
    split, settings = read_split(RunFolder(finished.path))
    save_split(RunFolder(tmp_path), split, settings)
    saved = (tmp_path / "partition.safetensors").read_bytes()
    assert saved == (finished.path / "partition.safetensors").read_bytes()
    assert split.table.shape == (3, 10)


def test_a_line_of_metrics_for_each_round(finished):
    records = lines(finished.path)
    assert [record["round_number"] for record in records] == [1, 2, 3]
    for record in finished.metrics:
        assert set(record) == KEYS
        assert 0 <= record["accuracy"] <= 1
        assert record["loss"] > 0
        assert record["train_loss"] > 0
        assert record["density"] <= 0.3
        assert record["mask_change"] == sum(record["adjusted"].values()) > 0
        assert record["grown"] == record["dropped"] == record["adjusted"], "as much of each"
        assert record["bytes_down"] > 0
        assert record["bytes_up"] > 0
        assert record["seconds"] >= 0
        assert record["flops"] > 0
        assert 0 < record["memory_paper"] < record["memory_device"]
        assert (record["answered"], record["failed"]) == ([0, 1, 2], {})
        assert record["counted"] is True


def test_what_no_config_tells_is_written_down(finished):
    about = read_json(finished.path / "about.json")
    assert about["classes"] == [str(digit) for digit in range(10)]
    assert about["layers"] == {"4.weight": 2 * 4 * 9, "8.weight": 4 * 8 * 9}
    result = read_json(finished.path / "result.json")
    assert result["model_bytes"] < about["dense"]["model_bytes"]
    assert about["dense"]["model_bytes"] == 4 * parameters_of(finished.network)


def parameters_of(network):
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_dense_costs_are_those_of_a_dense_run(finished, tmp_path):
    """Recorded by a sparse run without training, and by a dense run in each of its rounds."""
    dense = train(tiny(method="fedavg", density=1.0, rounds=2), tmp_path / "dense")
    told = read_json(finished.path / "about.json")["dense"]
    last = dense.metrics[-1]
    for key in ("flops", "memory_paper", "memory_device"):
        assert told[key] == last[key]
    for way in ("bytes_down", "bytes_up"):
        assert told[way] == pytest.approx(last[way] / 3, rel=0.01)
    assert read_json(dense.path / "about.json")["dense"] == told


def test_densities_by_layer_add_up_to_the_density(finished):
    sizes = {"4.weight": 2 * 4 * 9, "8.weight": 4 * 8 * 9}
    for record in finished.metrics:
        for whole, by_layer in (
            ("density", "densities"),
            ("effective_density", "effective_densities"),
        ):
            kept = sum(record[by_layer][layer] * size for layer, size in sizes.items())
            assert record[whole] == pytest.approx(kept / sum(sizes.values()))


def test_effective_is_what_the_last_mask_lets_through(finished):
    assembly = assemble(finished.config)
    load_checkpoint(RunFolder.open(finished.path), assembly.server)
    graph = trace(finished.network, assembly.data.shape)
    last, mask = finished.metrics[-1], assembly.server.theta.mask
    assert last["effective_density"] == mask.reachability(graph).density
    assert 0 < last["effective_density"] <= last["density"]


def test_the_result_sums_up_the_run(finished):
    result, records = read_json(finished.path / "result.json"), finished.metrics
    assert result["rounds"] == 3
    parts = [read_json(finished.path / "selection.json"), *records]
    assert result["bytes_down"] == sum(part["bytes_down"] for part in parts)
    assert result["bytes_up"] == sum(part["bytes_up"] for part in parts)
    assert result["prunable_weights"] == 360
    assert result["kept_weights"] == round(360 * result["density"])
    assert result["accuracy"] == finished.accuracy == records[-1]["accuracy"]
    assert result["density"] == finished.density == records[-1]["density"]
    assert result["effective_density"] == records[-1]["effective_density"]


def test_the_saved_model_loads_and_is_as_good_as_reported(finished):
    digits = data.load("digits").limited(120, 40, seed=0)
    network = models.build("small", digits.shape, 10, width=2, seed=7)
    network.load_state_dict(load_tensors(finished.path / "model.safetensors"), strict=True)
    inputs = Transform.of(digits, False, 0).normalise(torch.from_numpy(digits.test.images))
    with torch.no_grad():
        right = network.eval()(inputs).argmax(1).numpy() == digits.test.labels
    assert right.mean() == pytest.approx(finished.accuracy)
    kept = sum(int(network.state_dict()[n].count_nonzero()) for n in ("4.weight", "8.weight"))
    assert kept <= read_json(finished.path / "result.json")["kept_weights"]


def test_settings_can_be_chosen_on_images_held_out_of_the_training_set():
    noise = own_data(100, test=30)
    config = tiny(data={"limit_train": None, "limit_test": None, "validation": 0.2, "n_shots": 2})
    assembly = assemble(config, data=noise)
    try:
        held_out, trained = assembly.data.test.images, assembly.data.train.images
        assert (len(trained), len(held_out)) == (80, 20)
        every = {image.tobytes() for image in noise.train.images}
        apart = [{image.tobytes() for image in part} for part in (trained, held_out)]
        assert apart[0] | apart[1] == every
        assert not apart[0] & apart[1]
        assert sum(len(part) for part in assembly.test) == 20
    finally:
        assembly.server.transport.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_large_test_set_is_measured_in_parts_and_counts_as_one(workers):
    noise = own_data(2 * TEST_PART + 100, test=2 * TEST_PART + 100)
    config = tiny(workers=workers, data={"limit_train": None, "limit_test": None})
    with computing_on(1):
        assembly = assemble(config, data=noise)
        try:
            assert [len(part) for part in assembly.test] == [TEST_PART, TEST_PART, 100]
            found = assembly.evaluate()
        finally:
            assembly.server.transport.close()
    inputs = Transform.of(noise, False, 0).normalise(torch.from_numpy(noise.test.images))
    labels = torch.from_numpy(noise.test.labels).long()
    with torch.no_grad():
        logits = assembly.model.eval()(inputs)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)))


def test_a_run_is_told_of_before_it_computes_anything(tmp_path, monkeypatch):
    told, pretrain = [], Assembly.pretrain
    monkeypatch.setattr(Assembly, "pretrain", lambda a: (told.append("pretrain"), pretrain(a)))

    class Teller(Silent):
        def started(self, *_):
            told.append("started")

        def selected(self, _):
            told.append("selected")

    fedtiny.run(tiny(rounds=1), out=tmp_path / "run", reporter=Teller())
    assert told == ["started", "pretrain", "selected"]


def test_the_network_that_a_run_gives_is_the_saved_one(finished):
    saved, given = load_tensors(finished.path / "model.safetensors"), finished.network.state_dict()
    assert not finished.network.training
    assert saved.keys() == given.keys()
    assert all(torch.equal(saved[name], given[name]) for name in saved)


def test_accuracy_is_that_of_the_last_round_and_not_the_best(tmp_path, monkeypatch):
    scripted = iter([0.9, 0.5, 0.1])
    monkeypatch.setattr(Assembly, "evaluate", lambda _: {"loss": 1.0, "accuracy": next(scripted)})
    result = train(TINY, tmp_path / "run")
    assert [record["accuracy"] for record in result.metrics] == [0.9, 0.5, 0.1]
    assert result.accuracy == read_json(tmp_path / "run" / "result.json")["accuracy"] == 0.1


def test_the_same_config_gives_the_same_bytes(finished, tmp_path):
    train(TINY, tmp_path / "again")
    assert differences(finished.path, tmp_path / "again") == []


def test_the_number_of_workers_changes_no_bit_of_the_model(finished, tmp_path):
    train(tiny(workers=2), tmp_path / "two")
    assert differences(finished.path, tmp_path / "two") == ["config"]


def test_another_seed_gives_another_model(finished, tmp_path):
    train(tiny(seed=1), tmp_path / "other")
    assert {"model", "partition", "metrics"} <= {*differences(finished.path, tmp_path / "other")}


def test_runs_leave_the_global_random_state_alone(tmp_path):
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist()
    train(tiny(rounds=1), tmp_path / "run")
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_adaptive_bn_selection_is_written_down(finished):
    selection = read_json(finished.path / "selection.json")
    found = selection["selection"]
    assert finished.selection == selection
    assert found["chosen"] == int(np.argmin(found["losses"]))
    assert len(found["losses"]) == len(found["densities"]) == 2
    assert max(found["densities"]) <= 0.3
    assert selection["bytes_down"] > selection["bytes_up"] > 0


def test_vanilla_selection_is_written_down_and_costs_less(finished, tmp_path):
    result = train(tiny(rounds=1, selection={"kind": "vanilla"}), tmp_path / "run")
    assert len(result.selection["selection"]["losses"]) == 2
    assert result.selection["bytes_up"] < finished.selection["bytes_up"]


def test_without_selection_there_is_nothing_to_write_down(tmp_path):
    result = train(tiny(rounds=1, selection={"kind": "none"}), tmp_path / "run")
    assert read_json(tmp_path / "run" / "selection.json") == result.selection == {}
    assert result.density == pytest.approx(0.3, abs=0.01)


def test_fedavg_stays_dense_and_costs_more(finished, tmp_path):
    result = train(tiny(rounds=1, method="fedavg"), tmp_path / "run")
    for cost in ("flops", "memory_paper", "memory_device"):
        assert result.metrics[0][cost] > finished.metrics[-1][cost]
    assert (result.density, result.selection) == (1.0, {})
    assert result.metrics[0]["mask_change"] == 0


def test_default_names_never_overwrite(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = train(tiny(rounds=1), None).path
    model = (first / "model.safetensors").read_bytes()
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    second = train(tiny(rounds=1), None).path
    third = train(tiny(rounds=1, seed=1), None).path
    assert [path.as_posix() for path in (first, second, third)] == [
        "runs/fedtiny-digits-small-d0.3-s0",
        "runs/fedtiny-digits-small-d0.3-s0-2",
        "runs/fedtiny-digits-small-d0.3-s1",
    ]
    assert (first / "model.safetensors").read_bytes() == model
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
