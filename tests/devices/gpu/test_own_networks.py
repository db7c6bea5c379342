"""Networks of one's own train as on the reference, or are refused in a clear sentence."""

import numpy as np
import pytest
import torch
from torch import nn

from fedtiny.devices.node import answer
from fedtiny.errors import ModelError
from fedtiny.federation.messages import bn_statistics, evaluate, losses, train

from ..tiny import PlainNet, TinyNet, everything, lab, seeded, settings
from .rig import answers, assert_near, engine_of, order, select

OPTIMIZERS = ["adam", "sgd"]


class Cumulative(TinyNet):
    def __init__(self):
        super().__init__()
        self.bn1.momentum = None


def test_a_batch_norm_that_counts_its_batches_is_refused_clearly():
    bench = lab(model=seeded(Cumulative))
    with pytest.raises(ModelError, match=r"'bn1' counts its batches .* reference"):
        engine_of(bench)


class Spare(TinyNet):
    """A parameter that the network does not use."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_parameter_that_is_not_used_stays_as_it_is(optimizer):
    bench = lab(settings(train={"optimizer": optimizer}), model=seeded(Spare))
    theirs, ours = answers(bench, order(bench, train(1)))
    assert_near(ours, theirs)
    assert ours.theta.tensor("spare").tolist() == [1, 1, 1]


class Frozen(TinyNet):
    """A parameter and a layer that are not trained."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4, 1, 1), requires_grad=False)
        self.conv1.weight.requires_grad_(False)

    def forward(self, x):
        return super().forward(x) * self.gain[0, 0, 0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_frozen_parameter_is_not_trained(optimizer):
    bench = lab(settings(train={"optimizer": optimizer}), model=seeded(Frozen))
    request = order(bench, train(1, sum_dense_gradients=True))
    theirs, ours = answers(bench, request)
    assert_near(ours, theirs)
    for name in ("gain", "conv1.weight"):
        assert np.array_equal(ours.theta.tensor(name), request.theta.tensor(name))
    assert not ours.arrays["conv1.weight"].any()


def test_a_frozen_layer_stays_as_it_is_under_every_mask():
    bench = lab(model=seeded(Frozen))
    engine = engine_of(bench)
    for density, seed in ((0.5, 0), (0.2, 1), (0.9, 2), (0.5, 3)):
        theta = bench.theta(density, seed)
        found = answer(engine, order(bench, train(1), theta=theta), bench.shards[0], 0).theta
        assert np.array_equal(found.kept("conv1.weight"), theta.kept("conv1.weight"))
        assert (found.kept("conv2.weight") != theta.kept("conv2.weight")).any()


class Scaled(TinyNet):
    """A float buffer that is no batch-norm statistic."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        return super().forward(x * self.scale)


def test_a_buffer_of_one_s_own_is_loaded_and_kept():
    bench = lab(model=seeded(Scaled))
    theta = bench.theta().with_dense({"scale": np.float32(0.25)})
    theirs, ours = answers(bench, order(bench, train(1), evaluate(), theta=theta))
    assert_near(ours, theirs)
    assert ours.theta.tensor("scale") == 0.25


@pytest.mark.parametrize("moment", ["var", "square"])
def test_a_buffer_of_one_s_own_is_no_statistic(moment):
    bench = lab(model=seeded(Scaled))
    request = select(bench, bn_statistics(128, moment=moment))
    theirs, ours = answers(bench, request)
    assert_near(ours, theirs, atol=1e-6)


def test_losses_beside_a_buffer_of_one_s_own_are_the_reference_s():
    bench = lab(model=seeded(Scaled))
    measured = answer(bench.engine, select(bench, bn_statistics(128)), bench.shards[1], 0).arrays
    theirs, ours = answers(bench, select(bench, losses(), arrays=measured))
    assert_near(ours, theirs)


def test_a_network_without_batch_norm_has_no_statistics():
    bench = lab(model=seeded(PlainNet))
    theirs, ours = answers(bench, select(bench, bn_statistics(128)))
    assert ours.arrays == theirs.arrays == {}


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d])
def test_no_kind_of_dropout_depends_on_what_came_before(kind):
    network = seeded(TinyNet)
    network.dropout = kind(0.5)
    bench = lab(model=network)
    request, engine = order(bench, train(2)), engine_of(bench)
    first, again = (answer(engine, request, bench.shards[2], 0) for _ in range(2))
    assert everything(first) == everything(again)
