"""ONNX graphs give the same logits in onnxruntime, sparse and plain."""

import numpy as np
import onnx
import onnxruntime
import pytest

from fedtiny.data.transforms import ArrayTransform
from fedtiny.export.onnx_file import onnx_bytes, plain_size

from .nets import SHIPPED, assert_close, shipped, sparse, tiny_model
from .odd import ODD


def session(data):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def check(made, model, plain):
    images = np.random.default_rng(1).random((4, *made.shape), dtype=np.float32)
    normal = model.normalisation
    expected = made.logits(ArrayTransform(normal.mean, normal.std).normalise(images))
    (found,) = session(onnx_bytes(model, plain=plain)).run(["logits"], {"image": images})
    assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("density", [1.0, 0.01, 0.001])
@pytest.mark.parametrize("name", SHIPPED)
def test_every_model_has_its_logits_in_onnxruntime(name, density, fold, plain):
    made = shipped(name, density)
    check(made, tiny_model(made, fold=fold), plain)


@pytest.mark.parametrize("net", ODD, ids=lambda net: net.__name__)
def test_networks_of_one_s_own_too(net):
    made = sparse(net(), (2, 9, 8), 0.3)
    check(made, tiny_model(made), plain=False)


def test_sparse_initializers_are_small_and_there():
    model = tiny_model(shipped("resnet18", 0.01))
    small, plain = (onnx_bytes(model, plain=plain) for plain in (False, True))
    graph = onnx.load_from_string(small).graph
    assert {each.values.name for each in graph.sparse_initializer} > {"layer1.0.conv1.weight"}
    assert not onnx.load_from_string(plain).graph.sparse_initializer
    assert len(small) < 0.2 * len(plain)
    assert plain_size(model) == pytest.approx(len(plain), abs=100 * len(model.net.weights))
