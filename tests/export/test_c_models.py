"""Exported C gives the logits of the model that it was made from."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fedtiny.data.transforms import ArrayTransform, Preparation
from fedtiny.export.c_source import write_c
from fedtiny.export.network import TinyModel
from fedtiny.graph.arrays import Lowered, Weights

from ..graph.building import Builder
from .c_networks import networks
from .c_program import COMPILERS, SANITIZED, compiled, needs_compiler, run
from .c_reference import as_held, logits
from .nets import SHIPPED, assert_close, shipped, sparse, tiny_model
from .odd import ODD

pytestmark = needs_compiler
IMAGES = 200
RELATIVE = 1e-4


def assert_same(found, expected):
    """The same class, but where two classes are as good as equal, and the same logits."""
    classes, _, values = found
    assert_close(values, expected, RELATIVE)
    np.testing.assert_array_equal(classes, values.argmax(axis=1))
    best = np.sort(expected, axis=1)
    clear = best[:, -1] - best[:, -2] > 2 * RELATIVE * np.abs(expected).max()
    assert clear.sum() >= 0.95 * len(clear)
    np.testing.assert_array_equal(classes[clear], expected.argmax(axis=1)[clear])


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("values", ["fp32", "int8"])
@pytest.mark.parametrize("name", SHIPPED)
def test_every_model_gives_the_same_for_200_images(name, values, compiler, tmp_path):
    made = shipped(name, density=0.1)
    model, images = tiny_model(made), made.images(IMAGES)
    write_c(model, tmp_path, values=values)
    expected = (
        made.logits(images) if values == "fp32" else logits(as_held(model.net, values), images)
    )
    assert_same(run(compiled(tmp_path, compiler=compiler), images), expected)


@pytest.mark.slow
@pytest.mark.parametrize("density", [1.0, 0.01, 0.001])
@pytest.mark.parametrize("name", SHIPPED)
def test_at_any_density_no_read_or_write_goes_astray(name, density, tmp_path):
    made = shipped(name, density)
    write_c(tiny_model(made), tmp_path, values="fp32")
    images = made.images(3)
    _, _, found = run(compiled(tmp_path, *SANITIZED), images)
    assert_close(found, made.logits(images), RELATIVE)


@pytest.mark.slow
@pytest.mark.parametrize("values", ["fp32", "int8"])
@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("network", ODD)
def test_odd_networks(network, fold, values, tmp_path):
    made = sparse(network(), (2, 11, 13), density=0.4)
    model, images = tiny_model(made, fold=fold, remove_dead=fold), made.images(10)
    write_c(model, tmp_path, values=values)
    _, _, found = run(compiled(tmp_path, *SANITIZED), images)
    assert_close(found, logits(as_held(model.net, values), images), RELATIVE)


def dense(*shape):
    values = np.random.default_rng(shape).standard_normal(int(np.prod(shape)))
    return Weights(shape, None, values.astype(np.float32), None)


def a_layer_added_to_what_it_reads():
    net = Builder((1, 5, 4))
    first = net.convolution("first", 0, 3, kernel=(3, 3), padding=(1, 1))
    second = net.convolution("second", first, 3, kernel=(3, 3), padding=(1, 1))
    net.linear("head", net.flatten(net.add(second, first)), 4, bias=False)
    held = {"first": dense(3, 1, 3, 3), "second": dense(3, 3, 3, 3), "head": dense(4, 60)}
    return Lowered(net.graph, held, {})


def more_padding_than_kernel():
    net = Builder((1, 3, 3))
    one = net.convolution("one", 0, 2, kernel=(1, 2), padding=(2, 3), bias=True)
    other = net.convolution("other", 0, 2, kernel=(1, 2), padding=(2, 3))
    net.linear("head", net.flatten(net.add(one, other)), 4, bias=False)
    biased = replace(dense(2, 1, 1, 2), bias=np.ones(2, dtype=np.float32))
    held = {"one": biased, "other": dense(2, 1, 1, 2), "head": dense(4, 112)}
    return Lowered(net.graph, held, {})


@pytest.mark.parametrize("made", [a_layer_added_to_what_it_reads, more_padding_than_kernel])
def test_sums(made, tmp_path):
    net = made()
    shape = (1, *net.graph.nodes[0].size)
    images = np.random.default_rng(0).standard_normal((5, *shape)).astype(np.float32)
    write_c(TinyModel(net, Preparation((0.0,), (1.0,)), tuple("abcd"), {}), tmp_path, values="fp32")
    _, _, found = run(compiled(tmp_path, *SANITIZED), images)
    assert_close(found, logits(net, images), RELATIVE)


def test_bytes_are_normalised_as_in_training(tmp_path):
    made = shipped("small", density=0.3)
    model = tiny_model(made)
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, *made.shape), dtype=np.uint8)
    prepare = ArrayTransform(model.normalisation.mean, model.normalisation.std)
    write_c(model, tmp_path, values="fp32")
    assert_same(run(compiled(tmp_path), pixels), made.logits(prepare.normalise(pixels)))


@pytest.mark.slow
@given(networks())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_network(tmp_path, model):
    write_c(model, tmp_path, values="fp32")
    images = np.random.default_rng(0).standard_normal((2, *model.shape)).astype(np.float32)
    _, _, found = run(compiled(tmp_path, *SANITIZED), images)
    expected = logits(model.net, images)
    allowed = RELATIVE * (1 + np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)
