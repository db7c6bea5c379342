"""Effective density: by hand on tiny networks, and against what gradients and outputs say."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedtiny import models
from fedtiny.errors import ModelError
from fedtiny.graph.ir import Kind
from fedtiny.graph.trace import trace
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask

from ..native.strategies import masks_of, smooth_networks
from ..native.twins import random_mask
from .building import Builder

SIZE = (4, 4)


def mask_of(layers):
    """A mask of just these layers, from zeros and ones."""
    arrays = {f"{name}.weight": np.array(bits) for name, bits in layers.items()}
    names = tuple(arrays)
    param_spec = ParamSpec({n: a.shape for n, a in arrays.items()}, {}, (names,), (), "", "")
    return Mask.from_arrays(param_spec, arrays)


def one_by_one(bits):
    """The mask of a 1x1 convolution, from a table of filters by channels."""
    return np.array(bits)[:, :, None, None]


def chain():
    """Two channels, a dense layer, two pruned 1x1 convolutions of two filters, a dense head."""
    net = Builder((2, *SIZE))
    node = net.relu(net.batch_norm("bn", net.convolution("first", 0, 2, kernel=(3, 3))))
    node = net.relu(net.batch_norm("bn_a", net.convolution("a", node, 2, kernel=(1, 1))))
    node = net.convolution("b", net.max_pool(node, (1, 1), (1, 1)), 2, kernel=(1, 1))
    net.linear("fc", net.flatten(net.adaptive_pool(net.dropout(node), (1, 1))), 3)
    return net.graph


def counts(net, **layers):
    found = mask_of(layers).reachability(net).counts
    return {name.removesuffix(".weight"): count for name, count in found.items()}


def test_a_full_mask_is_all_effective():
    ones = one_by_one(np.ones((2, 2), int))
    assert counts(chain(), a=ones, b=ones) == {"a": 4, "b": 4}
    assert mask_of({"a": ones, "b": ones}).reachability(chain()).density == 1


def test_what_reads_a_filter_that_nothing_feeds_is_useless():
    a, b = one_by_one([[1, 1], [0, 0]]), one_by_one([[1, 1], [0, 1]])
    assert counts(chain(), a=a, b=b) == {"a": 2, "b": 1}
    assert mask_of({"a": a, "b": b}).reachability(chain()).density == 3 / 8


def test_what_writes_a_channel_that_nothing_reads_is_useless():
    assert counts(chain(), a=one_by_one([[1, 1], [1, 0]]), b=one_by_one([[0, 1], [0, 1]])) == {
        "a": 1,
        "b": 2,
    }


def test_a_chain_that_is_cut_has_nothing_effective():
    a, b = one_by_one([[1, 1], [0, 0]]), one_by_one([[0, 1], [0, 1]])
    assert counts(chain(), a=a, b=b) == {"a": 0, "b": 0}


@pytest.mark.parametrize("empty", ["a", "b"])
def test_behind_and_before_an_empty_layer_all_is_useless(empty):
    ones = one_by_one(np.ones((2, 2), int))
    layers = {"a": ones, "b": ones} | {empty: np.zeros_like(ones)}
    assert counts(chain(), **layers) == {"a": 0, "b": 0}


def block(*, shortcut):
    """A residual block of two channels: identity or 1x1 shortcut beside `a` and `b`."""
    net = Builder((2, *SIZE))
    start = net.relu(net.convolution("first", 0, 2, kernel=(1, 1)))
    node = net.relu(net.batch_norm("bn", net.convolution("a", start, 2, kernel=(1, 1))))
    node = net.batch_norm("bn_b", net.convolution("b", node, 2, kernel=(1, 1)))
    beside = net.convolution("s", start, 2, kernel=(1, 1)) if shortcut else start
    node = net.convolution("c", net.relu(net.add(node, beside)), 2, kernel=(1, 1))
    net.linear("fc", net.flatten(net.adaptive_pool(node, (1, 1))), 3)
    return net.graph


def test_an_identity_feeds_what_an_empty_branch_does_not():
    a, none, b = (
        one_by_one([[1, 1], [1, 1]]),
        one_by_one([[0, 0], [0, 0]]),
        one_by_one([[1, 1]] * 2),
    )
    assert counts(block(shortcut=False), a=a, b=none, c=b) == {"a": 0, "b": 0, "c": 4}


def test_a_branch_is_heard_only_where_the_sum_is():
    a, b = one_by_one([[1, 0], [0, 1]]), one_by_one([[1, 0], [0, 1]])
    c = one_by_one([[1, 0], [1, 0]])
    assert counts(block(shortcut=False), a=a, b=b, c=c) == {"a": 1, "b": 1, "c": 2}


def test_a_shortcut_that_is_pruned_feeds_only_what_it_writes():
    none, s = one_by_one([[0, 0], [0, 0]]), one_by_one([[1, 1], [0, 0]])
    ones = one_by_one([[1, 1], [1, 1]])
    found = counts(block(shortcut=True), a=ones, b=none, s=s, c=ones)
    assert found == {"a": 0, "b": 0, "s": 2, "c": 2}
    b = one_by_one([[0, 0], [1, 0]])
    found = counts(block(shortcut=True), a=ones, b=b, s=s, c=ones)
    assert found == {"a": 2, "b": 1, "s": 2, "c": 4}


def test_a_linear_layer_reads_all_pixels_of_a_channel():
    net = Builder((1, 2, 2))
    node = net.convolution("first", 0, 2, kernel=(1, 1))
    node = net.relu(net.convolution("a", node, 2, kernel=(1, 1)))
    node = net.relu(net.linear("b", net.flatten(node), 2))
    net.linear("fc", node, 3)
    b = [[1, 1, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 0, 0, 0]]
    assert counts(net.graph, a=one_by_one([[1, 0], [0, 0]]), b=b) == {"a": 1, "b": 2}
    assert counts(net.graph, a=one_by_one([[0, 0], [1, 1]]), b=b) == {"a": 2, "b": 2}


def test_an_output_layer_may_be_pruned_too():
    net = Builder((2, 1, 1))
    node = net.relu(net.linear("a", net.flatten(0), 2))
    net.linear("fc", node, 2)
    assert counts(net.graph, a=[[1, 0], [1, 1]], fc=[[0, 1], [0, 1]]) == {"a": 2, "fc": 2}


def test_what_reads_only_padding_is_useless():
    """A 3x3 kernel over one pixel has eight weights that only ever meet zeros."""
    net = Builder((1, 1, 1))
    node = net.convolution("first", 0, 1, kernel=(1, 1))
    node = net.convolution("a", node, 2, kernel=(3, 3), padding=(1, 1))
    net.linear("fc", net.flatten(node), 2)
    assert counts(net.graph, a=np.ones((2, 1, 3, 3), int)) == {"a": 2}
    corner = np.zeros((2, 1, 3, 3), int)
    corner[:, :, 0, 0] = 1
    assert counts(net.graph, a=corner) == {"a": 0}


def test_of_a_kernel_with_a_stride_only_what_it_meets_counts():
    """Two rows and columns, stride two: the windows begin at -1, so row 0 of a kernel is out."""
    net = Builder((1, 2, 2))
    node = net.convolution("first", 0, 1, kernel=(1, 1))
    node = net.convolution("a", node, 1, kernel=(3, 3), stride=(2, 2), padding=(1, 1))
    net.linear("fc", net.flatten(node), 2)
    assert counts(net.graph, a=np.ones((1, 1, 3, 3), int)) == {"a": 4}


def between(middle, filters):
    """A dense 1x1 layer of four filters, some middle, and a head that reads its channels."""
    net = Builder((1, *SIZE))
    x = middle(net, net.convolution("first", 0, 4))
    net.linear("fc", net.flatten(net.adaptive_pool(x, (1, 1))), 2)
    assert net.graph.shapes[x][0] == filters
    return net.graph


def test_a_group_reads_its_own_channels_only():
    net = between(lambda n, x: n.convolution("a", x, 6, groups=2), 6)
    bits = np.ones((6, 2, 1, 1), int)
    assert counts(net, a=bits) == {"a": 12}
    first, head = np.ones((4, 1, 1, 1), int), np.ones((2, 6), int)
    first[0] = 0  # a channel of the first group
    head[:, 3:] = 0  # nothing hears the second group
    assert counts(net, a=bits, first=first, fc=head) == {"a": 3, "first": 1, "fc": 6}


def test_a_depthwise_filter_hands_on_one_channel():
    net = between(lambda n, x: n.convolution("a", x, 4, groups=4, kernel=(3, 3)), 4)
    bits = np.ones((4, 1, 3, 3), int)
    bits[2] = 0
    found = counts(net, a=bits, first=np.ones((4, 1, 1, 1), int), fc=np.ones((2, 4), int))
    assert found == {"a": 27, "first": 3, "fc": 6}


def test_a_concat_has_the_channels_of_both():
    def fire(net, x):
        return net.node(Kind.CONCAT, net.convolution("a", x, 3), net.convolution("b", x, 2))

    net, head = between(fire, 5), np.ones((2, 5), int)
    head[:, 1:4] = 0  # of `a` the first filter is heard, of `b` the second
    ones = {"a": np.ones((3, 4, 1, 1), int), "b": np.ones((2, 4, 1, 1), int)}
    assert counts(net, **ones, fc=head) == {"a": 4, "b": 4, "fc": 4}


def test_a_gate_is_as_useful_as_what_it_gates():
    def gated(net, x):
        pooled = net.adaptive_pool(x, (1, 1))
        return net.node(Kind.MULTIPLY, x, net.convolution("gate", pooled, 4))

    net, head = between(gated, 4), np.ones((2, 4), int)
    head[:, :3] = 0
    gate, first = np.ones((4, 4, 1, 1), int), np.ones((4, 1, 1, 1), int)
    assert counts(net, gate=gate, first=first, fc=head) == {"gate": 4, "first": 4, "fc": 2}


def test_a_group_norm_needs_its_whole_group():
    net = between(lambda n, x: n.node(Kind.GROUP_NORM, x, name="norm", groups=2), 4)
    head = np.zeros((2, 4), int)
    head[0, 0] = 1
    assert counts(net, first=np.ones((4, 1, 1, 1), int), fc=head) == {"first": 2, "fc": 1}


def test_a_transposed_convolution_links_channels_to_filters():
    net = between(lambda n, x: n.node(Kind.TRANSPOSED_CONVOLUTION, x, name="a", channels=3), 3)
    bits, head = np.zeros((4, 3, 1, 1), int), np.ones((2, 3), int)
    bits[0, 2] = bits[1, 0] = 1
    head[:, 0] = 0
    found = counts(net, a=bits, first=np.ones((4, 1, 1, 1), int), fc=head)
    assert found == {"a": 1, "first": 1, "fc": 2}


def test_a_weight_is_useful_if_it_is_in_one_of_its_layer_s_runs():
    net = between(lambda n, x: n.convolution("a", n.convolution("a", x, 4), 4), 4)
    bits, head = np.zeros((4, 4, 1, 1), int), np.zeros((2, 4), int)
    bits[1, 0] = bits[2, 1] = bits[3, 3] = 1  # 0 to 1, then 1 to 2
    head[:, 2] = 1
    assert counts(net, a=bits, fc=head) == {"a": 2, "fc": 2}


def test_a_description_of_another_network_is_refused():
    with pytest.raises(ModelError, match="'a' is not that of the mask's layer"):
        counts(chain(), a=np.ones((2, 3, 1, 1), int), b=np.ones((2, 2, 1, 1), int))
    net = Builder((2, *SIZE))
    net.add(net.convolution("a", 0, 1, kernel=(1, 1)), 0)
    with pytest.raises(ModelError, match="different shapes"):
        counts(net.graph, a=np.ones((1, 2, 1, 1), int))


def test_a_layer_that_is_not_in_the_graph_reaches_nothing():
    ones = one_by_one(np.ones((2, 2), int))
    mask = mask_of({"a": ones, "b": ones, "elsewhere": ones})
    assert mask.reachability(chain()).counts["elsewhere.weight"] == 0
    assert not mask.reachability(chain()).useful("elsewhere.weight").any()


def network(name, width, shape):
    model = models.build(name, shape, 10, width=width).eval()
    return model, models.analyze(model, shape), trace(model, shape)


def random_masks(param_spec, density, seed=0):
    rng = np.random.default_rng(seed)
    return Mask(param_spec, {n: random_mask(s, density, rng) for n, s in param_spec.sizes.items()})


def only_useful(reach, mask):
    """The mask without its useless weights."""
    return mask.replace({layer: mask.indices(layer)[reach.useful(layer)] for layer in mask})


@torch.no_grad()
def under(model, mask, images):
    """The outputs of a network whose weights are cut by a mask, which is undone afterwards."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for layer in mask:
        model.get_parameter(layer).mul_(torch.from_numpy(mask.array(layer)))
    outputs = model(images)
    model.load_state_dict(state)
    return outputs


NETWORKS = [
    ("resnet18", 6, (3, 32, 32)),
    ("resnet18", 6, (1, 8, 8)),
    ("vgg11", 4, (3, 32, 32)),
    ("small", 8, (1, 8, 8)),
]


@pytest.mark.parametrize("density", [0.3, 0.05, 0.01])
@pytest.mark.parametrize(("name", "width", "shape"), NETWORKS)
def test_effective_is_at_most_kept_and_dropping_the_rest_changes_no_count(
    name, width, shape, density
):
    _, param_spec, graph = network(name, width, shape)
    mask = random_masks(param_spec, density)
    reach = mask.reachability(graph)
    assert all(reach.counts[layer] <= kept for layer, kept in mask.counts.items())
    assert reach.density <= mask.density
    assert {n: int(reach.useful(n).sum()) for n in mask} == reach.counts
    left = only_useful(reach, mask)
    assert reach.counts == dict(left.counts) == left.reachability(graph).counts
    assert left.density == pytest.approx(reach.density)


@pytest.mark.parametrize(("name", "width", "shape"), [n for n in NETWORKS if n[2][1] == 32])
def test_of_a_full_mask_all_is_effective_where_images_are_large_enough(name, width, shape):
    _, param_spec, graph = network(name, width, shape)
    assert Mask.full(param_spec).reachability(graph).density == 1


@pytest.mark.parametrize("density", [0.3, 0.05, 0.01])
@pytest.mark.parametrize(("name", "width", "shape"), NETWORKS)
def test_dropping_useless_weights_changes_no_output_where_unfed_channels_are_zero(
    name, width, shape, density
):
    """Before any training batch norm shifts nothing, so that what nothing feeds is zero."""
    model, param_spec, graph = network(name, width, shape)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    mask = random_masks(param_spec, density)
    reach = mask.reachability(graph)
    images = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    expected = under(model, mask, images)
    found = under(model, only_useful(reach, mask), images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@settings(deadline=None)
@given(st.data())
def test_what_useless_weights_add_is_the_same_for_every_image(data):
    """With any shifts, in networks without a kink: a constant that knows nothing of the image."""
    model, shape = data.draw(smooth_networks())
    masks = data.draw(masks_of(model))
    prunable = {n: tuple(p.shape) for n, p in model.named_parameters() if p.ndim > 1}
    param_spec = ParamSpec(prunable, {}, (tuple(prunable),), (), "", "")
    mask = Mask(param_spec, {n: masks.get(n) for n in prunable})
    model = model.double().eval()
    reach = mask.reachability(trace(model, shape))
    images = torch.randn(4, *shape, dtype=torch.float64)
    added = under(model, mask, images) - under(model, only_useful(reach, mask), images)
    torch.testing.assert_close(added, added[:1].expand_as(added), rtol=0, atol=1e-8)


def positive_gradients(model, mask, shape):
    """Each kept weight's gradient where every weight and pixel is positive and nothing shifts."""
    model = model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        for layer in mask:
            model.get_parameter(layer).mul_(torch.from_numpy(mask.array(layer)))
    model(torch.ones(1, *shape, dtype=torch.float64)).sum().backward()
    return {
        layer: model.get_parameter(layer).grad.numpy().reshape(-1)[mask.indices(layer)]
        for layer in mask
    }


@pytest.mark.parametrize("density", [1.0, 0.3, 0.05, 0.02])
@pytest.mark.parametrize(("name", "width", "shape"), NETWORKS)
def test_a_weight_through_which_anything_flows_is_useful(name, width, shape, density):
    model, param_spec, graph = network(name, width, shape)
    mask = random_masks(param_spec, density)
    reach = mask.reachability(graph)
    slopes = positive_gradients(model, mask, shape)
    assert all(reach.useful(layer)[slope != 0].all() for layer, slope in slopes.items())


@pytest.mark.parametrize("density", [0.05, 0.02])
def test_in_large_images_something_flows_through_every_useful_weight(density):
    """In small ones some is lost between single pixels, which are not followed."""
    shape = (1, 64, 64)
    model, param_spec, graph = network("resnet18", 6, shape)
    mask = random_masks(param_spec, density)
    reach = mask.reachability(graph)
    slopes = positive_gradients(model, mask, shape)
    assert {layer: int((slope != 0).sum()) for layer, slope in slopes.items()} == reach.counts
    assert reach.density < mask.density


def test_a_whole_resnet18_is_followed_in_no_time():
    _, param_spec, graph = network("resnet18", 64, (3, 32, 32))
    mask = random_masks(param_spec, 0.01)
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        assert mask.reachability(graph).density > 0.009
        taken.append(time.perf_counter() - started)
    assert min(taken) < 0.05  # 2 ms on an idle core
