"""int8 activations: NumPy and C compute the same integers, which stay close to the floats."""

import subprocess
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from fedtiny import models
from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError
from fedtiny.export import c_int8_runtime, packed
from fedtiny.export.c_int8 import write_int8
from fedtiny.export.c_program import ACTIONS
from fedtiny.export.c_source import write_c
from fedtiny.export.integer_model import IntegerModel
from fedtiny.export.integers import Arithmetic, rounded
from fedtiny.export.network import QParams, TinyModel, quantise
from fedtiny.export.numpy_model import NumpyModel, load
from fedtiny.export.onnx_int8 import onnx_int8_bytes
from fedtiny.export.quantize import quantize, short_scales
from fedtiny.graph.arrays import Lowered, Weights
from fedtiny.graph.ir import Graph, Kind, Node

from .c_operations import FORMS, Branches
from .c_program import SANITIZED, compiled, needs_compiler, run
from .nets import assert_close, measured, shipped, tiny_model
from .test_onnx import session

TARGETS = tuple(name for name, held in c_int8_runtime.WIDTHS.items() if not held.condition)
DEVICES = {
    "mobilenetv2": ((3, 16, 16), 8),
    "mobilenetv3_small": ((3, 16, 16), 8),
    "ds_cnn": ((1, 25, 10), 8),
    "resnet8": ((3, 16, 16), 8),
    "squeezenet": ((3, 16, 16), 16),
    "cnn1d": ((6, 64), 8),
    "mlp": ((20,), 16),
    "resnet18_gn": ((3, 16, 16), 8),
    "vit_tiny": ((3, 16, 16), 24),
}
CLOSE = {"mobilenetv2": 0.4, "squeezenet": 0.2}
"""How far a logit may be from the one of floats, as a share of the largest; others 0.05."""


def branches(seed):
    """Every operation, with settings and sources by chance."""
    rng = np.random.default_rng(seed)
    b = Branches(seed, (int(rng.integers(1, 5)), *map(int, rng.integers(2, 10, 2))))
    for name in rng.permutation(list(FORMS)):
        b.ends.append(FORMS[name](b))
    return b.model()


def samples(model, count, seed=0):
    """Bytes for images, floats for what has one row."""
    rng = np.random.default_rng(seed)
    if model.shape[1] == 1:
        return rng.standard_normal((count, *model.shape)).astype(np.float32)
    return rng.integers(0, 256, (count, *model.shape)).astype(np.uint8)


def assert_c_gives_the_same(model, folder, target, images, *flags):
    write_int8(model, folder, target=target)
    classes, _, found = run(compiled(folder, *flags), images, "raw")
    expected = IntegerModel(model)(images)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(classes, expected.argmax(axis=1))


@needs_compiler
@pytest.mark.parametrize("seed", range(3))
def test_c_has_the_integers_of_numpy_in_every_operation(seed, tmp_path):
    model = branches(seed)
    images = samples(model, 12)
    made = quantize(model, images)
    assert_c_gives_the_same(made, tmp_path / "c", TARGETS[seed % 3], images, *SANITIZED)
    close = NumpyModel(model)(images) - IntegerModel(made)(images)
    assert np.abs(close).mean() < 0.1


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_c_has_the_integers_of_numpy_more_often(seed, tmp_path):
    model = branches(seed)
    images = samples(model, 12)
    made = quantize(model, images)
    assert_c_gives_the_same(made, tmp_path / "c", TARGETS[seed % 3], images, *SANITIZED)


@needs_compiler
def test_logits_of_200_images_to_the_bit(tmp_path):
    model = tiny_model(shipped("resnet18", 0.1))
    images = samples(model, 200)
    made = quantize(model, images[:32])
    assert_c_gives_the_same(made, tmp_path / "c", "cortex-m", images, "-O2")


@needs_compiler
@pytest.mark.parametrize("target", TARGETS)
def test_layers_that_keep_all_weights(target, tmp_path):
    model = tiny_model(shipped("small", 1.0))
    images = samples(model, 200)
    made = quantize(model, images[:32])
    assert_c_gives_the_same(made, tmp_path / "c", target, images, *SANITIZED)
    assert "    convolve_all(" in (tmp_path / "c" / "model.c").read_text()


@needs_compiler
@pytest.mark.parametrize("name", DEVICES)
def test_networks_for_devices(name, tmp_path):
    shape, width = DEVICES[name]
    model = tiny_model(measured(models.build(name, shape, 10, width=width), shape, 0.3))
    images = samples(model, 20)
    made = quantize(model, images)
    assert_c_gives_the_same(made, tmp_path / "c", "generic", images, *SANITIZED)
    assert_close(IntegerModel(made)(images), NumpyModel(model)(images), CLOSE.get(name, 0.05))


def test_int8_has_every_operation_that_c_has():
    assert {node.kind for node in branches(0).net.graph.nodes} == {*ACTIONS}


def linear_model(weight, bias):
    """A linear layer over an image of two pixels, which are not normalised."""
    nodes = (
        Node(Kind.INPUT, channels=1, size=(2, 1)),
        Node(Kind.FLATTEN, (0,)),
        Node(Kind.LINEAR, (1,), "head", len(bias), bias=True),
    )
    weights = Weights((len(bias), 2), None, np.float32(weight).reshape(-1), np.float32(bias))
    net = Lowered(Graph(nodes), {"head": weights}, {})
    return TinyModel(net, Preparation((0.0,), (1.0,)), tuple("ab")[: len(bias)], {})


def test_a_layer_by_hand():
    """Pixels 0 and 255 are -128 and 127; weights 1.27 and -0.64 are 127 and -64 hundredths."""
    model = linear_model([[1.27, -0.64], [0.5, 0.0]], [0.1, 0.0])
    images = np.tile(np.uint8([[[0], [255]]]), (8, 1, 1, 1))
    made = quantize(model, images)
    assert made.activations == {
        number: QParams(float(np.float32(1 / 255)), -128) for number in (0, 1)
    }
    arithmetic = Arithmetic(made)
    layer = arithmetic.layer(arithmetic.steps[-1])
    assert layer.weights.values.tolist() == [127, -64, 127, 0]
    assert layer.biases.tolist() == [2550, 0]  # 0.1 in steps of 0.01 / 255
    assert layer.biases_for(-128).tolist() == [2550 + 128 * 63, 128 * 127]
    logits = IntegerModel(made)(np.uint8([[[[255], [51]]]]))
    np.testing.assert_allclose(logits, [[1.27 - 0.64 / 5 + 0.1, 0.5]], rtol=1e-4)


def test_rounding_of_weights_is_final():
    rng = np.random.default_rng(0)
    weights = Weights((50, 7), None, rng.standard_normal(350).astype(np.float32), None)
    _, scales = short_scales(weights)
    integers = np.rint(weights.values / scales[weights.filters]).astype(np.int8)
    held = replace(weights, values=integers * scales[weights.filters])
    again, same = quantise(held)
    np.testing.assert_array_equal(again, integers)
    np.testing.assert_array_equal(same, scales)


def test_filters_whose_weights_do_not_show_beside_the_bias():
    model = linear_model([[1e-12, 1e-12], [1.0, 1.0]], [3.0, 0.0])
    made = quantize(model, np.full((8, 1, 2, 1), 255, np.uint8))
    logits = IntegerModel(made)(np.full((1, 1, 2, 1), 255, np.uint8))
    np.testing.assert_allclose(logits, [[3.0, 2.0]], rtol=1e-2)


def test_halves_and_ends():
    held = QParams(0.5, 3)
    assert rounded(np.array([0.25, 0.75, -70.0, 70.0]), held).tolist() == [3, 5, -128, 127]


def test_too_few_images():
    with pytest.raises(ExportError, match="8 images or more, got 3"):
        quantize(linear_model([[1, 2]], [0]), np.zeros((3, 1, 2, 1), np.uint8))


def test_packed_files_hold_the_integers(tmp_path):
    model = tiny_model(shipped("small", 0.3))
    images = samples(model, 30)
    made = quantize(model, images)
    file = tmp_path / "model.packed"
    file.write_bytes(packed.packed(made))
    found = load(file)
    assert isinstance(found, IntegerModel)
    np.testing.assert_array_equal(found(images), IntegerModel(made)(images))
    assert packed.packed(found.model) == file.read_bytes()
    with pytest.raises(ExportError, match="has int8 activations"):
        packed.load(file)


@pytest.mark.parametrize(
    "change",
    [lambda r: r[:-1], lambda r: [[0, 0.0, 0], *r[1:]], lambda r: [[0, 1.0, 200], *r[1:]]],
)
def test_packed_files_with_activations_that_do_not_fit(change, monkeypatch):
    made = quantize(tiny_model(shipped("small", 0.3)), np.zeros((8, 1, 8, 8), np.uint8))
    records = packed.records_of
    monkeypatch.setattr(packed, "records_of", lambda found: change(records(found)))
    with pytest.raises(ExportError, match=r"damaged packed model \(its activations"):
        packed.unpacked(packed.packed(made))


@pytest.mark.parametrize("seed", range(2))
def test_onnx_is_within_few_steps(seed):
    """Its integers are rounded by the runtime: some differ by one, and what they lead to."""
    model = branches(seed)
    images = samples(model, 12)
    made = quantize(model, images)
    wanted = IntegerModel(made)(images)
    (found,) = session(onnx_int8_bytes(made)).run(
        None, {"image": images.astype(np.float32) / np.float32(255)}
    )
    assert np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()
    assert np.abs(found - wanted).mean() < 0.003 * np.abs(wanted).max()


@needs_compiler
def test_two_models_and_a_placed_arena_in_one_program(tmp_path):
    first, second = (tiny_model(shipped("small", 0.3, seed)) for seed in (0, 1))
    images = samples(first, 8)
    made = quantize(first, images)
    write_int8(made, tmp_path / "a", prefix="digits")
    write_c(second, tmp_path / "b", prefix="letters")
    (tmp_path / "both.c").write_text(
        '#include "a/digits.h"\n#include "b/letters.h"\n#include <stdio.h>\n'
        "static uint8_t image[DIGITS_CHANNELS * DIGITS_HEIGHT * DIGITS_WIDTH];\n"
        "int main(void)\n{\n    float logits[DIGITS_CLASSES], others[LETTERS_CLASSES];\n"
        "    int found = digits_run(image, logits);\n"
        '    printf("%d %d\\n", found, letters_run(image, others));\n    return 0;\n}\n'
    )
    sections = [
        f'-D{prefix}_ARENA=__attribute__((section(".{prefix.lower()}")))'
        for prefix in ("DIGITS", "LETTERS")
    ]
    sources = ("both.c", "a/digits.c", "b/letters.c")
    program = compiled(tmp_path, "-O2", *sections, sources=sources)
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    blank = np.zeros((1, *first.shape), np.uint8)
    assert int(found[0]) == IntegerModel(made)(blank).argmax()
    told = subprocess.run(["objdump", "-h", program], capture_output=True, text=True, check=True)
    assert ".digits " in told.stdout
    assert ".letters " in told.stdout


def test_integers_take_a_quarter_of_the_ram(tmp_path):
    model = tiny_model(shipped("resnet18", 0.1))
    floats = write_c(model, tmp_path / "floats")
    integers = write_int8(quantize(model, samples(model, 8)), tmp_path / "integers")
    assert integers.ram_bytes < 0.4 * floats.ram_bytes
    assert integers.flash_bytes < 1.1 * floats.flash_bytes


def test_every_part_is_found_and_none_lies_idle():
    folder = files("fedtiny.export").joinpath("runtime_int8")
    widths = c_int8_runtime.WIDTHS.values()
    forms = {form for each in widths for form in (each.form, each.condition) if form}
    elsewhere = {*c_int8_runtime.MOVING, *c_int8_runtime.SHARED, "widths"}
    parts = {*c_int8_runtime.PARTS, "run", "run_bytes", "run_raw", "main", *forms} - elsewhere
    names = {f"{part}.c" for part in parts} | {"model_bytes.h", "model_raw.h"}
    assert {entry.name for entry in folder.iterdir()} == names
