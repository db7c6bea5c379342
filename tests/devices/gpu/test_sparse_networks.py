"""Sparse kernels, emulated thread by thread, against the dense engine in fp32."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fedtiny.devices.gpu.sparse import emulation
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from ..tiny import seeded
from .sparse_rig import CLASSES, Both

pytestmark = pytest.mark.skipif(bool(emulation.unavailable()), reason="needs a C++ compiler")


class Residual(nn.Module):
    """Identity and projection shortcuts, an overlapping max-pool, batch norm on a sum, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn0 = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.short = nn.Conv2d(4, 6, 1, stride=2, bias=False)
        self.bn3 = nn.BatchNorm2d(6)
        self.before = nn.BatchNorm2d(6)
        self.conv3 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.hidden = nn.Linear(6, 8)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.bn0(self.stem(x))))
        x = torch.relu(self.bn1(self.conv1(x)) + x)
        x = self.bn2(self.conv2(x)) + self.bn3(self.short(x))
        x = x + self.conv3(torch.relu(self.before(x)))
        return self.head(self.dropout(torch.relu(self.hidden(x.mean((2, 3))))))


class Plain(nn.Module):
    """No batch norm: biases, kernels of 5, 3x1 and 1, stride 3, a mean-pool, shared inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(1, 3, 5, padding=2)
        self.tall = nn.Conv2d(3, 4, (3, 1), padding=(1, 0))
        self.point = nn.Conv2d(3, 4, 1, bias=False)
        self.pool = nn.AvgPool2d(3, 2, 1, count_include_pad=False)
        self.far = nn.Conv2d(4, 5, 3, stride=3, padding=2)
        self.head = nn.Linear(5 * 3 * 8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.wide(x))
        x = self.pool(torch.relu(self.tall(x)) + self.point(x))
        return self.head(torch.relu(self.far(x)).flatten(1))


class Chain(nn.Sequential):
    """Convolutions without padding, batch norm without ReLU, a bias before batch norm."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 5, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(4, 4, 3, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((2, 3)),
            nn.Flatten(),
            nn.Linear(24, 6, bias=False),
            nn.ReLU(),
            nn.Linear(6, CLASSES),
        )


class Branches(nn.Module):
    """Sums of sums: RepVGG's three branches with batch norm, then biases added three at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn0 = nn.BatchNorm2d(4)
        self.wide = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.point = nn.Conv2d(4, 4, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4)
        self.bn3 = nn.BatchNorm2d(4)
        self.ways = nn.ModuleList(nn.Conv2d(4, 5, k, padding=k // 2) for k in (1, 3, 5))
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn0(self.stem(x)))
        x = torch.relu(self.bn1(self.wide(x)) + self.bn2(self.point(x)) + self.bn3(x))
        first, second, third = (way(x) for way in self.ways)
        return self.head((first + (second + third)).mean((2, 3)))


NETWORKS = {
    "residual": (Residual, (2, 28, 28), 3),
    "branches": (Branches, (1, 8, 8), 4),
    "plain, 40 columns": (Plain, (1, 14, 42), 5),
    "chain": (Chain, (1, 15, 15), 4),
}


@cache
def both(name: str, optimizer: str = "sgd", precision: str = "fp32") -> Both:
    network, shape, batch = NETWORKS[name]
    return Both(seeded(network), shape, batch, precision, optimizer)


@pytest.mark.parametrize("name", NETWORKS)
def test_unequal_devices_train_as_on_the_dense_engine(name):
    bench = both(name)
    bench.assert_same(bench.mask(0.3), 3, 1, 2)


@pytest.mark.parametrize("name", NETWORKS)
def test_frozen_batch_norm_is_that_of_the_dense_engine(name):
    network, shape, batch = NETWORKS[name]
    bench = Both(seeded(network), shape, batch, freeze_bn=0.0)
    draw, spec = np.random.default_rng(2), bench.param_spec
    measured = {name: draw.uniform(0.5, 2, spec.dense[name]) for name in spec.statistics}
    bench.theta = lambda mask: Both.theta(bench, mask).with_dense(measured)
    mask = bench.mask(0.3)
    bench.assert_same(mask, 3, 1, 2)
    (found,) = bench.sparse(bench.theta(mask), bench.trainings(2))
    for name, part in bench.theta(mask).places.items():
        stays = np.array_equal(found.vector[part], bench.theta(mask).vector[part])
        assert stays if name in measured else (not stays or not len(found.vector[part])), name


def test_adam_takes_the_same_steps():
    bench = both("chain", "adam")
    bench.assert_same(bench.mask(0.3), 3, 1, near=1e-2)


@pytest.mark.parametrize("name", NETWORKS)
def test_any_mask_serves_from_empty_layers_to_full_ones(name):
    bench = both(name)
    layers = [*bench.param_spec.sizes]
    for number, layer in enumerate(layers):
        bench.assert_same(bench.mask({layer: 0.0, layers[number - 1]: 1.0}, seed=number), 1, 1)
    bench.assert_same(Mask.full(bench.param_spec), 1, 1)
    bench.assert_same(bench.mask(0.0), 1)


def test_a_mask_that_fits_moves_nothing_and_one_that_does_not_makes_room():
    bench = both("chain")
    network = bench.trainer.network
    bench.assert_same(bench.mask(0.3), 1)
    rooms = network.layout.rooms
    before = network.values.data_ptr()
    bench.assert_same(bench.mask(0.05, seed=1), 1)
    assert network.values.data_ptr() == before
    full = Mask.full(bench.param_spec)
    bench.assert_same(full, 1)
    assert network.layout.fits(full)
    assert all(new >= old for new, old in zip(network.layout.rooms, rooms, strict=True))


def test_masks_that_trade_weights_between_layers_move_buffers_once():
    bench = both("branches")
    network, (one, two, *_) = bench.trainer.network, bench.param_spec.sizes
    seen = []
    for dense, empty in ((one, two), (two, one)) * 3:
        bench.sparse(bench.theta(bench.mask({dense: 1.0, empty: 0.0})), bench.trainings(1))
        seen.append(network.values.data_ptr())
    assert len({*seen[1:]}) == 1


class TwoStems(nn.Module):
    """Two dense convolutions of the image that are one step."""

    prunable_layers = ("deep",)

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.point = nn.Conv2d(3, 16, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.deep = nn.Conv2d(16, 4, 3, padding=1)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.wide(x)) + self.bn2(self.point(x)))
        return self.head(self.deep(x).mean((2, 3)))


def test_tensor_cores_take_one_convolution_only():
    bench = Both(seeded(TwoStems), (3, 8, 32), 4, "bf16")
    (step, *_) = bench.trainer.network.plan.convolutions
    assert [node.name for node in step.nodes] == ["wide", "point"]
    bench.assert_same(bench.mask(0.5), 1, near=0.2)
    assert not bench.trainer.network.works[step].fits_tensor_cores


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_weight_that_is_no_number_shows_in_the_loss(precision):
    bench = both("branches", precision=precision)
    theta = bench.theta(bench.mask(0.5))
    damaged = theta.vector.copy()
    damaged[0] = np.nan
    (found,) = bench.sparse(Theta(theta.mask, damaged), bench.trainings(1))
    assert np.isnan(found.loss)


def test_more_devices_than_there_is_room_for_go_in_turns():
    bench = both("plain, 40 columns")
    bench.assert_same(bench.mask(0.3), 1, 2, 1, 2, 1)


def test_who_trains_beside_a_device_changes_no_bit():
    bench = both("residual")
    theta, trainings = bench.theta(bench.mask(0.3)), bench.trainings(2, 3, 1)
    together = bench.sparse(theta, trainings)
    for training, found in zip(trainings, together, strict=True):
        (alone,) = bench.sparse(theta, [training])
        assert alone.vector.tobytes() == found.vector.tobytes()
        assert alone.loss == found.loss


class Stem(nn.Sequential):
    """A first convolution that the tensor cores take, since it is never pruned."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Conv2d(16, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, CLASSES),
        )


def test_bf16_is_near_and_so_is_a_first_layer_on_the_tensor_cores():
    bench, exact = (Both(seeded(Stem), (3, 32, 32), 4, word) for word in ("bf16", "fp32"))
    assert_bf16_is_near(bench, exact)
    bodies = [launch.body for launch in (*bench.trainer.network.there, *bench.trainer.network.back)]
    assert sum(body.startswith("dense_") for body in bodies) == 2


def test_bf16_is_near_in_tiles_that_are_not_exact():
    assert_bf16_is_near(Both(seeded(Chain), (1, 15, 15), 4, "bf16"), both("chain"))


def assert_bf16_is_near(bench, exact):
    theta, trainings = exact.theta(exact.mask(0.5)), exact.trainings(2, 1)
    for ours, theirs in zip(
        bench.sparse(theta, trainings), exact.sparse(theta, trainings), strict=True
    ):
        moved = np.linalg.norm(theirs.vector - theta.vector)
        assert 0 < np.linalg.norm(ours.vector - theirs.vector) < 0.1 * moved
        assert ours.loss == pytest.approx(theirs.loss, rel=0.05)


# Networks that nobody thought of


class Drawn(nn.Module):
    """Any chain of steps that fits the image."""

    def __init__(self, steps: list[tuple], head: str, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.steps, self.layers, self.head = [], nn.ModuleList(), head
        x = torch.zeros(2, *shape)
        for kind, *options in steps:
            layers = MAKERS[kind](x.shape[1], *options)
            try:
                y = RULES[kind](layers, x)
            except RuntimeError:  # it does not fit
                continue
            if min(y.shape[2:]) < 2:
                continue
            self.steps.append((kind, len(self.layers), len(layers)))
            self.layers.extend(layers)
            x = y.detach()
        size = x.shape[1] if head == "mean" else x[0].numel()
        self.hidden, self.last = nn.Linear(size, 5), nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for kind, first, count in self.steps:
            x = RULES[kind]([self.layers[first + k] for k in range(count)], x)
        x = x.mean((2, 3)) if self.head == "mean" else x.flatten(1)
        return self.last(torch.relu(self.hidden(x)))


def convolution(channels, kernel, stride, padding, norm, relu):
    layers = [nn.Conv2d(channels, 4, kernel, stride, padding, bias=not norm or relu)]
    layers += [nn.BatchNorm2d(4)] if norm else []
    return [*layers, nn.ReLU()] if relu else layers


def identity(channels, relu):
    layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
    return [*layers, nn.ReLU() if relu else nn.Identity()]


def projection(channels, stride):
    one = nn.Conv2d(channels, 5, 3, stride, 1, bias=False), nn.BatchNorm2d(5)
    two = nn.Conv2d(channels, 5, 1, stride, bias=False), nn.BatchNorm2d(5)
    return [*one, *two]


MAKERS = {
    "convolution": convolution,
    "identity": identity,
    "projection": projection,
    "max": lambda channels, kernel, stride: [nn.MaxPool2d(kernel, stride, kernel // 2)],
    "mean": lambda channels, kernel, stride: [nn.AvgPool2d(kernel, stride, kernel // 2)],
    "before": lambda channels: [nn.BatchNorm2d(channels), nn.ReLU()],
}


def chained(layers, x):
    for layer in layers:
        x = layer(x)
    return x


RULES = {
    **dict.fromkeys(("convolution", "max", "mean", "before"), chained),
    "identity": lambda layers, x: layers[2](layers[1](layers[0](x)) + x),
    "projection": lambda layers, x: torch.relu(layers[1](layers[0](x)) + layers[3](layers[2](x))),
}
truth = st.booleans()
steps = st.one_of(
    st.tuples(
        st.just("convolution"),
        st.sampled_from([1, 3, 5, (3, 1)]),
        st.sampled_from([1, 2, 3]),
        st.integers(0, 2),
        truth,
        truth,
    ),
    st.tuples(st.just("identity"), truth),
    st.tuples(st.just("projection"), st.sampled_from([1, 2])),
    st.tuples(st.sampled_from(["max", "mean"]), st.sampled_from([2, 3]), st.sampled_from([1, 2])),
    st.tuples(st.just("before")),
)
FIRST = ("convolution", 3, 1, 1, True, True)


drawn_networks = given(
    drawn=st.lists(steps, min_size=4, max_size=6),
    head=st.sampled_from(["mean", "flat"]),
    shape=st.sampled_from([(1, 7, 7), (2, 12, 9), (1, 10, 36)]),
    batch=st.sampled_from([2, 3, 5]),
)


def some(examples):
    patient = [HealthCheck.too_slow]
    return settings(max_examples=examples, derandomize=True, suppress_health_check=patient)


@some(3)
@drawn_networks
def test_any_network_trains_as_on_the_dense_engine(drawn, head, shape, batch):
    assert_drawn(drawn, head, shape, batch)


@pytest.mark.slow
@some(40)
@drawn_networks
def test_many_networks_train_as_on_the_dense_engine(drawn, head, shape, batch):
    assert_drawn(drawn, head, shape, batch)


def assert_drawn(drawn, head, shape, batch):
    model = seeded(Drawn, [FIRST, *drawn], head, shape)
    bench = Both(model, shape, batch, room=2)
    bench.assert_same(bench.mask(0.4), 2, 1, near=5e-3)
