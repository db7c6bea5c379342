"""A result is short to read, and can be plotted, reported, exported and loaded again."""

import math
import sys

import numpy as np
import pytest
import torch

import fedtiny
from fedtiny.config import FleetConfig, PruningConfig
from fedtiny.data import load
from fedtiny.errors import ConfigError, ExportError, FedTinyError, RunError, naming_flags
from fedtiny.export import formats

from ..runs.tiny import TINY, own_data, stop, tiny, train


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return train(TINY, tmp_path_factory.mktemp("api") / "run")


def test_reprs_are_short(result):
    assert repr(result) == (
        f"<Result fedtiny on digits: accuracy {result.accuracy:.4f} at density "
        f"{result.density:.4f}, 3 of 3 rounds, {str(result.path)!r}>"
    )
    digits = load("digits")
    assert repr(digits) == (
        "<DataSet 'digits': 1,438 training and 359 test samples of 1x8x8, 10 classes>"
    )
    assert repr(digits.test) == "<ImageSet: 359 samples of 1x8x8 uint8, 10 classes>"
    whose = fedtiny.Partition.by_ids(["a", "b", "a"])
    assert repr(whose) == "<Partition: 2 devices with 1 to 2 samples>"


def test_a_config_shows_what_differs_and_makes_itself_again():
    assert repr(fedtiny.Config()) == "Config()"
    config = fedtiny.Config(
        density=0.1, fleet=FleetConfig(alpha=0.3), pruning=PruningConfig(reclaim=True)
    )
    assert repr(config) == (
        "Config(density=0.1, fleet=FleetConfig(alpha=0.3), pruning=PruningConfig(reclaim=True))"
    )
    assert eval(repr(TINY), vars(fedtiny.config)) == TINY


def test_dir_lists_the_public_names():
    modules = {"config", "cost", "data", "errors", "methods", "models"}
    assert set(dir(fedtiny)) == {*fedtiny.__all__, *modules}
    assert all(getattr(fedtiny, name) is not None for name in dir(fedtiny))


def test_a_loaded_run_is_what_was_run(result):
    again = fedtiny.load_run(str(result.path))
    assert again.finished
    assert (again.accuracy, again.loss, again.density) == (
        *(result.accuracy, result.loss, result.density),
    )
    assert (again.metrics, again.selection) == (result.metrics, result.selection)
    images = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(again.network(images), result.network(images))


def test_a_run_that_is_not_finished_can_be_loaded(tmp_path):
    path = stop(TINY, tmp_path / "run", 2)
    result = fedtiny.load_run(path)
    assert not result.finished
    assert len(result.metrics) == 2
    assert result.accuracy == result.metrics[-1]["accuracy"]
    assert result.density == result.metrics[-1]["density"]
    assert result.plot("loss").title == "Loss by round"
    assert result.report(tmp_path / "page.html").is_file()
    for use in (lambda: result.network, lambda: result.export("c")):
        with pytest.raises(RunError, match=r"is not finished; continue it with: fedtiny resume"):
            use()


def test_a_run_without_a_round_has_no_figures(tmp_path):
    path = stop(TINY, tmp_path / "run", 1)
    (path / "metrics.jsonl").write_text("")
    result = fedtiny.load_run(path)
    assert all(map(math.isnan, (result.accuracy, result.loss, result.density)))
    with pytest.raises(ConfigError, match=r"^this run has no figure 'accuracy' \(there is: "):
        result.plot()


def test_what_is_no_run_folder_or_damaged_is_told(result, tmp_path):
    with pytest.raises(RunError, match=r"is not a run folder: it has no config\.toml"):
        fedtiny.load_run(tmp_path)
    (tmp_path / "config.toml").write_bytes((result.path / "config.toml").read_bytes())
    (tmp_path / "result.json").write_text('{"accuracy": 7}')
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        fedtiny.load_run(tmp_path)


def test_a_figure_shows_itself_and_is_saved(result, tmp_path):
    figure = result.plot()
    assert repr(figure) == "<Figure 'accuracy': Accuracy by round>"
    assert figure._repr_svg_().startswith("<svg ")
    path = figure.save(tmp_path / "new" / "a.svg")
    assert path.read_text() == figure._repr_svg_()
    assert figure.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"as \.svg or \.png, not as 'a\.jpg'"):
        figure.save(tmp_path / "a.jpg")
    with pytest.raises(ConfigError, match=r"no figure 'accuracies' .*did you mean 'accuracy'\?$"):
        result.plot("accuracies")


@pytest.mark.parametrize("format", formats.ENDINGS)
def test_a_result_exports_itself(result, format, tmp_path):
    written = result.export(format, tmp_path / "model.safetensors")
    assert written == tmp_path / "model.safetensors"
    assert written.is_dir() == (format in formats.IN_C)
    with pytest.raises(ExportError, match="exists already; choose another --out"):
        result.export(format, written)


def test_an_export_of_ones_own_needs_nothing_again(tmp_path):
    data = own_data()
    channels, *_ = data.shape
    model = torch.nn.Sequential(
        torch.nn.Conv2d(channels, 3, 3),
        torch.nn.BatchNorm2d(3),
        torch.nn.Conv2d(3, 3, 3),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(len(data.classes)),
    )
    model(torch.zeros(2, *data.shape))
    result = train(tiny(rounds=1, model="resnet18"), tmp_path / "run", data=data, model=model)
    unpacked = fedtiny.load_run(result.path)
    with pytest.raises(ExportError, match=r"fedtiny\.load_run\(path, data=\.\.\., model=\.\.\.\)"):
        unpacked.export("c")
    path = result.export("packed")
    images = np.asarray(data.test.images[:3])
    assert fedtiny.load(path)(torch.from_numpy(images)).shape == (3, len(data.classes))
    again = fedtiny.load_run(result.path, data=data, model=model)
    assert again.export("onnx", tmp_path / "m.onnx").is_file()
    header = again.export("c", tmp_path / "c", activations="int8") / "model.h"
    assert "float_accuracy" in header.read_text()
    state = result.network.state_dict()
    assert all(
        torch.equal(state[name], value) for name, value in again.network.state_dict().items()
    )


def test_what_cannot_be_exported_is_told_with_arguments(result, tmp_path):
    refused = {
        ("tflite",): r"^format= must be one of packed, onnx, .*, zephyr, got 'tflite'$",
        ("packd",): r"got 'packd'; did you mean 'packed'\?$",
    }
    with naming_flags(False):
        for arguments, sentence in refused.items():
            with pytest.raises(ExportError, match=sentence):
                result.export(*arguments)
        with pytest.raises(ExportError, match=r"^values= must be one of fp32, fp16, int8, got 'x'"):
            result.export("c", values="x")
        with pytest.raises(ExportError, match=r"^values='int8' is for packed and c; onnx has fp32"):
            result.export("onnx", values="int8")
        with pytest.raises(ExportError, match=r"^plain= is for format='onnx'$"):
            result.export("c", plain=True)
        with pytest.raises(RunError, match=r"kept no best model; it was run without save_best$"):
            result.export(best=True)


def test_rounds_become_a_frame(result):
    pytest.importorskip("pandas")
    frame = result.metrics_frame()
    assert frame.index.name == "round"
    assert frame.index.tolist() == [1, 2, 3]
    assert frame["accuracy"].tolist() == [record["accuracy"] for record in result.metrics]
    assert frame["answered"].tolist() == [3, 3, 3]
    assert frame["failed"].tolist() == [0, 0, 0]
    layers = [column for column in frame if column.startswith("layer_density/")]
    assert len(layers) == len(result.metrics[0]["densities"])


def test_without_pandas_a_sentence_says_what_to_install(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedTinyError, match=r"^pandas is not installed; .* 'fedtiny\[pandas\]'$"):
        result.metrics_frame()
