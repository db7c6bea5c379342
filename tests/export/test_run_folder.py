"""The model of a run folder, for every shipped network, and as files for torch."""

import json
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedtiny
from fedtiny import models
from fedtiny.config import Config, DataConfig
from fedtiny.data import DataSet, ImageSet
from fedtiny.errors import ExportError, RunError
from fedtiny.export import numpy_model, onnx_torch, packed
from fedtiny.export.formats import Order, export
from fedtiny.export.source import Trained, pack_run, tiny_model, trained
from fedtiny.export.torch_state import write_torch
from fedtiny.files import write_json
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reporter import Silent

from ..runs.tiny import TINY, own_data, stop, tiny, train
from .nets import SHIPPED, assert_close, shipped


@pytest.fixture
def finished(tmp_path):
    """A network that was trained, as a run folder holds it."""

    def make(name, density=0.05):
        made = shipped(name, density)
        folder = RunFolder.create(tmp_path / name)
        save_file(made.torch.state_dict(), folder.model)
        mask = made.theta.mask
        told = {"accuracy": 0.5, "density": mask.density, "kept_weights": mask.count, "loss": 1.0}
        told |= dict.fromkeys(("prunable_weights", "model_bytes", "rounds"), 1)
        told |= dict.fromkeys(("bytes_down", "bytes_up", "seconds"), 1)
        write_json(folder.result, told)
        blank = ImageSet(
            np.zeros((1, *made.shape), np.uint8), np.zeros(1, np.int64), tuple("abcdefghij")
        )
        channels = made.shape[0]
        mean, std = (0.5,) * channels, (0.25,) * channels
        data = DataSet("blank", blank, blank, mean, std, flips=False, crop_padding=0)
        config = Config(model=name, width=SHIPPED[name][1], data=DataConfig(root="/my/own/place"))
        network = shipped(name, 1.0, seed=5).torch
        return made, Trained(folder, config, data, network, models.traced(network, data.shape))

    return make


def built_again(path):
    """The network of files for torch, by what the JSON file says."""
    recipe = json.loads(path.with_suffix(".json").read_text())
    assert recipe["python"].startswith("fedtiny.models.build(**build).load_state_dict(")
    network = models.build(**recipe["build"])
    network.load_state_dict(load_file(path))
    return network.eval()


@pytest.mark.parametrize("name", SHIPPED)
def test_files_for_torch_build_the_network_again(finished, name, tmp_path):
    made, run = finished(name)
    files = write_torch(run, tmp_path / "out.safetensors")
    assert [file.name for file in files] == ["out.safetensors", "out.json"]
    network = built_again(tmp_path / "out.safetensors")
    assert type(network) is type(made.torch)
    images = torch.from_numpy(made.images())
    with torch.no_grad():
        assert torch.equal(network(images), made.torch.float().eval()(images))
    assert load_file(files[0]).keys() == made.torch.state_dict().keys()
    recipe = json.loads(files[1].read_text())
    assert recipe["classes"] == list("abcdefghij")
    assert recipe["input"]["std"][0] == 0.25


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_run_s_model_keeps_its_logits(finished, name, fold):
    made, run = finished(name)
    model = run.tiny(fold=fold)
    images = made.images()
    assert_close(numpy_model.NumpyModel(model).logits(images), made.logits(images))
    card = model.card
    assert (card["model"], card["accuracy"], card["data"]) == (name, 0.5, "blank")
    assert card["kept_weights"] == made.theta.mask.count
    dense = sum(t.numel() for t in made.torch.state_dict().values() if t.is_floating_point())
    assert card["dense_bytes"] == 4 * dense
    assert "/my/own/place" not in json.dumps(card), "a card tells nothing of the machine"


# Whole runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(TINY, tmp_path_factory.mktemp("run") / "run")


def test_a_packed_run_is_what_the_run_s_network_gives(run):
    path = pack_run(run.path)
    images = np.random.default_rng(0).standard_normal((7, 1, 8, 8)).astype(np.float32)
    with torch.no_grad():
        expected = run.network.double()(torch.from_numpy(images).double()).numpy()
        run.network.float()
    model = packed.read(path)
    assert_close(numpy_model.NumpyModel(model).logits(images), expected)
    assert model.classes == tuple("0123456789")
    assert model.card["accuracy"] == run.accuracy
    assert model.card["config"]["density"] == 0.3
    assert packed.packed(tiny_model(path)) == path.read_bytes()


def test_with_its_packed_model_a_run_needs_no_data(run, monkeypatch):
    pack_run(run.path)
    monkeypatch.setattr("fedtiny.export.source.load_data", None)
    assert tiny_model(run.path, fold=False).net.norms
    assert not tiny_model(run.path).net.norms
    assert trained(run.path).data.classes == tuple("0123456789")


def test_packing_twice_gives_the_same_bytes(run):
    first = pack_run(run.path).read_bytes()
    run.path.joinpath("model.packed").unlink()
    assert pack_run(run.path).read_bytes() == first
    run.path.joinpath("model.packed").write_bytes(first[:-1])
    assert pack_run(run.path).read_bytes() == first, "a damaged one is replaced"


@pytest.mark.parametrize("packed_first", [True, False])
def test_a_run_folder_can_be_loaded(run, packed_first):
    path = pack_run(run.path)
    from_file = fedtiny.load(path).state_dict()
    if not packed_first:
        path.unlink()
    network, model = fedtiny.load(str(run.path)), numpy_model.load(run.path)
    assert all(torch.equal(network.state_dict()[name], from_file[name]) for name in from_file)
    assert model.model.classes == network.classes == tuple("0123456789")


def test_a_run_of_one_s_own_data_and_model_is_packed_with_them(tmp_path):
    data, model = own_data(), shipped("small", 1.0, classes=4).torch
    done = train(TINY, tmp_path / "run", data=data, model=model)
    path = pack_run(done.path, data=data, model=model)
    images = np.random.default_rng(0).standard_normal((7, 1, 8, 8)).astype(np.float32)
    with torch.no_grad():
        expected = done.network(torch.from_numpy(images)).numpy()
    assert_close(numpy_model.NumpyModel(tiny_model(path)).logits(images), expected)
    assert not tiny_model(done.path).net.norms, "and from then on by its folder alone"


def test_a_network_without_a_graph_is_named_with_what_is_left(tmp_path):
    data, model = own_data(), shipped("small", 1.0, classes=4).torch
    model[2] = torch.nn.CELU()
    done = train(TINY, tmp_path / "run", data=data, model=model)
    with pytest.raises(ExportError, match=r"'2' \(CELU\).*model\.safetensors") as raised:
        pack_run(done.path, data=data, model=model)
    assert "--device-backend" not in str(raised.value)
    assert "ONNX only, with fedtiny.export.onnx_torch.write(path, out, data=" in str(raised.value)
    with pytest.raises(ExportError, match=r"goes to ONNX with fedtiny\.export\.onnx_torch\.write"):
        export(Order(done.path, format="onnx"))
    state = load_file(done.path / "model.safetensors")
    assert all(torch.equal(state[name], t) for name, t in done.network.state_dict().items())
    out = onnx_torch.write(done.path, tmp_path / "own.onnx", data=data, model=model)
    pixels = np.random.default_rng(0).random((5, 1, 8, 8), dtype=np.float32)
    normal = (pixels - np.float32(data.mean[0])) / np.float32(data.std[0])
    with torch.no_grad():
        expected = done.network(torch.from_numpy(normal)).numpy()
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    assert_close(session.run(["logits"], {"image": pixels})[0], expected)
    assert onnx.load(out).graph.sparse_initializer, "sparse where that is smaller"


def test_a_run_of_one_s_own_data_says_how_it_is_packed(tmp_path):
    path = train(tiny(rounds=1), tmp_path / "run", data=own_data()).path
    with pytest.raises(ExportError, match=r"your own; in Python, pass them: fedtiny\.load_run\("):
        tiny_model(path)


def test_a_method_that_brings_its_own_network(tmp_path):
    done = train(tiny(method="small_model", model="resnet18", width=4), tmp_path / "run")
    model = packed.read(pack_run(done.path))
    assert model.card["model"] == "small"
    write_torch(trained(done.path), tmp_path / "out.safetensors")
    network = built_again(tmp_path / "out.safetensors")
    images = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(network(images), done.network(images))


def test_an_unfinished_run_says_how_to_go_on(tmp_path):
    path = stop(TINY, tmp_path / "run", 1)
    with pytest.raises(RunError, match="fedtiny resume"):
        pack_run(path)


def test_another_model_s_values_are_refused(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    state = load_file(copy / "model.safetensors")
    state["4.weight"] = state["4.weight"][:1]
    save_file(
        {name: tensor.contiguous() for name, tensor in state.items()}, copy / "model.safetensors"
    )
    with pytest.raises(RunError, match="another model"):
        pack_run(copy)


def test_a_model_that_is_gone_is_made_again_from_the_checkpoint(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    (copy / "model.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match=f"damaged; make it again with: fedtiny resume {copy}"):
        pack_run(copy)
    (copy / "model.safetensors").unlink()
    fedtiny.resume(copy, reporter=Silent())
    assert pack_run(copy).read_bytes() == pack_run(run.path).read_bytes()
    (copy / "model.safetensors").unlink()
    (copy / "checkpoint.safetensors").unlink()
    with pytest.raises(RunError, match=r"is missing or damaged$"):
        pack_run(copy)
