"""Networks as people write them: traced, packed at any density, costed, and what is native."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedtiny import models
from fedtiny.errors import ModelError
from fedtiny.export import packed
from fedtiny.export.network import lower
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.graph.arithmetic import all_steps
from fedtiny.graph.ir import Kind
from fedtiny.graph.operations import native_lacks
from fedtiny.graph.trace import trace
from fedtiny.models.analysis import profile

from ..export.nets import assert_close, sparse
from .blocks import NETWORKS, Recurrent, TemporalBlock
from .dense import by_onnx, tiny

EVERY = pytest.mark.parametrize("name", NETWORKS)
NOT_NATIVE = {
    "ConvNeXt": "parameter (2)",
    "Vit": "parameter (cls_token)",
    "Vit by hand": "parameter (cls_token)",
    "encoder": "transposed_convolution (up)",
}


def build(name):
    torch.manual_seed(3)
    make, shape = NETWORKS[name]
    return make(), shape


@EVERY
@pytest.mark.parametrize("density", [1.0, 0.3, 0.05])
@pytest.mark.parametrize("fold", [True, False])
def test_it_keeps_its_logits_at_any_density(name, density, fold):
    made = sparse(*build(name), density)
    images = made.images(count=4)
    expected = made.logits(images)
    for remove_dead in (True, False):
        net = lower(made.graph, made.theta, fold=fold, remove_dead=remove_dead)
        again = packed.unpacked(packed.packed(tiny(net)))
        batch = images.reshape(len(images), *net.graph.shapes[0])
        assert_close(NumpyModel(again).logits(batch), expected)
    assert_close(by_onnx(net, images), expected)


@EVERY
def test_it_costs_what_pytorch_counts(name):
    network, shape = build(name)
    counter, products = FlopCounterMode(display=False), sdpa_kernel(SDPBackend.MATH)
    with counter, products, torch.no_grad():
        network.eval()(torch.zeros(2, *shape))
    assert 4 * profile(network, shape).macs == counter.get_total_flops()


@EVERY
def test_it_costs_the_same_where_it_has_no_graph(name):
    network, shape = build(name)
    assert profile(network, shape) == profile(network, shape, ModelError("no graph"))


@EVERY
def test_all_its_weights_are_useful_at_density_one(name):
    made = sparse(*build(name), 1.0)
    assert made.theta.mask.reachability(made.graph).density == 1


@EVERY
def test_what_native_devices_lack_is_named(name):
    graph = trace(*build(name))
    assert native_lacks(graph.nodes) == NOT_NATIVE.get(name, "")


@EVERY
def test_its_graph_crosses_to_another_process(name):
    graph = trace(*build(name))
    assert type(graph).from_plain(graph.to_plain()) == graph


def test_a_layer_that_runs_several_times_is_one_with_as_many_uses():
    network, shape = build("recurrent")
    graph = trace(network, shape)
    assert [n.name for n in graph.nodes].count("step") == 3
    assert graph.uses["step"] == 3 * 6 * 5
    assert list(models.analyze(network, shape).prunable) == ["step.weight", "middle.weight"]


def test_a_transposed_convolution_stays_dense():
    network, shape = build("encoder")
    assert list(models.analyze(network, shape).prunable) == ["down.weight", "last.weight"]
    network.prunable_layers = ["up"]
    with pytest.raises(ModelError, match="'up' is a transposed convolution"):
        models.analyze(network, shape)


def test_batch_norm_behind_a_layer_that_runs_twice_stays():
    class Twice(Recurrent):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(6)

    made = sparse(Twice(), (3, 8, 7), 0.5)
    net = lower(made.graph, made.theta, fold=True, remove_dead=True)
    assert list(net.norms) == ["norm"]
    images = made.images()
    batch = images.swapaxes(0, 1).astype(np.float64)
    assert_close(all_steps(net, batch)[-1][:, :, 0, 0].T, made.logits(images))


def test_zeros_before_a_causal_convolution_are_its_padding():
    network = nn.Sequential(TemporalBlock(4, 3), nn.Flatten(), nn.Linear(40, 2))
    node = trace(network, (4, 10)).nodes[1]
    assert (node.kernel, node.dilation) == ((1, 3), (1, 3))
    assert (node.padding, node.padding_end) == ((0, 6), (0, 0))


def test_attention_is_products_and_a_softmax():
    graph = trace(*build("Vit"))
    kinds = [node.kind for node in graph.nodes]
    assert kinds.count(Kind.MATMUL) == 2
    assert graph.other_macs == 2 * 2 * 5 * 5 * 4, "two products, two heads, five tokens"
    assert graph.tensors["pos_embed"] == (1, 5, 8)


def test_dead_channels_go_from_depthwise_layers_and_concats():
    made = sparse(*build("MobileNetV2"), 0.05)
    net = lower(made.graph, made.theta, fold=True, remove_dead=True)
    depthwise = [n for n in net.graph.nodes if n.groups > 1]
    before = [n for n in made.graph.nodes if n.groups > 1]
    assert sum(n.channels for n in depthwise) < sum(n.channels for n in before)
    assert all(n.groups == n.channels for n in depthwise)
    made = sparse(*build("SqueezeNet"), 0.05)
    net = lower(made.graph, made.theta, fold=True, remove_dead=True)
    assert sum(s[0] for s in net.graph.shapes) < 0.8 * sum(s[0] for s in made.graph.shapes)
