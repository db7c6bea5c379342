"""Every way to ask a trained model: the classes of its own test, or a refusal."""

import json

import numpy as np
import pytest
import torch

import fedtiny
from fedtiny.cli.main import dispatch
from fedtiny.errors import DataError, ExportError, RunError
from fedtiny.export import numpy_model, packed
from fedtiny.files import digest_of

from ..runs.tiny import own_data, tiny, train

LABELS = np.arange(240) % 3
DRAW = np.random.default_rng(0)


def images():
    """Bright lines, whose height tells the class."""
    found = DRAW.integers(0, 60, (240, 3, 8, 8)).astype(np.uint8)
    found[np.arange(240), :, 1 + 2 * LABELS] += 150
    return found


def sequences():
    waves = np.sin(np.arange(32) * (LABELS[:, None, None] + 1) / 4 + DRAW.random((240, 6, 1)))
    return (500 + 200 * waves).astype(np.int16)


def table():
    rows = DRAW.integers(100, 110, (240, 10))
    rows[:, 0] += 20 * LABELS
    return rows


PLANES = {"model": "small", "width": 8}
LINES = {"model": "cnn1d", "width": 8}
ROWS = {"model": "mlp", "width": 16}
KINDS = {
    "bytes": (images(), None, PLANES),
    "bytes NHWC": (images().transpose(0, 2, 3, 1), "NHWC", PLANES),
    "floats": (images() / np.float32(255), None, PLANES),
    "floats to 255": (images().astype(np.float32), None, PLANES),
    "int16 NTC": (sequences().transpose(0, 2, 1), "NTC", LINES),
    "float NCT": (sequences().astype(np.float32), "NCT", LINES),
    "int64 table": (table(), "NF", ROWS),
    "float table": (table().astype(np.float64), "NF", ROWS),
}


@pytest.fixture(scope="module", params=KINDS)
def trained(request, tmp_path_factory):
    samples, layout, network = KINDS[request.param]
    data = fedtiny.from_arrays((samples, LABELS), (samples, LABELS), layout=layout)
    lively = {"batch_size": 16, "lr": 0.01, "local_epochs": 3}
    shared = {"limit_train": None, "limit_test": None, "augment": False}
    fleet = {"partition": "iid"}
    config = tiny(rounds=6, density=0.6, train=lively, data=shared, fleet=fleet, **network)
    result = train(config, tmp_path_factory.mktemp("asked") / "run", data=data)
    assert result.accuracy > 0.9
    return samples, result


def answers(result):
    """The ways to ask that take arrays."""
    path = result.path / "model.packed"
    path = path if path.exists() else result.export("packed")
    by_torch, by_numpy = fedtiny.load(path), numpy_model.load(path)
    again = fedtiny.load_run(result.path, **result._own)
    return {
        "result": result.predict,
        "loaded": again.predict,
        "torch": lambda asked: by_torch(torch.from_numpy(asked.copy())).argmax(1).numpy(),
        "numpy": lambda asked: by_numpy(asked).argmax(axis=1),
    }


def test_the_data_of_its_own_training_are_answered_as_in_the_run(trained):
    samples, result = trained
    for name, ask in answers(result).items():
        classes = ask(samples)
        assert classes.shape == (240,), name
        assert (classes == LABELS).mean() == pytest.approx(result.accuracy, abs=1e-6), name


def test_other_numbers_of_the_same_values_mean_the_same_or_are_refused(trained):
    """As whole numbers of another type, and as floats."""
    samples, result = trained
    for name, ask in answers(result).items():
        expected = ask(samples)
        for dtype in (np.uint8, np.int16, np.int64, np.float32):
            if (samples.astype(dtype) != samples).any():
                continue
            is_float = np.dtype(dtype).kind == "f"
            if samples.ndim == 4 and is_float != (samples.dtype.kind == "f"):
                with pytest.raises(ExportError, match="the model was trained on images of"):
                    ask(samples.astype(dtype))
            else:
                np.testing.assert_array_equal(ask(samples.astype(dtype)), expected, name)


def test_a_model_of_float_images_names_the_cast(trained):
    samples, result = trained
    if samples.ndim < 4:
        pytest.skip("it has no images")
    sentence = r"cast them: images\.astype\(numpy\.float32\)$"
    refused = (
        sentence if samples.dtype == np.float32 else "^.* from 0 to 255, or floats from 0 to 1$"
    )
    asked = np.full(samples.shape, 255, np.int64 if samples.dtype == np.float32 else np.float32)
    for ask in answers(result).values():
        with pytest.raises(ExportError, match=refused):
            ask(asked)


def test_the_file_says_what_was_trained_on(trained):
    samples, result = trained
    path = result.export("packed", result.path / "told.packed")
    expected = "values" if samples.ndim < 4 else "bytes"
    expected = "floats" if samples.ndim == 4 and samples.dtype == np.float32 else expected
    assert packed.read(path).reads == fedtiny.load(path).reads == expected
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(result.export("onnx", result.path / "told.onnx"))
    assert {prop.key: prop.value for prop in graph.metadata_props} == {"fedtiny.reads": expected}


def test_fedtiny_predict_takes_no_image_files_for_other_models(trained, tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image")
    samples, result = trained
    path = result.export("packed", tmp_path / "asked.packed")
    file = tmp_path / "image.png"
    pillow.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file)
    is_bytes = samples.dtype == np.uint8
    assert dispatch(["predict", str(path), str(file)]) == 1 - is_bytes
    told = "trained on images of floats" if samples.ndim == 4 else "which no image file has"
    assert is_bytes or told in capsys.readouterr().err


def test_nan_is_no_class(trained):
    samples, result = trained
    if samples.dtype.kind == "f":
        with pytest.raises(DataError, match="must hold finite numbers"):
            result.predict(samples * np.nan)


def told_otherwise(data, **changes):
    """A packed file whose description says something else, under a digest that fits."""
    tensors, text = packed.with_text(data, packed.METADATA)
    header = {k: v for k, v in {**json.loads(text), **changes}.items() if v is not None}
    text = json.dumps(header)
    del tensors[packed.DIGEST]
    digest = np.frombuffer(bytes.fromhex(digest_of(tensors, text)), np.uint8)
    return packed.save({**tensors, packed.DIGEST: digest}, {packed.METADATA: text})


def test_a_file_that_does_not_say_it_is_read_by_its_shape(trained):
    samples, result = trained
    data = result.export("packed", result.path / "older.packed").read_bytes()
    found = packed.unpacked(told_otherwise(data, reads=None)).reads
    assert found == ("values" if samples.ndim < 4 else "bytes")
    for wrong in ("pixels", 1, ["bytes"]):
        with pytest.raises(ExportError, match="trained on nothing that is known"):
            packed.unpacked(told_otherwise(data, reads=wrong))


def test_other_data_than_the_run_s_are_refused(tmp_path):
    result = train(tiny(rounds=1), tmp_path / "run", data=own_data())
    other = fedtiny.load_run(result.path, data=own_data(shift=1))
    uses = (
        other.export,
        lambda: other.predict(own_data().test.images),
        lambda: other.export("c", activations="int8"),
        lambda: other.network,
    )
    for use in uses:
        with pytest.raises(RunError, match=r"'arrays' is not the one that this run was started"):
            use()
    result.export()
    with pytest.raises(RunError, match=r"is not the one that this run was started"):
        other.export("c", activations="int8")
    same = fedtiny.load_run(result.path, data=own_data())
    np.testing.assert_array_equal(
        same.predict(own_data().test.images), result.predict(own_data().test.images)
    )


def test_small_images_of_ones_own_are_enlarged_in_an_export_too(tmp_path):
    images = DRAW.integers(0, 256, (120, 2, 3), dtype=np.uint8)
    pair = images, np.arange(120) % 4
    data = fedtiny.from_arrays(pair, pair, layout="NHW")
    result = train(tiny(rounds=1), tmp_path / "run", data=data)
    assert packed.read(result.export()).shape == (1, 4, 4)
