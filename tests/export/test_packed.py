"""A packed model gives the logits of the run's model, wherever it runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fedtiny import models
from fedtiny.data.transforms import ArrayTransform
from fedtiny.errors import ExportError
from fedtiny.export import numpy_model, packed, torch_model
from fedtiny.export.packed import layer_bytes
from fedtiny.graph.ir import Graph

from .nets import DENSITIES, SHIPPED, assert_close, shipped, sparse, tiny_model
from .odd import ODD


def both(model, images):
    """The logits of NumPy and of torch."""
    network = torch_model.PackedNetwork(model).eval()
    with torch.no_grad():
        return numpy_model.NumpyModel(model)(images), network(torch.from_numpy(images)).numpy()


def pixels(made, count=6):
    return np.random.default_rng(1).integers(0, 256, (count, *made.shape), dtype=np.uint8)


def check(made, model, images, relative=1e-5):
    normal = ArrayTransform(model.normalisation.mean, model.normalisation.std)
    expected = made.logits(normal.normalise(images))
    for found in both(model, images):
        assert_close(found, expected, relative)


@pytest.mark.slow
@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_model_comes_back_with_its_logits(name, density, fold):
    made = shipped(name, density)
    model = packed.unpacked(packed.packed(tiny_model(made, fold=fold)))
    check(made, model, pixels(made))


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("network", ODD, ids=lambda network: network.__name__)
def test_so_does_a_network_of_one_s_own(network, fold):
    made = sparse(network(), (2, 9, 8), 0.3)
    model = packed.unpacked(packed.packed(tiny_model(made, fold=fold)))
    check(made, model, pixels(made))


@pytest.mark.parametrize(("values", "within"), [("fp16", 2e-3), ("int8", 0.05)])
@pytest.mark.parametrize("name", SHIPPED)
def test_fewer_bits_are_smaller_and_near(name, values, within):
    made = shipped(name, 0.1)
    model = tiny_model(made)
    whole, small = (packed.packed(model, kind) for kind in ("fp32", values))
    assert len(small) < len(whole)
    again = packed.unpacked(small)
    assert again.held == values
    check(made, again, pixels(made), within)


def test_everything_beside_the_weights_comes_back():
    made = tiny_model(shipped("resnet18", 0.01))
    model = replace(made, card={"method": "fedtiny", "config": {"density": 0.01, "list": [1, "a"]}})
    again = packed.unpacked(packed.packed(model))
    assert (again.classes, dict(again.card)) == (model.classes, model.card)
    assert (again.normalisation, again.shape) == (model.normalisation, (3, 16, 16))
    assert again.held == "fp32"
    assert again.net.graph.nodes == model.net.graph.nodes
    for name, weights in model.net.weights.items():
        np.testing.assert_array_equal(again.net.weights[name].positions, weights.positions)
        np.testing.assert_array_equal(again.net.weights[name].values, weights.values)


def test_the_same_model_gives_the_same_bytes():
    made = shipped("resnet18", 0.1)
    first, second = (packed.packed(tiny_model(made)) for _ in range(2))
    assert first == second
    assert packed.packed(packed.unpacked(first)) == first


def test_the_file_is_a_safetensors_file_that_others_can_open(tmp_path):
    path = tmp_path / "model.packed"
    path.write_bytes(packed.packed(tiny_model(shipped("small", 0.1)), "int8"))
    with safe_open(path, "np") as file:
        told = json.loads(file.metadata()["fedtiny.packed"])
        assert {"0.values", "0.scales", "0.bias", "digest", "4.positions"} <= set(file.keys())
        assert file.get_tensor("0.values").dtype == np.int8
    assert told["format"] == 1
    assert told["classes"] == list("abcdefghij")
    assert told["steps"][0] == {"kind": "input", "channels": 1, "size": [8, 8]}


def test_the_larger_part_of_a_file_is_its_layers():
    model = tiny_model(shipped("resnet18", 0.01))
    for values in ("fp32", "fp16", "int8"):
        data = packed.packed(model, values)
        header = 8 + int.from_bytes(data[:8], "little")
        layers = sum(layer_bytes(model, values).values())
        assert len(data) == header + layers + 16, "header, layers, digest"


def test_resnet18_at_one_percent_is_tiny():
    made = sparse(models.build("resnet18", (3, 32, 32), 10), (3, 32, 32), 0.01)
    model = tiny_model(made)
    dense = made.theta.param_spec.dense_bytes
    assert 44.6e6 < dense < 44.8e6
    fp32, fp16, int8 = (len(packed.packed(model, v)) for v in ("fp32", "fp16", "int8"))
    assert fp32 <= 0.025 * dense
    assert int8 < fp16 < 0.7 * fp32
    assert int8 <= 300_000


def test_unprintable_names_are_made_printable():
    model = tiny_model(shipped("small", 0.1))
    sly = replace(model, classes=("\x1b[31mred\n", *"bcdefghij"), card={"a\0": ["\x07"]})
    again = packed.unpacked(packed.packed(sly))
    assert again.classes[0] == "?[31mred?"
    assert dict(again.card) == {"a?": ["?"]}


# Loaders


def test_floats_from_0_to_1_are_pixels_too():
    made = shipped("small", 0.3)
    model = numpy_model.NumpyModel(tiny_model(made))
    images = pixels(made)
    np.testing.assert_allclose(model(images), model(images / np.float32(255)), atol=1e-5)
    network = torch_model.PackedNetwork(model.model).eval()
    with torch.no_grad():
        found = network(torch.from_numpy(images / np.float32(255)))
    np.testing.assert_allclose(found, model(images), atol=1e-5)


def test_batches_of_any_length():
    made = shipped("small", 0.1)
    model = numpy_model.NumpyModel(tiny_model(made))
    images = pixels(made, 150)
    one_by_one = np.concatenate([model(image[np.newaxis]) for image in images])
    np.testing.assert_allclose(model(images), one_by_one, atol=1e-5)
    assert model(images[:0]).shape == (0, 10)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 13), (8, 8)])
def test_images_of_another_shape_are_refused(shape):
    model = tiny_model(shipped("small", 0.1))
    images = np.zeros((2, *shape), np.uint8)
    with pytest.raises(ExportError) as with_numpy:
        numpy_model.NumpyModel(model)(images)
    with pytest.raises(ExportError) as with_torch:
        torch_model.PackedNetwork(model)(torch.from_numpy(images))
    told = f"the model takes samples of shape (1, 8, 8), not {shape}"
    assert str(with_numpy.value) == str(with_torch.value) == told


def test_load_gives_a_module_with_the_names_of_the_run_s(tmp_path):
    import fedtiny

    made = shipped("resnet18", 0.1)
    (tmp_path / "model.packed").write_bytes(packed.packed(tiny_model(made, fold=False)))
    network = fedtiny.load(tmp_path / "model.packed")
    assert isinstance(network, torch.nn.Module)
    assert not network.training
    assert network.classes == tuple("abcdefghij")
    ours, theirs = (set(dict(n.named_parameters())) for n in (network, made.torch))
    assert ours >= theirs
    normalised = made.images()
    network.normalise = False
    with torch.no_grad():
        assert_close(network(torch.from_numpy(normalised)).numpy(), made.logits(normalised))


@pytest.mark.parametrize("name", ["forward", "a..b", ".", "classes"])
def test_a_name_that_torch_cannot_have_is_told(name):
    model = tiny_model(shipped("small", 0.1))
    nodes = model.net.graph.nodes
    first = next(number for number, node in enumerate(nodes) if node.name)
    sly = packed.unpacked(packed.packed(_renamed(model, first, name)))
    with pytest.raises(ExportError, match="torch cannot have a layer of the name"):
        torch_model.PackedNetwork(sly)


def _renamed(model, number, name):
    nodes = list(model.net.graph.nodes)
    before, nodes[number] = nodes[number].name, replace(nodes[number], name=name)
    weights = {name if n == before else n: w for n, w in model.net.weights.items()}
    net = replace(model.net, graph=Graph(tuple(nodes)), weights=weights)
    return replace(model, net=net)
