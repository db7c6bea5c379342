"""The largest gradients of pruned weights: exactly torch's, in memory for those alone."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedtiny.native.library import NativeError
from fedtiny.sparse.top import TopBuffer

from .strategies import masks_of, smooth_networks
from .twins import Twins, batch, random_mask


def dense_gradients(twins, images, labels):
    twins.torch.train().zero_grad()
    logits = twins.torch(torch.from_numpy(images).double())
    F.cross_entropy(logits, torch.from_numpy(labels)).backward()
    return {n: p.grad.numpy().reshape(-1) for n, p in twins.torch.named_parameters()}


@settings(max_examples=40)
@given(st.data(), smooth_networks(), st.integers(2, 20), st.integers(0, 400))
def test_the_largest_are_torchs(data, network, count, top):
    model, shape = network
    masks = data.draw(masks_of(model))
    twins = Twins.make(model, shape, masks, batch=32, threads=2, top_count=400)
    images, labels = batch(np.random.default_rng(0), count, shape, 3)
    counts = dict.fromkeys(twins.native.layers, top)
    found = twins.native.top_gradients(images, labels, counts)
    for name, gradient in dense_gradients(twins, images, labels).items():
        if name not in counts:
            continue
        kept = masks.get(name, np.arange(gradient.size))
        pruned = np.delete(np.arange(gradient.size), kept)
        indices, values = found[name]
        assert len(indices) == min(top, len(pruned))
        assert not np.isin(indices, kept).any()
        assert (np.diff(indices) > 0).all()
        noise = 2e-4 * np.abs(gradient).max(initial=0) + 2e-5  # batch norm of nothing amplifies it
        np.testing.assert_allclose(values, gradient[indices], atol=noise)
        smallest = np.abs(gradient[indices]).min(initial=np.inf)
        left_out = np.abs(np.delete(gradient, np.concatenate([indices, kept]).astype(int)))
        assert left_out.max(initial=0) <= smallest + 2 * noise


class Exact(nn.Module):
    """Every sum is of whole numbers over a power of two, so ties are exact on both sides."""

    def __init__(self, kernel, stride):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, kernel, stride, padding=kernel // 2, bias=False)
        self.fc = nn.Linear(3, 2, bias=False)

    def forward(self, x):
        return self.fc(self.conv(x).mean((2, 3)))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (3, 2), (5, 2)])
@pytest.mark.parametrize("top", [0, 1, 7, 20, 1000])
def test_ties_go_to_the_lower_position(kernel, stride, top, threads):
    model = Exact(kernel, stride)
    with torch.no_grad():
        model.conv.weight.zero_()
        model.fc.weight.copy_(torch.tensor([[1.0, 0.5, 1.0], [-1.0, -0.5, -1.0]]))
    rng = np.random.default_rng(0)
    masks = {"conv.weight": random_mask(model.conv.weight.numel(), 0.2, rng)}
    twins = Twins.make(model, (2, 8, 8), masks, batch=16, threads=threads, top_count=1000)
    images = rng.integers(-1, 2, (16, 2, 8, 8)).astype(np.float32)
    labels = rng.integers(0, 2, 16)
    indices, values = twins.native.top_gradients(images, labels, {"conv.weight": top})[
        "conv.weight"
    ]
    gradient = dense_gradients(twins, images, labels)["conv.weight"].astype(np.float32)
    expected = TopBuffer(gradient.size, top)
    pruned = np.delete(np.arange(gradient.size), masks["conv.weight"])
    if top:
        expected.push(pruned, gradient[pruned])
    np.testing.assert_array_equal(indices, expected.result().indices)
    np.testing.assert_array_equal(values, expected.result().values)
    assert len(np.unique(np.abs(gradient))) < gradient.size, "there should be ties"


def test_memory_for_the_largest_grows_with_their_number_alone():
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    counts = {"1.weight": 300}

    def taken(**options):
        native = Twins.make(
            model, (3, 8, 8), {"1.weight": np.arange(300, dtype=np.int32)}, batch=16, **options
        ).native
        return native.plan(native.options, counts).total

    without, few, more = taken(), taken(top_count=100), taken(top_count=1100)
    assert 0 <= few - without <= 100 * 8 + 64
    assert 1000 * 8 - 64 <= more - few <= 1000 * 8 + 64
    assert taken(top_count=100, threads=2) - taken(threads=2) <= 2 * 100 * 8 + 64


def test_more_than_was_planned_for_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    native = Twins.make(model, (1, 8, 8), {}, batch=4, top_count=5).native
    images, labels = batch(np.random.default_rng(0), 4, (1, 8, 8), 10)
    with pytest.raises(NativeError, match="at most 5 were planned"):
        native.top_gradients(images, labels, {"1.weight": 6})


def test_measuring_changes_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)
    )
    native = Twins.make(model, (3, 8, 8), {}, batch=8, top_count=5).native
    images, labels = batch(np.random.default_rng(0), 8, (3, 8, 8), 3)
    native.train(images, labels, update=False)
    before = {n: (native.get(n), native.gradient(n)) for n in ("0.weight", "1.weight", "4.bias")}
    statistics = native.get("1.running_mean")
    native.top_gradients(images[::-1], labels, {"0.weight": 5})
    for name, (value, gradient) in before.items():
        np.testing.assert_array_equal(native.get(name), value)
        np.testing.assert_array_equal(native.gradient(name), gradient)
    np.testing.assert_array_equal(native.get("1.running_mean"), statistics)


@settings(max_examples=15)
@given(smooth_networks(), st.integers(2, 20))
def test_whole_gradients_are_added_up(network, count):
    model, shape = network
    rng = np.random.default_rng(0)
    masks = {n: random_mask(p.numel(), 0.3, rng) for n, p in model.named_parameters() if p.ndim > 1}
    twins = Twins.make(model, shape, masks, batch=32, threads=2)
    images, labels = batch(rng, count, shape, 3)
    sums = {n: np.ones(twins.native.size(n), dtype=np.float32) for n in twins.native.layers}
    for _ in range(2):
        twins.native.train(images, labels, update=False, dense=sums)
    for name, gradient in dense_gradients(twins, images, labels).items():
        if name in sums:
            noise = 5e-4 * np.abs(gradient).max(initial=0) + 1e-4
            np.testing.assert_allclose(sums[name] - 1, 2 * gradient, atol=noise)


@settings(max_examples=25)
@given(st.data(), smooth_networks(), st.integers(2, 20))
def test_gradients_at_given_positions_are_torchs(data, network, count):
    model, shape = network
    masks = data.draw(masks_of(model))
    twins = Twins.make(model, shape, masks, batch=32, threads=2)
    images, labels = batch(np.random.default_rng(0), count, shape, 3)
    sizes = {name: twins.native.size(name) for name in twins.native.layers}
    draw = np.random.default_rng(1)
    asked = {name: random_mask(size, 0.2, draw) for name, size in sizes.items()}
    found = twins.native.gradients_at(images, labels, asked)
    for name, gradient in dense_gradients(twins, images, labels).items():
        if name in asked:
            noise = 2e-4 * np.abs(gradient).max(initial=0) + 2e-5
            np.testing.assert_allclose(found[name], gradient[asked[name]], atol=noise)


@pytest.mark.parametrize(
    "positions", [[3, 2], [2, 2], [-1], [640], [2**31 - 1]], ids=["order", "twice", "a", "b", "c"]
)
def test_positions_that_are_none_are_refused(positions):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    native = Twins.make(model, (1, 8, 8), {}, batch=4).native
    images, labels = batch(np.random.default_rng(0), 4, (1, 8, 8), 10)
    with pytest.raises(NativeError, match=r"out of (range|order)|from 0"):
        native.gradients_at(images, labels, {"1.weight": np.array(positions)})


def fisher_scores(model, images, labels):
    """By layer, each gradient over the root of twice its Fisher information, from torch."""
    model, found = copy.deepcopy(model).train(), {}
    layers = {f"{n}.weight": m for n, m in model.named_modules() if hasattr(m, "weight")}
    layers = {n: m for n, m in layers.items() if m.weight.ndim > 1}
    for name, layer in layers.items():
        seen = found[name] = {}
        layer.register_forward_hook(lambda _, a, out, seen=seen: _watch(seen, a[0], out))
    F.cross_entropy(model(torch.from_numpy(images).double()), torch.from_numpy(labels)).backward()
    scores = {}
    for name, layer in layers.items():
        x, g = (found[name][key].transpose(0, 1).flatten(1) for key in "xg")
        fisher = torch.outer((len(images) * g**2).sum(1), (x**2).mean(1))
        fisher = fisher.reshape(*fisher.shape, *[1] * (layer.weight.ndim - 2))
        ratio = layer.weight.grad / (2 * fisher).sqrt()
        scores[name] = torch.where(fisher > 0, ratio, 0.0).reshape(-1).numpy()
    return scores


def _watch(seen, inputs, output):
    seen["x"] = inputs.detach()
    output.register_hook(lambda g: seen.update(g=g))


class Folded(nn.Module):
    """A layer behind batch norm and ReLU, one with a stride, a linear one behind flat pixels."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(2, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.two = nn.Conv2d(5, 4, 3, stride=2)
        self.fc = nn.Linear(4 * 9, 3)

    def forward(self, x):
        x = self.two(torch.relu(self.norm(self.one(x))))
        return self.fc(torch.relu(x).flatten(1))


@pytest.mark.parametrize("images", [5, 16])
@pytest.mark.parametrize(("storage", "near"), [("float32", 1e-3), ("float16", 3e-2)])
def test_fisher_scores_are_torchs(images, storage, near):
    torch.manual_seed(0)
    model, draw = Folded(), np.random.default_rng(3)
    masks = {
        n: random_mask(p.numel(), 0.4, draw) for n, p in model.named_parameters() if p.ndim > 1
    }
    twins = Twins.make(model, (2, 8, 8), masks, batch=16, threads=2, top_count=200, storage=storage)
    pictures, labels = batch(np.random.default_rng(0), images, (2, 8, 8), 3)
    counts = {"one.weight": 9, "two.weight": 30, "fc.weight": 20}
    found = twins.native.top_gradients(pictures, labels, counts, fisher=True)
    for name, scores in fisher_scores(twins.torch, pictures, labels).items():
        indices, values = found[name]
        np.testing.assert_allclose(values, scores[indices], rtol=near, atol=near)
        pruned = np.setdiff1d(np.arange(len(scores)), np.concatenate([masks[name], indices]))
        assert np.abs(scores[pruned]).max() <= np.abs(values).min() * (1 + near) + near
