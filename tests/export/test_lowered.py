"""The lowered network gives the logits of the torch network, with less in it."""

import numpy as np
import pytest

from fedtiny.export.network import lower, quantise
from fedtiny.graph.arithmetic import all_steps
from fedtiny.graph.arrays import Lowered, Weights
from fedtiny.graph.ir import Kind
from fedtiny.graph.passes import remove_dead as without_dead

from ..graph.building import Builder
from .nets import DENSITIES, SHIPPED, assert_close, shipped, sparse
from .odd import ODD, Idle


def logits(net, images):
    return all_steps(net, images.swapaxes(0, 1))[-1][:, :, 0, 0].T


def channels(net):
    return sum(node.channels for node in net.graph.nodes)


def kept(net):
    return sum(len(weights.values) for weights in net.weights.values())


def kinds(net):
    return [node.kind for node in net.graph.nodes]


@pytest.mark.parametrize("remove_dead", [False, True])
@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_model_keeps_its_logits(name, density, fold, remove_dead):
    made = shipped(name, density)
    net = lower(made.graph, made.theta, fold=fold, remove_dead=remove_dead)
    images = made.images()
    assert_close(logits(net, images), made.logits(images))
    assert Kind.DROPOUT not in kinds(net)
    assert (Kind.BATCH_NORM in kinds(net)) is not fold
    assert bool(net.norms) is not fold


@pytest.mark.slow
@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("density", [1.0, 0.3, 0.1, 0.03, 0.0])
@pytest.mark.parametrize("network", ODD, ids=lambda network: network.__name__)
def test_networks_of_one_s_own_keep_theirs(network, density, fold):
    for seed in range(5):
        made = sparse(network(), (2, 9, 8), density, seed)
        net = lower(made.graph, made.theta, fold=fold, remove_dead=True)
        images = made.images(seed=seed)
        assert_close(logits(net, images), made.logits(images))


def test_a_head_that_the_result_does_not_need_goes():
    made = sparse(Idle(), (2, 9, 8), 0.5)
    net = lower(made.graph, made.theta, fold=False, remove_dead=False)
    assert set(net.weights) == {"first", "out"}
    assert len(net.graph.nodes) == len(made.graph.nodes) - 2


def test_a_norm_that_cannot_be_folded_stays():
    made = sparse(ODD[1](), (2, 9, 8), 0.5)
    net = lower(made.graph, made.theta, fold=True, remove_dead=True)
    assert set(net.norms) == {"norm0", "norm2"}, "after a layer read twice, and after a sum"


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_dead_is_gone(name):
    made = shipped(name, 0.005)
    whole, less = (
        lower(made.graph, made.theta, fold=True, remove_dead=dead) for dead in (False, True)
    )
    assert channels(less) < channels(whole)
    useful = made.theta.mask.reachability(made.graph).counts
    assert sum(useful.values()) < made.theta.mask.count, "the test needs something useless"
    assert kept(less) < kept(whole)
    for node in less.graph.nodes:
        if node.kind in (Kind.CONVOLUTION, Kind.LINEAR):
            weights = less.weights[node.name]
            assert weights.shape[0] == node.channels
            assert (weights.bias is not None) is node.bias
            assert np.all(np.diff(weights.positions) > 0)
            assert len(weights.values) == len(weights.positions)


def test_a_network_that_nothing_gets_through_is_its_biases():
    made = shipped("small", 0.0)
    net = lower(made.graph, made.theta, fold=True, remove_dead=True)
    assert [net.weights[n.name].shape[0] for n in net.graph.nodes if n.name] == [1, 1, 1, 10]
    assert kept(net) == 0
    images = made.images()
    assert_close(logits(net, images), made.logits(images))


# By hand: a filter with a bias of 3 and no weight, read by a second convolution


def two_convolutions(kernel, padding):
    """Of two filters the second reads nothing; both are read, with weights 1 and 5."""
    net = Builder((1, 3, 3))
    first = net.relu(net.convolution("first", 0, 2, kernel=(1, 1), bias=True))
    second = net.convolution("second", first, 1, kernel=kernel, padding=padding)
    net.flatten(net.adaptive_pool(second, (1, 1)))
    weights = {
        "first": Weights((2, 1, 1, 1), np.array([0]), np.float32([2]), np.float32([0, 3])),
        "second": Weights(
            (1, 2, *kernel),
            np.array([0, kernel[0] * kernel[1]]),
            np.float32([1, 5]),
            None,
        ),
    }
    return Lowered(net.graph, weights, {})


def test_a_constant_joins_the_bias():
    net = without_dead(two_convolutions((1, 1), (0, 0)))
    first, second = net.weights["first"], net.weights["second"]
    assert (first.shape, second.shape) == ((1, 1, 1, 1), (1, 1, 1, 1))
    assert (first.values, second.values, second.bias) == ([2], [1], [15])
    assert first.indices is None
    assert net.graph.nodes[3].bias


def test_a_constant_under_padding_stays_a_channel():
    before = two_convolutions((3, 3), (1, 1))
    net = without_dead(before)
    assert net.weights["first"].shape == (2, 1, 1, 1)
    assert net.weights["second"].bias is None
    images = np.random.default_rng(0).standard_normal((4, 1, 3, 3))
    np.testing.assert_allclose(logits(net, images), logits(before, images), rtol=1e-12)


def test_a_zero_under_padding_goes():
    before = two_convolutions((3, 3), (1, 1))
    before.weights["first"].bias[1] = -3  # relu makes it 0
    net = without_dead(before)
    assert net.weights["first"].shape == (1, 1, 1, 1)
    assert net.weights["second"].bias is None


def test_taps_that_only_read_padding_go():
    net = Builder((1, 1, 1))
    net.flatten(net.convolution("only", 0, 2, kernel=(3, 3), padding=(1, 1)))
    weights = Weights((2, 1, 3, 3), None, np.arange(18, dtype=np.float32), None)
    less = without_dead(Lowered(net.graph, {"only": weights}, {}))
    np.testing.assert_array_equal(less.weights["only"].indices, [4, 13])
    np.testing.assert_array_equal(less.weights["only"].values, [4, 13])


def test_both_terms_of_a_sum_keep_the_same_channels():
    net = Builder((3, 4, 4))
    first = net.convolution("first", 0, 3, kernel=(1, 1))
    second = net.convolution("second", first, 3, kernel=(1, 1))
    total = net.add(first, second)
    net.flatten(net.adaptive_pool(net.convolution("last", total, 1, kernel=(1, 1)), (1, 1)))
    full = Weights((3, 3, 1, 1), None, np.arange(1, 10, dtype=np.float32), None)
    weights = {
        "first": full,
        "second": Weights((3, 3, 1, 1), np.array([1, 5]), np.float32([1, 1]), None),
        "last": Weights((1, 3, 1, 1), np.array([0]), np.float32([1]), None),
    }
    less = without_dead(Lowered(net.graph, weights, {}))
    assert less.weights["first"].shape == (2, 3, 1, 1), "0 is read by the last, 1 by the second"
    assert less.weights["second"].shape == (2, 2, 1, 1)
    np.testing.assert_array_equal(less.weights["second"].indices, [1])
    assert less.weights["last"].shape == (1, 2, 1, 1)


# Quantisation


def test_eight_bits_are_at_most_half_a_step_away():
    rng = np.random.default_rng(0)
    indices = np.sort(rng.choice(4 * 90, 77, replace=False))
    weights = Weights((4, 10, 3, 3), indices, rng.standard_normal(77).astype(np.float32), None)
    small, scales = quantise(weights)
    assert (small.dtype, scales.shape) == (np.int8, (4,))
    again = small * scales[weights.filters]
    assert np.all(np.abs(again - weights.values) <= 0.501 * scales[weights.filters])
    largest = np.array([np.abs(weights.values[weights.filters == f]).max() for f in range(4)])
    np.testing.assert_allclose(scales * 127, largest, rtol=1e-6)
    assert np.abs(small.astype(int)).max() == 127


def test_a_filter_of_nothing_or_of_zeros_has_a_scale():
    small, scales = quantise(Weights((3, 2), np.array([0, 4]), np.float32([0, -2]), None))
    np.testing.assert_array_equal(small, [0, -127])
    np.testing.assert_allclose(scales, [1, 1, 2 / 127])
