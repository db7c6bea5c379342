"""Norms, softmax, products of matrices and transposed convolutions by integers."""

from dataclasses import replace
from math import isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError
from fedtiny.export import packed
from fedtiny.export.c_int8 import write_int8
from fedtiny.export.integer_model import IntegerModel
from fedtiny.export.integer_norms import Norm as IntegerNorm
from fedtiny.export.integer_norms import fraction_of, reciprocal_roots
from fedtiny.export.network import QParams, filters_first
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.export.onnx_int8 import onnx_int8_bytes
from fedtiny.export.quantize import quantize
from fedtiny.graph.arithmetic import all_steps
from fedtiny.graph.arrays import Norm, Weights
from fedtiny.graph.ir import Graph, Kind

from .c_operations import Branches
from .c_program import SANITIZED, needs_compiler
from .nets import assert_close, measured, tiny_model
from .test_int8 import assert_c_gives_the_same, samples
from .test_onnx import session


def group_norm(b, source):
    return normed(b, source, Kind.GROUP_NORM, groups=2)


def layer_norm(b, source):
    return normed(b, source, Kind.LAYER_NORM)


def normed(b, source, kind, **fields):
    gamma, beta = b.floats(2, b.shapes[source][0])
    b.norms["norm"] = Norm(gamma, beta, epsilon=1e-5)
    return b.add(kind, source, name="norm", epsilon=1e-5, **fields)


def softmax(b, source):
    return b.add(Kind.SOFTMAX, source, axis=0)


def matmul(b, source):
    return b.add(Kind.MATMUL, source, b.add(Kind.PERMUTE, source, order=(0, 2, 1)))


def transposed(b, source):
    fields = {"kernel": (3, 2), "stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2)}
    return b.layer(Kind.TRANSPOSED_CONVOLUTION, source, 6, groups=2, **fields)


OPERATIONS = (group_norm, layer_norm, softmax, matmul, transposed)
REFUSED = (
    (layer_norm, "'norm' reads too many or too small values for int8"),
    (softmax, "'softmax' gives values too small for int8"),
)


def model_of(form, shape=(8, 6, 5)):
    """One operation of an image from -4 to 6 behind a layer that changes nothing."""
    b = Branches(0, shape)
    channels = shape[0]
    same = b.add(Kind.LINEAR, 0, name="same", channels=channels)
    diagonal = np.arange(channels) * (channels + 1)
    b.weights["same"] = Weights(
        (channels, channels), diagonal, np.ones_like(diagonal, np.float32), None
    )
    b.ends.append(form(b, same))
    sides = [(part,) * shape[0] for part in (0.4, 0.1)]
    return replace(b.model(), normalisation=Preparation(*sides))


def all_kinds_of(model):
    """Images by chance, and some that are flat but for a few pixels."""
    images = samples(model, 40)
    images[0], images[1], images[2] = 0, 7, 255
    images[1, 0, 0, 0], images[2, ::2, :3] = 8, 0
    return images


@needs_compiler
@pytest.mark.parametrize("form", OPERATIONS)
def test_half_a_step_from_floats(form, tmp_path):
    """What floats give of the same integers, with the same weights."""
    model = model_of(form)
    images = all_kinds_of(model)
    made = quantize(model, images)
    integers = IntegerModel(made)
    held = integers.arithmetic.qparams
    read, result = held[0], held[len(held) - 1]
    pixels = integers.arithmetic.pixels[:1].astype(np.float64)[0][images]
    steps = all_steps(made.net, read.scale * (pixels - read.zero_point).swapaxes(0, 1))
    wanted = steps[-1][:, :, 0, 0].T / result.scale
    ends = -128 - result.zero_point, 127 - result.zero_point
    assert np.abs(integers(images) / result.scale - wanted.clip(*ends)).max() < 0.51
    assert_c_gives_the_same(made, tmp_path / "c", "generic", images, *SANITIZED)


@needs_compiler
def test_a_network_with_transposed_convolutions(tmp_path):
    network = nn.Sequential(
        *(nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU()),
        *(nn.ConvTranspose2d(12, 8, 3, stride=2, padding=1, output_padding=1), nn.BatchNorm2d(8)),
        *(nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()),
        *(nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1, groups=2), nn.GroupNorm(2, 8)),
        *(nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)),
    )
    model = tiny_model(measured(network, (3, 8, 8), 0.3))
    images = samples(model, 20)
    made = quantize(model, images)
    assert_c_gives_the_same(made, tmp_path / "c", "cortex-m", images, *SANITIZED)
    assert "    spread(" in (tmp_path / "c" / "model.c").read_text()
    assert_close(IntegerModel(made)(images), NumpyModel(model)(images), 0.05)


@pytest.mark.parametrize("form", OPERATIONS)
def test_packed_and_onnx(form):
    model = model_of(form)
    images = samples(model, 12)
    made = quantize(model, images)
    data = packed.packed(made)
    again = packed.unpacked(data)
    wanted = IntegerModel(made)(images)
    np.testing.assert_array_equal(IntegerModel(again)(images), wanted)
    assert packed.packed(again) == data
    (found,) = session(onnx_int8_bytes(made)).run(
        None, {"image": images.astype(np.float32) / np.float32(255)}
    )
    scale = made.activations[len(made.activations) - 1].scale
    assert np.abs(found - wanted).max() < 1.01 * scale


def test_transposed_filters_are_rounded_one_by_one():
    """Filters of very different sizes keep their weights, as batch norm that is folded needs."""
    b = Branches(0, (4, 5, 5))
    fields = {"name": "up", "channels": 4, "kernel": (2, 2), "groups": 2}
    b.ends.append(b.add(Kind.TRANSPOSED_CONVOLUTION, 0, **fields))
    values = b.floats(4, 2, 2, 2) * np.float32([1, 1e-3]).reshape(1, 2, 1, 1)
    b.weights["up"] = Weights((4, 2, 2, 2), None, values.reshape(-1), None)
    made = quantize(b.model(), samples(b.model(), 8))
    again = packed.unpacked(packed.packed(made)).net.weights["up"]
    np.testing.assert_array_equal(again.dense(), made.net.weights["up"].dense())
    np.testing.assert_allclose(again.dense(), values, rtol=0, atol=0.02)
    np.testing.assert_allclose(again.dense()[:, 1], values[:, 1], rtol=0, atol=2e-5)


def test_turning_weights_twice():
    b = Branches(1, (6, 5, 5))
    number = transposed(b, 0)
    node, weights = b.net.nodes[number], b.weights[b.net.nodes[number].name]
    turned = filters_first(node, weights)
    assert turned.shape == (6, 3, 3, 2)
    np.testing.assert_array_equal(filters_first(node, turned).dense(), weights.dense())


@given(st.lists(st.integers(1, (1 << 62) - 1), min_size=1))
def test_reciprocal_roots_are_exact(numbers):
    factors, shifts = reciprocal_roots(np.array(numbers, dtype=np.int64))
    for number, factor, shift in zip(numbers, factors.tolist(), shifts.tolist(), strict=True):
        halves = 44 - shift
        assert 1 << 60 <= number << 2 * halves < 1 << 62
        assert factor == (1 << 60) // isqrt(number << 2 * halves)


@pytest.mark.parametrize("count", [2, 1 << 20])
def test_units_of_the_largest_and_the_least_variance(count):
    """Half of the values at either end, or one step apart."""
    for low, high in ((-128, 127), (5, 6)):
        read = np.where(np.arange(count) % 2, low, high)
        norm = IntegerNorm(count, read, read, fraction_of(count), 1, 0)
        ones = np.where(read == low, -1, 1)
        np.testing.assert_allclose(norm.units(read, (0,)) / (1 << 16), ones, rtol=2e-4)


def test_too_many_terms_of_a_product_of_matrices():
    made = quantize(model_of(matmul, (1, 1, 33026)), np.zeros((8, 1, 1, 33026), np.float32))
    with pytest.raises(ExportError, match="too many terms for int8: 33026"):
        IntegerModel(made)(np.zeros((1, 1, 1, 33026), np.float32))


@pytest.mark.parametrize(("form", "sentence"), REFUSED)
def test_values_that_are_too_small(form, sentence, tmp_path):
    """As a packed file may hold them; C refuses them before anything is written."""
    made = quantize(model_of(form), samples(model_of(form), 8))
    tiny = {number: QParams(1e-29, 0) for number in made.activations}
    with pytest.raises(ExportError, match=sentence):
        write_int8(replace(made, activations=tiny), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_batch_norm_beside_integers_is_refused():
    made = quantize(model_of(layer_norm), samples(model_of(layer_norm), 8))
    norm = replace(
        made.net.norms["norm"], mean=np.zeros(8, np.float32), variance=np.ones(8, np.float32)
    )
    nodes = [
        replace(n, kind=Kind.BATCH_NORM) if n.name == "norm" else n for n in made.net.graph.nodes
    ]
    net = replace(made.net, graph=Graph(tuple(nodes)), norms={"norm": norm})
    with pytest.raises(ExportError, match="activations are int8, and it has batch_norm"):
        packed.unpacked(packed.packed(replace(made, net=net)))
