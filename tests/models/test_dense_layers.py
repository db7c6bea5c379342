"""What stays dense by default: depthwise layers and squeeze-and-excite, known by their wiring."""

import pytest
import torch
from torch import nn

from fedtiny import models
from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph, Node
from fedtiny.graph.node import Kind
from fedtiny.models import analyze
from fedtiny.models.dense_layers import squeeze_excite

SHAPE = (2, 8, 8)


def chain(*middle):
    """A stem, layers, and a head."""
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *middle, nn.Flatten(), nn.Linear(4 * 64, 3))


def test_depthwise_layers_stay_dense_and_grouped_and_pointwise_ones_do_not():
    network = chain(
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Conv2d(4, 4, 1),
    )
    assert list(analyze(network, SHAPE).prunable) == ["2.weight", "3.weight"]
    asked = analyze(network, SHAPE, depthwise=True)
    assert list(asked.prunable) == ["1.weight", "2.weight", "3.weight"]


def test_a_network_of_depthwise_layers_alone_names_the_option():
    network = chain(nn.Conv2d(4, 4, 3, padding=1, groups=4))
    with pytest.raises(ModelError, match=r"prune them too with --pruning\.depthwise"):
        analyze(network, SHAPE)


def test_a_network_s_own_list_goes_before():
    network = chain(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 4, 1))
    network.prunable_layers = ["1"]
    assert list(analyze(network, SHAPE).prunable) == ["1.weight"]


def test_a_declared_block_whose_layers_all_stay_dense_is_left_out():
    network = chain(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 4, 1))
    network.pruning_blocks = [["1"], ["2"]]
    assert analyze(network, SHAPE).blocks == (("2.weight",),)
    assert analyze(network, SHAPE, depthwise=True).blocks == (("1.weight",), ("2.weight",))


def gated(pooled: int):
    """A stem, a pool of some node, two layers, a sigmoid, and the stem times it."""
    return Graph(
        (
            Node(Kind.INPUT, channels=4, size=(8, 8)),
            Node(Kind.CONVOLUTION, (0,), "stem", channels=4),
            Node(Kind.ADAPTIVE_POOL, (pooled,), size=(1, 1)),
            Node(Kind.CONVOLUTION, (2,), "fc1", channels=2),
            Node(Kind.RELU, (3,)),
            Node(Kind.CONVOLUTION, (4,), "fc2", channels=4),
            Node(Kind.SIGMOID, (5,)),
            Node(Kind.MULTIPLY, (1, 6)),
            Node(Kind.FLATTEN, (7,)),
            Node(Kind.LINEAR, (8,), "head", channels=3),
        )
    )


def test_squeeze_and_excite_is_the_way_from_a_mean_to_the_product_with_what_it_is_of():
    assert squeeze_excite(gated(pooled=1)) == {"fc1", "fc2"}


def test_a_product_with_something_else_is_no_squeeze_and_excite():
    assert squeeze_excite(gated(pooled=0)) == set()


@pytest.mark.parametrize("name", ["mobilenetv2", "mobilenetv3_small", "ds_cnn"])
def test_what_is_pruned_of_networks_for_devices(name):
    with torch.device("meta"):
        network = models.build(name, (3, 32, 32), 10)
    spec = analyze(network, (3, 32, 32))
    modules = {
        layer: network.get_submodule(layer.removesuffix(".weight")) for layer in spec.prunable
    }
    assert all(getattr(module, "groups", 1) == 1 for module in modules.values())
    assert not any(".fc1." in layer or ".fc2." in layer for layer in modules)
    everything = analyze(network, (3, 32, 32), depthwise=True)
    assert len(everything.prunable) > len(spec.prunable)


def test_the_share_of_all_parameters_counts_what_is_never_pruned():
    network = chain(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))
    spec = analyze(network, SHAPE)
    every = sum(parameter.numel() for parameter in network.parameters())
    assert spec.parameter_count == every == 2 * 9 * 4 + 4 + 16 + 8 + 256 * 3 + 3
    assert spec.whole_density(16) == 1
    assert spec.whole_density(4) == pytest.approx((every - 12) / every)
