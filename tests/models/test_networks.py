"""The paper's networks: their sizes, their prunable layers, their blocks, their first values."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedtiny import models
from fedtiny.errors import ModelError
from fedtiny.export import support
from fedtiny.graph.ir import Graph, Kind
from fedtiny.graph.operations import lacking
from fedtiny.models import analyze
from fedtiny.models.analysis import profile
from fedtiny.models.networks import parameters, small, width_for

CIFAR = (3, 32, 32)
WIDTHS = dict.fromkeys(models.KINDS, 8) | {"vit_tiny": 16, "lenet5": 6}
NAMES = ("resnet18", "vgg11", "vgg11_small", "small")


def on_paper(name, shape=CIFAR, classes=10, width=None):
    """A network of shapes without values: VGG11 would be half a gigabyte."""
    with torch.device("meta"):
        return models.build(name, shape, classes, width=width)


def size(network):
    return sum(parameter.numel() for parameter in network.parameters())


def layers(network):
    """Every convolution and linear layer, as registered."""
    kinds = (nn.Conv2d, nn.Linear)
    return [name for name, module in network.named_modules() if isinstance(module, kinds)]


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet18", 11_173_962), ("vgg11", 128_812_810), ("vgg11_small", 9_231_114)],
)
def test_parameter_counts_are_the_paper_s(name, count):
    assert size(on_paper(name)) == count


@pytest.mark.parametrize("name", NAMES)
def test_twice_the_width_is_twice_the_channels_of_every_hidden_layer(name):
    narrow, wide = (analyze(on_paper(name, width=w), CIFAR) for w in (4, 8))
    for layer, shape in narrow.prunable.items():
        out, into, *kernel = shape
        assert wide.prunable[layer] == (2 * out, 2 * into, *kernel)
    assert wide.dense[f"{wide.output_layer}.bias"] == (10,)


@pytest.mark.parametrize("name", NAMES)
def test_the_default_width_is_the_paper_s(name):
    assert size(on_paper(name)) == size(on_paper(name, width=models.kind(name).width))


@pytest.mark.parametrize("name", NAMES)
def test_prunable_is_every_weight_but_the_first_and_the_last_layer_s(name):
    network = on_paper(name, width=4)
    param_spec = analyze(network, CIFAR)
    ends = {param_spec.input_layer, param_spec.output_layer}
    assert set(param_spec.prunable) == {f"{layer}.weight" for layer in layers(network)} - {
        f"{end}.weight" for end in ends
    }
    assert network.get_submodule(param_spec.input_layer).in_channels == 3
    assert network.get_submodule(param_spec.output_layer).out_features == 10


@pytest.mark.parametrize("name", NAMES)
def test_an_anatomy_accounts_for_every_parameter_and_statistic(name):
    network = on_paper(name, width=4)
    param_spec = analyze(network, CIFAR)
    statistics = sum(int(np.prod(shape)) for shape in param_spec.statistics.values())
    assert param_spec.prunable_count + param_spec.dense_count - statistics == size(network)
    assert len(param_spec.statistics) == 2 * len(param_spec.norms)


def test_resnet18_has_five_blocks_the_widest_stage_split_in_two():
    param_spec = analyze(on_paper("resnet18"), CIFAR)
    stages = ("layer1.", "layer2.", "layer3.", "layer4.0.", "layer4.1.")
    assert [len(block) for block in param_spec.blocks] == [4, 5, 5, 3, 2]
    for stage, block in zip(stages, param_spec.blocks, strict=True):
        assert all(layer.startswith(stage) for layer in block)


def test_a_resnet18_shortcut_runs_after_the_convolutions_beside_it():
    order = list(analyze(on_paper("resnet18"), CIFAR).prunable)
    start = order.index("layer2.0.conv1.weight")
    assert order[start : start + 3] == [
        "layer2.0.conv1.weight",
        "layer2.0.conv2.weight",
        "layer2.0.shortcut.0.weight",
    ]


def test_vgg11_prunes_nine_layers_in_pairs_and_the_last_alone():
    param_spec = analyze(on_paper("vgg11"), CIFAR)
    in_order = tuple(param_spec.prunable)
    assert len(in_order) == 9
    assert param_spec.blocks == (*zip(in_order[:8:2], in_order[1:8:2], strict=True), in_order[8:])
    assert param_spec.blocks[-1] == ("head.5.weight",)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_builds_the_same_network(name):
    shape = (1, 32, 32)
    one, same, other = (models.build(name, shape, 3, width=2, seed=s) for s in (7, 7, 8))
    pairs = list(zip(one.state_dict().values(), same.state_dict().values(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    first = analyze(one, shape).input_layer + ".weight"
    assert not torch.equal(one.state_dict()[first], other.state_dict()[first])


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    models.build("small", (1, 8, 8), 3, width=2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_a_network_gives_one_number_a_class(name):
    network = models.build(name, (1, 32, 32), 7, width=2).eval()
    assert network(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


def test_an_image_that_is_too_small_is_refused():
    with pytest.raises(ModelError, match=r"vgg11 needs images of at least 32 pixels.*28"):
        models.build("vgg11", (1, 28, 28), 10, width=2)


def test_an_unknown_model_gets_a_suggestion():
    with pytest.raises(ModelError, match=r"no model 'resnet19'.*did you mean 'resnet18'"):
        models.build("resnet19", CIFAR, 10)


@pytest.mark.parametrize("width", [1, 2, 5, 16, 33])
@pytest.mark.parametrize(("channels", "classes"), [(1, 10), (3, 100)])
def test_the_small_model_s_size_is_known_before_it_is_built(width, channels, classes):
    with torch.device("meta"):
        network = small(channels, classes, width)
    assert parameters(channels, classes, width) == size(network)


@given(st.integers(200, 300_000), st.sampled_from([1, 3]))
def test_the_small_model_is_the_widest_within_its_budget(budget, channels):
    width = width_for(budget, channels, 10)
    assert parameters(channels, 10, width) <= budget < parameters(channels, 10, width + 1)


@pytest.mark.parametrize("share", [0.01, 0.001])
def test_the_small_model_matches_the_kept_weights_of_resnet18(share):
    budget = int(share * 11_173_962)
    found = parameters(3, 10, width_for(budget, 3, 10))
    assert 0.8 * budget < found <= budget


def test_a_budget_below_the_smallest_model_is_refused():
    with pytest.raises(ModelError, match="at least 181 parameters, more than the 180"):
        width_for(parameters(3, 10, 1) - 1, 3, 10)


# Networks of others


def test_resnet8_has_the_shape_of_mlperf_tiny_s():
    """A stem, three blocks of two convolutions, two shortcuts, a head; 12.5 million MACs."""
    spec = analyze(on_paper("resnet8"), CIFAR)
    shapes = {name.removesuffix(".weight"): shape for name, shape in spec.prunable.items()}
    assert shapes == {
        "layer1.0.conv1": (16, 16, 3, 3),
        "layer1.0.conv2": (16, 16, 3, 3),
        "layer2.0.conv1": (32, 16, 3, 3),
        "layer2.0.conv2": (32, 32, 3, 3),
        "layer2.0.shortcut.0": (32, 16, 1, 1),
        "layer3.0.conv1": (64, 32, 3, 3),
        "layer3.0.conv2": (64, 64, 3, 3),
        "layer3.0.shortcut.0": (64, 32, 1, 1),
    }
    assert [len(block) for block in spec.blocks] == [2, 3, 3]
    assert profile(on_paper("resnet8"), CIFAR).macs == 12_501_632


def sample_of(name, size=16):
    return models.STANDARD[models.kind(name).dimensions] if name != "vgg11" else CIFAR


@pytest.mark.parametrize("name", models.KINDS)
def test_parameter_counts_are_those_that_are_listed(name):
    assert size(on_paper(name, sample_of(name))) == models.kind(name).parameters


@pytest.mark.parametrize(
    ("name", "count"),
    [("mobilenetv2", 2_236_682), ("mobilenetv3_small", 1_528_106), ("lenet5", 62_006)],
)
def test_sizes_are_those_of_torchvision_s_networks_with_ten_classes(name, count):
    assert models.kind(name).parameters == count


@pytest.mark.parametrize("name", sorted({*models.KINDS} - {"vgg11", "vgg11_small"}))
def test_a_narrow_network_reads_its_samples_and_has_its_first_layer_s_width(name):
    shape, width = sample_of(name), WIDTHS[name]
    network = models.build(name, shape, 7, width=width).eval()
    assert network(torch.zeros(2, *shape)).shape == (2, 7)
    spec = analyze(network, shape)
    first = network.get_submodule(spec.input_layer).weight
    assert first.shape[0] == width
    assert spec.prunable_count + spec.dense_count >= size(network)


@pytest.mark.parametrize("name", models.KINDS)
@pytest.mark.parametrize("shape", [(1, 49, 10), (1, 8, 8), (3, 28, 28)])
def test_images_of_any_shape_are_read_from_the_smallest_on(name, shape):
    known = models.kind(name)
    if known.dimensions != 3 or min(shape[1:]) < known.smallest_input or name == "vgg11":
        return
    network = models.build(name, shape, 3, width=WIDTHS[name]).eval()
    assert network(torch.zeros(1, *shape)).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("cnn1d", (3, 8, 8), r"cnn1d reads sequences \[channels, time\], but the data are images"),
        ("resnet20", (6, 128), r"resnet20 reads images.*take --model cnn1d, or"),
        ("small", (20,), "take --model mlp, or a network of your own"),
    ],
)
def test_samples_of_another_kind_are_refused_with_what_fits(name, shape, said):
    with pytest.raises(ModelError, match=said):
        models.build(name, shape, 3)


def test_the_heads_of_a_transformer_share_its_width():
    with pytest.raises(ModelError, match=r"width of 97 into 3 heads.*a multiple of 32"):
        models.build("vit_tiny", CIFAR, 10, width=97)


@pytest.mark.parametrize("name", models.KINDS)
def test_what_is_said_of_native_devices_and_of_c_is_so(name):
    kind = models.KINDS[name]
    shape = models.STANDARD[kind.dimensions]
    graph = models.traced(on_paper(name, shape), shape)
    assert kind.native == (not models.not_native(graph))
    known = isinstance(graph, Graph)
    assert kind.c == (known and not lacking(graph.nodes, support.BACKENDS["C"] | {Kind.INPUT}))
