"""What sparse kernels are given: tiles, taps, the steps of a network, where values lie."""

import numpy as np
import pytest
from torch import nn

from fedtiny.devices.gpu.sparse.choice import EMULATED_SHARED, kept_share
from fedtiny.devices.gpu.sparse.lowering import (
    Collect,
    Convolution,
    ConvolutionGradient,
    UnsupportedNetworkError,
    gradients,
    lower,
)
from fedtiny.devices.gpu.sparse.memory import Layout
from fedtiny.devices.gpu.sparse.plan import Plan
from fedtiny.devices.gpu.sparse.taps import backward_reach, forward_reach, make_taps
from fedtiny.devices.gpu.sparse.tiles import Reach, choose
from fedtiny.graph.ir import Graph, Kind, Node
from fedtiny.graph.trace import trace
from fedtiny.models import analyze, build
from fedtiny.sparse.mask import Mask

from ..tiny import TinyNet, random_mask, seeded
from .rig import SHAPE, noise

CIFAR = (3, 32, 32)


def reach(channels=64, side=32, step=1, images=32):
    grid = -(-side // step)
    return Reach(channels, (side, side), (grid, grid), step, (-1, -1), (1, 1), images)


# Tiles


@pytest.mark.parametrize(("channels", "side"), [(64, 32), (128, 16), (256, 8), (512, 4)])
def test_the_layers_of_resnet18_have_tiles_with_hardly_a_bank_conflict(channels, side):
    tile = choose(reach(channels, side), EMULATED_SHARED)
    assert tile.shared <= EMULATED_SHARED
    assert tile.conflicts <= (2 if side == 4 else 1)
    assert tile.columns * tile.rows // tile.depth * tile.images <= 32
    assert tile.tiles_x * tile.columns >= side
    assert tile.tiles_y * tile.rows >= side


def test_a_tile_fits_or_there_is_none():
    wanted = reach(channels=512, side=32)
    few = choose(wanted, 227 * 1024)
    assert few is None or few.shared <= 227 * 1024
    assert choose(reach(channels=16), 8 * 1024).shared <= 8 * 1024
    assert choose(reach(channels=16), 1024) is None


def test_a_network_that_does_not_fit_is_refused_with_the_layer():
    model = build("small", SHAPE, 3, width=64)
    graph, param_spec = trace(model, SHAPE), analyze(model, SHAPE)
    with pytest.raises(
        UnsupportedNetworkError, match=r"'\w+' does not fit into the 4 kB of shared"
    ):
        Plan(graph, param_spec, 4, "fp32", 4 * 1024)


# Taps


def test_the_taps_of_a_3x3_convolution_by_hand():
    """Two inputs, two filters, six by six pixels: four kept weights."""
    node = Node(Kind.CONVOLUTION, (0,), "c", channels=2, kernel=(3, 3), padding=(1, 1))
    sizes = ((6, 6), (6, 6), 4)
    there = choose(forward_reach([node], 2, *sizes), 1 << 16)
    back = choose(backward_reach([node], 2, *sizes), 1 << 16)
    # filter 0: input 0 corner (0, 0), input 1 middle (1, 1); filter 1: input 0 (1, 2), (2, 0)
    kept = np.array([0, 9 + 4, 18 + 5, 18 + 6], dtype=np.int32)
    taps = make_taps([node], 2, [kept], (there, back), (4, 4), cut=False)
    at = [(0, -1, -1), (1, 0, 0), (0, 0, 1), (0, 1, -1)]
    words = [c * there.plane + y * there.pitch + x for c, y, x in at]
    assert (taps.offsets // 4).tolist() == words
    by_filter = sorted(taps.work.tolist(), key=lambda item: item[2])
    assert by_filter == [[0, 2, 0, 0], [2, 4, 1, 0]]
    # Backward by input: input 0 has taps 0, 2, 3; input 1 has tap 1. A weight at offset (y, x)
    # brings the gradient of the output at (-y, -x).
    assert taps.place.tolist() == [0, 2, 3, 1]
    turned = [(0, 1, 1), (1, 0, -1), (1, -1, 1), (0, 0, 0)]
    words = [f * back.plane + y * back.pitch + x for f, y, x in turned]
    assert (taps.back_offsets // 4).tolist() == words
    by_input = sorted(taps.back_work.tolist(), key=lambda item: item[2])
    assert by_input == [[0, 3, 0, 0], [3, 4, 1, 0]]


def test_a_stride_leaves_classes_of_positions_that_read_different_weights():
    node = Node(
        Kind.CONVOLUTION, (0,), "c", channels=1, kernel=(3, 3), stride=(2, 2), padding=(1, 1)
    )
    sizes = ((6, 6), (3, 3), 2)
    tiles = (
        choose(forward_reach([node], 1, *sizes), 1 << 16),
        choose(backward_reach([node], 1, *sizes), 1 << 16),
    )
    taps = make_taps([node], 1, [np.arange(9, dtype=np.int32)], tiles, (1, 1), cut=False)
    by_class = {item[3]: item[1] - item[0] for item in taps.back_work.tolist()}
    # An even row is read by the weight in the middle only, an odd one by both at the ends.
    assert by_class == {0: 1, 1: 2, 2: 2, 3: 4}


def test_work_is_dealt_so_that_no_warp_has_much_more():
    node = Node(Kind.CONVOLUTION, (0,), "c", channels=64, kernel=(1, 1))
    draw = np.random.default_rng(0)
    kept = np.flatnonzero(draw.random(64 * 64) < np.repeat(draw.random(64), 64)).astype(np.int32)
    sizes = ((8, 8), (8, 8), 8)
    tiles = (
        choose(forward_reach([node], 64, *sizes), EMULATED_SHARED),
        choose(backward_reach([node], 64, *sizes), EMULATED_SHARED),
    )
    taps = make_taps([node], 64, [kept], tiles, (8, 8), cut=False)
    lengths = taps.work[:, 1] - taps.work[:, 0]
    assert lengths.sum() == len(kept)
    shares = [lengths[k::8].sum() for k in range(8)]
    assert max(shares) - min(shares) <= 0.1 * sum(shares)


# The steps of a network


@pytest.fixture(scope="module")
def resnet() -> Graph:
    return trace(build("resnet18", CIFAR, 10, width=8), CIFAR)


def test_resnet18_is_seventeen_convolutions_and_eight_sums(resnet):
    forward = lower(resnet)
    convolutions = [step for step in forward.steps if isinstance(step, Convolution)]
    assert [len(step.nodes) for step in convolutions].count(2) == 3, "shortcuts are merged"
    assert len(convolutions) == 17
    sums = [step for step in forward.steps if not isinstance(step, Convolution)]
    assert [step.kind for step in sums] == [Kind.ADD] * 8
    assert all(step.out.relu and step.out.relu_stored for step in sums)
    assert all(out.norm is not None for step in convolutions for out in step.outs)
    assert forward.mean
    assert [node.kind for node in forward.head] == [Kind.FLATTEN, Kind.LINEAR]


def test_what_goes_into_a_sum_shares_its_gradient(resnet):
    forward = lower(resnet)
    steps = gradients(forward)
    for step in forward.steps:
        if not isinstance(step, Convolution):
            last = [source for source in step.sources if source.readers == 1 and not source.relu]
            assert last
            assert all(source.gradient is step.out.gradient for source in last)
    kinds = [type(step) for step in steps]
    assert kinds.count(ConvolutionGradient) == 17
    assert kinds.count(Collect) == 1, "only the head's gradient is no convolution's"
    image = [s for s in steps if isinstance(s, ConvolutionGradient) and s.out is None]
    assert len(image) == 1, "nobody wants the gradient of the image"


def test_convolutions_are_not_merged_where_that_is_not_wanted(resnet):
    steps = lower(resnet, lambda nodes, source: False).steps
    assert sum(isinstance(step, Convolution) for step in steps) == 20


def refused(*layers):
    with pytest.raises(UnsupportedNetworkError) as raised:
        lower(trace(nn.Sequential(*layers), SHAPE))
    return str(raised.value)


def test_what_cannot_be_computed_is_named():
    head = nn.Flatten(), nn.Linear(64, 3)
    conv = nn.Conv2d(1, 1, 3, padding=1)
    assert refused(conv, nn.Dropout(0.1), conv2(), *head) == (
        "it has a dropout between its convolutions"
    )
    assert "different strides" in refused(
        nn.Conv2d(1, 1, 3, stride=(1, 2), padding=1), nn.Flatten(), nn.Linear(32, 3)
    )
    assert refused(*head) == "it has no convolution"
    assert "no chain of flatten and linear" in refused(
        conv, nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
    )


def conv2():
    return nn.Conv2d(1, 1, 1)


def test_pairs_of_images_need_an_even_batch():
    model = seeded(TinyNet)
    with pytest.raises(UnsupportedNetworkError, match=r"--train\.batch-size 5 is odd"):
        Plan(trace(model, SHAPE), analyze(model, SHAPE), 5, "bf16", EMULATED_SHARED)


# Where values lie


@pytest.fixture(scope="module")
def tiny_plan() -> Plan:
    model = seeded(TinyNet)
    return Plan(trace(model, SHAPE), analyze(model, SHAPE), 4, "fp32", EMULATED_SHARED)


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_a_theta_can_be_laid_out_and_read_back(tiny_plan, density):
    spec = tiny_plan.param_spec
    mask = random_mask(spec, density)
    layout = Layout(spec, tiny_plan.groups, (0,) * len(tiny_plan.groups)).roomy(mask)
    theta, places = noise(mask), layout.places(mask)
    assert len({*places.tolist()}) == len(places) == len(theta.vector)
    values = np.zeros(layout.values, dtype=np.float32)
    values[places] = theta.vector
    assert np.array_equal(values[places], theta.vector)
    hidden = values[layout.starts["hidden.weight"] :][:64].reshape(8, 8)
    assert np.array_equal(hidden, theta.tensor("hidden.weight")), "linear layers lie in full"


def test_what_moves_is_what_is_kept_and_no_statistic(tiny_plan):
    spec = tiny_plan.param_spec
    mask = random_mask(spec, 0.3)
    layout = Layout(spec, tiny_plan.groups, (0,) * len(tiny_plan.groups)).roomy(mask)
    moves = layout.moves(mask)
    convolved = {name for group in layout.groups for name in group}
    for name, size in spec.dense_sizes.items():
        part = moves[layout.starts[name] :][:size]
        assert part.any() == part.all() == (name not in spec.statistics and name not in convolved)
    hidden = moves[layout.starts["hidden.weight"] :][:64]
    assert np.array_equal(np.flatnonzero(hidden), mask.indices("hidden.weight"))


def test_there_is_room_to_grow_and_more_is_noticed(tiny_plan):
    spec = tiny_plan.param_spec
    layout = Layout(spec, tiny_plan.groups, (0,) * len(tiny_plan.groups))
    roomy = layout.roomy(random_mask(spec, 0.3))
    assert roomy.fits(random_mask(spec, 0.3, seed=1))
    assert not roomy.fits(Mask.full(spec))
    assert roomy.roomy(Mask.full(spec)).fits(Mask.full(spec))


# Which masks are worth it


def test_the_share_of_multiply_adds_that_a_mask_keeps():
    graph, spec = trace(seeded(TinyNet), SHAPE), analyze(seeded(TinyNet), SHAPE)
    assert kept_share(graph, Mask.full(spec)) == 1.0
    dense = 36 * 64 + 288 * 16 + 576 * 16 + 64 + 24  # the stem and the head are never pruned
    kept = {"conv1.weight": np.arange(10), "conv2.weight": np.arange(20)}
    mask = Mask(spec, {**kept, "hidden.weight": np.arange(5)})
    expected = (36 * 64 + 10 * 16 + 20 * 16 + 5 + 24) / dense
    assert kept_share(graph, mask) == pytest.approx(expected)
