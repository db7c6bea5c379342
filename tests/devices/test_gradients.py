"""The top-a gradients are those of a full sort, and no layer's gradient is ever whole."""

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedtiny.devices import torch_gradients
from fedtiny.devices.torch_gradients import feed_gradients, top_gradients, tops_of
from fedtiny.devices.torch_layers import norms
from fedtiny.devices.torch_takers import GradientsAt
from fedtiny.models import analyze
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.top import SLAB_PER_COUNT

from .tiny import CLASSES, SIDE, TinyNet, lab, random_mask, seeded

BATCH = 6


def around(*middle):
    """A network with the given layers, for 4 channels, in its middle."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), *middle)
    features = body(torch.zeros(2, 1, SIDE, SIDE))[0].numel()
    return nn.Sequential(*body, nn.ReLU(), nn.Flatten(), nn.Linear(features, CLASSES))


def convolution(out=6, kernel=3, **options):
    return around(nn.Conv2d(4, out, kernel, **options))


NETWORKS = {
    "plain": lambda: convolution(),
    "padding": lambda: convolution(padding=1),
    "stride": lambda: convolution(stride=2, padding=1),
    "uneven stride": lambda: convolution(stride=(3, 2), padding=(0, 2)),
    "dilation": lambda: convolution(dilation=2, padding=2),
    "no bias": lambda: convolution(padding=1, bias=False),
    "oblong kernel": lambda: convolution(kernel=(1, 3)),
    "same padding": lambda: convolution(padding="same"),
    "circular padding": lambda: convolution(padding=1, padding_mode="circular"),
    "1x1": lambda: convolution(out=16, kernel=1),
    "groups": lambda: convolution(groups=2, padding=1),
    "depthwise": lambda: convolution(out=8, groups=4, padding=1),
    "1d": lambda: around(nn.Flatten(2), nn.Conv1d(4, 6, 3, stride=3, padding=1)),
    "linear": lambda: around(nn.Flatten(), nn.Linear(256, 9)),
    "linear on rows": lambda: around(nn.Linear(SIDE, 12)),
    "residual": lambda: seeded(TinyNet),
}


def problem(network, seed=0):
    """A batch, and the network under a mask."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(BATCH, 1, SIDE, SIDE, generator=draw)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=draw)
    mask = random_mask(analyze(network, (1, SIDE, SIDE), depthwise=True), 0.3, seed)
    with torch.no_grad():
        for layer in mask:
            network.get_parameter(layer).mul_(torch.from_numpy(mask.array(layer)))
    return inputs, labels, mask


def dense_gradients(network, inputs, labels):
    """What autograd gives, whole."""
    twin = deepcopy(network).train()
    F.cross_entropy(twin(inputs), labels).backward()
    return {name: p.grad.reshape(-1).numpy() for name, p in twin.named_parameters()}


def sorted_top(gradient, mask, layer, count):
    """The positions of the largest gradients among the pruned ones, by a full sort."""
    pruned = np.flatnonzero(~mask.array(layer).reshape(-1))
    order = pruned[np.argsort(-np.abs(gradient[pruned]), kind="stable")]
    last, next_best = np.abs(gradient[order[count - 1 : count + 1]])
    assert last > next_best * (1 + 1e-4), "too near a tie to compare with"
    return np.sort(order[:count])


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("count", [1, 5, 20])
def test_top_gradients_are_those_of_a_full_sort(kind, count):
    network = NETWORKS[kind]().train()
    inputs, labels, mask = problem(network)
    found = top_gradients(network, inputs, labels, mask, dict.fromkeys(mask, count))
    whole = dense_gradients(network, inputs, labels)
    assert found.keys() == set(mask)
    for layer, top in found.items():
        assert top.size == mask.param_spec.sizes[layer]
        best = sorted_top(whole[layer], mask, layer, count)
        assert top.indices.tolist() == best.tolist()
        np.testing.assert_allclose(top.values, whole[layer][best], rtol=1e-3, atol=1e-7)


def test_only_pruned_positions_are_ever_given():
    network = seeded(TinyNet).train()
    inputs, labels, mask = problem(network)
    everything = dict(mask.param_spec.sizes)
    found = top_gradients(network, inputs, labels, mask, everything)
    for layer, top in found.items():
        assert np.array_equal(top.indices, np.flatnonzero(~mask.array(layer)))


def test_only_the_layers_asked_for_are_measured():
    network = seeded(TinyNet).train()
    inputs, labels, mask = problem(network)
    found = top_gradients(network, inputs, labels, mask, {"conv2.weight": 3})
    assert {layer: len(top) for layer, top in found.items()} == {"conv2.weight": 3}


def test_measuring_changes_nothing():
    network = seeded(TinyNet).train()
    network.stem.bias.requires_grad_(False)
    network.head.weight.grad = torch.full_like(network.head.weight, 7)
    inputs, labels, mask = problem(network)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    top_gradients(network, inputs, labels, mask, dict.fromkeys(mask, 4))
    after = network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (network.head.weight.grad == 7).all()
    others = {n: p for n, p in network.named_parameters() if n != "head.weight"}
    assert all(p.grad is None for p in others.values())
    assert [n for n, p in network.named_parameters() if not p.requires_grad] == ["stem.bias"]
    assert not any(module._forward_hooks for module in network.modules())
    assert all(norm.track_running_stats for norm in (network.bn0, network.bn1, network.bn2))


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("kind", ["padding", "groups", "depthwise", "1x1", "linear", "residual"])
def test_a_slab_is_a_few_filters_and_never_the_layer(monkeypatch, kind, count):
    slabs = []
    plain = torch_gradients._slabs

    def spy(layer, *rest):
        for start, slab in plain(layer, *rest):
            slabs.append((layer.weight.numel(), layer.weight[0].numel(), slab.numel()))
            yield start, slab

    monkeypatch.setattr(torch_gradients, "_slabs", spy)
    network = NETWORKS[kind]().train()
    inputs, labels, mask = problem(network)
    top_gradients(network, inputs, labels, mask, dict.fromkeys(mask, count))
    assert len(slabs) > len(mask.counts)
    for layer_size, filter_size, slab_size in slabs:
        assert slab_size <= max(SLAB_PER_COUNT * count, filter_size)
        assert slab_size < layer_size


class Shapes(TorchDispatchMode):
    """Writes down the shape of every tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.made = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        leaves = tree_leaves(result)
        self.made |= {tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        return result


def test_no_operation_makes_a_tensor_of_a_layer_s_shape():
    network = convolution(padding=1).train()
    inputs, labels, mask = problem(network)
    with Shapes() as plain:
        F.cross_entropy(network(inputs), labels).backward()
    network.zero_grad()
    positions = {layer: np.array([1, 30], np.int32) for layer in mask}
    with Shapes() as ours:
        top_gradients(network, inputs, labels, mask, dict.fromkeys(mask, 2))
        feed_gradients(network, inputs, labels, tops_of(mask, dict.fromkeys(mask, 2)), fisher=True)
        feed_gradients(network, inputs, labels, {n: GradientsAt(p) for n, p in positions.items()})
    weight = mask.param_spec.prunable["3.weight"]
    assert weight in plain.made
    assert weight not in ours.made
    assert (1, *weight[1:]) in ours.made


@pytest.mark.parametrize("measured", [["3.weight"], ["5.weight"], ["3.weight", "5.weight"]])
def test_a_relu_may_write_over_a_layer_s_output(measured):
    middle = nn.Conv2d(4, 5, 3), nn.Conv2d(5, 6, 3)
    careful = around(middle[0], nn.ReLU(), middle[1]).train()
    inputs, labels, mask = problem(careful)
    overwriting = deepcopy(careful)
    for module in overwriting.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = True
    found = top_gradients(overwriting, inputs, labels, mask, dict.fromkeys(measured, 4))
    whole = dense_gradients(careful, inputs, labels)
    for layer, top in found.items():
        assert top.indices.tolist() == sorted_top(whole[layer], mask, layer, 4).tolist()


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.inner(torch.relu(self.inner(x)))


def test_a_layer_that_runs_twice_has_the_gradient_of_both_runs():
    network = around(Loop()).train()
    inputs, labels, mask = problem(network)
    found = top_gradients(network, inputs, labels, mask, {"3.inner.weight": 5})
    dense = dense_gradients(network, inputs, labels)
    (layer, top), *_ = found.items()
    assert top.indices.tolist() == sorted_top(dense[layer], mask, layer, 5).tolist()
    np.testing.assert_allclose(top.values, dense[layer].reshape(-1)[top.indices], rtol=1e-4)


def test_a_device_measures_one_batch_of_its_own_data_in_training_mode():
    bench = lab()
    theta, shard, rng_key = bench.theta(), bench.shards[2], bench.rng_key(device=2, round=5)
    counts = dict.fromkeys(theta.mask, 6)
    bench.engine.load(theta)
    bench.model.eval()
    found = bench.engine.top_gradients(shard, rng_key, counts=counts)
    assert bench.engine.theta().version == theta.version

    draw = rng_key.generator("gradient batch")
    batch = draw.choice(shard.indices, size=4, replace=False)
    pixels = torch.from_numpy(shard.data.images[batch])
    inputs = bench.engine.transform.augment(pixels, bench.engine.transform.draws(draw, 4))
    labels = torch.from_numpy(shard.data.labels[batch])
    whole = dense_gradients(bench.model, inputs, labels)
    for layer, top in found.items():
        best = sorted_top(whole[layer], theta.mask, layer, 6)
        assert top.indices.tolist() == best.tolist()


def test_a_device_smaller_than_a_batch_measures_all_it_has():
    bench, seen = lab(sizes=(3, 9)), []
    bench.model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    bench.engine.top_gradients(bench.shards[0], bench.rng_key(), counts={"conv1.weight": 1})
    assert seen == [3]


def test_an_empty_filter_s_gradient_is_enlarged_no_more_than_epsilon_allows():
    """Batch norm divides by the deviation of what a filter gives; of nothing, by sqrt(eps)."""
    bench, layer = lab(model=seeded(TinyNet)), "conv2.weight"
    theta, place = bench.theta(), (bench.shards[0], bench.rng_key())
    size = theta.param_spec.sizes[layer]
    filter_size = size // 8
    kept = {name: theta.mask.indices(name) for name in theta.mask}
    chosen = kept | {layer: kept[layer][kept[layer] >= filter_size]}
    bench.engine.load(theta.remasked(Mask(theta.param_spec, chosen)))

    def largest(epsilon):
        found = bench.engine.top_gradients(*place, counts={layer: size}, epsilon=epsilon)
        return np.abs(found[layer].dense()[:filter_size]).max()

    assert largest(0.0) / largest(4e-5) == pytest.approx(2, rel=0.1)  # sqrt(4e-5 / 1e-5)
    assert {norm.eps for norm in norms(bench.model).values()} == {1e-5}


def test_the_same_moment_draws_the_same_gradients_whatever_came_before():
    bench = lab(model=seeded(TinyNet, 0.5))
    theta, counts = bench.theta(), {"conv2.weight": 9}
    bench.engine.load(theta)

    def measured(device):
        rng_key = bench.rng_key(device)
        found = bench.engine.top_gradients(bench.shards[device], rng_key, counts=counts)
        return found["conv2.weight"].dense().tobytes()

    first = [measured(0), measured(1)]
    assert [measured(1), measured(0)] == first[::-1]
    assert first[0] != first[1]


# Gradients at given positions, and over the root of their Fisher information


@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_at_given_positions_are_autograd_s(kind):
    network = NETWORKS[kind]().train()
    inputs, labels, mask = problem(network)
    asked = {layer: np.flatnonzero(~mask.array(layer))[::3].astype(np.int32) for layer in mask}
    found = {layer: GradientsAt(positions) for layer, positions in asked.items()}
    feed_gradients(network, inputs, labels, found)
    whole = dense_gradients(network, inputs, labels)
    for layer, taker in found.items():
        values = whole[layer][asked[layer]]
        np.testing.assert_allclose(taker.result(), values, rtol=1e-3, atol=1e-7)


def fisher_of(network, layer, inputs, labels):
    """The Fisher information of a layer's weights, from whole inputs and output gradients."""
    twin, seen = deepcopy(network).train(), {}
    module = twin.get_submodule(layer.removesuffix(".weight"))

    def watch(_, args, out):
        seen["x"] = args[0]
        out.register_hook(lambda g: seen.update(g=g))

    module.register_forward_hook(watch)
    F.cross_entropy(twin(inputs), labels).backward()
    x, g = seen["x"].detach().double(), seen["g"].double()
    images, groups = len(x), getattr(module, "groups", 1)
    if isinstance(module, nn.Linear):
        x, g = x.flatten(0, -2).T, g.flatten(0, -2).T
    else:
        x, g = x.transpose(0, 1).flatten(1), g.transpose(0, 1).flatten(1)
    a = (x**2).mean(1)  # by channel
    b = (images * g**2).sum(1)  # of each image's own loss, which is `images` times its share
    shape = tuple(module.weight.shape)
    out, channels = shape[0] // groups, shape[1]
    by_group = [
        torch.outer(b[k * out : (k + 1) * out], a[k * channels : (k + 1) * channels])
        for k in range(groups)
    ]
    fisher = torch.cat(by_group).reshape(*shape[:2], *[1] * (len(shape) - 2)).expand(shape)
    return fisher.reshape(-1).numpy()


@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_are_divided_by_the_root_of_twice_their_fisher_information(kind):
    network = NETWORKS[kind]().train()
    inputs, labels, mask = problem(network)
    tops = tops_of(mask, dict.fromkeys(mask, 5))
    feed_gradients(network, inputs, labels, tops, fisher=True)
    whole = dense_gradients(network, inputs, labels)
    for layer, top in tops.items():
        fisher = fisher_of(network, layer, inputs, labels)
        scores = np.where(fisher > 0, whole[layer] / np.sqrt(2 * np.maximum(fisher, 1e-300)), 0)
        found = top.result()
        np.testing.assert_allclose(found.values, scores[found.indices], rtol=2e-3, atol=1e-6)
        pruned = np.flatnonzero(~mask.array(layer).reshape(-1))
        left = np.abs(scores[np.setdiff1d(pruned, found.indices)]).max(initial=0)
        assert np.abs(found.values).min() >= left * (1 - 1e-3)


def test_a_fisher_score_by_hand():
    """One linear layer, one image of (1, 2): g_ij = d_i x_j, F_ij = x_j^2 d_i^2, score 1/sqrt 2."""
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    layer = "0.weight"
    taker = {layer: GradientsAt(np.arange(4, dtype=np.int32))}
    inputs, labels = torch.tensor([[1.0, 2.0]]), torch.tensor([0])
    feed_gradients(network, inputs, labels, taker, fisher=True)
    np.testing.assert_allclose(np.abs(taker[layer].result()), np.full(4, 0.5**0.5), rtol=1e-6)


def test_a_channel_that_gives_nothing_has_the_score_zero():
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    taker = {"0.weight": GradientsAt(np.arange(4, dtype=np.int32))}
    feed_gradients(network, torch.tensor([[0.0, 2.0]]), torch.tensor([0]), taker, fisher=True)
    found = taker["0.weight"].result()
    assert found[[0, 2]].tolist() == [0, 0]
    assert (found[[1, 3]] != 0).all()


def test_batch_norm_s_enlargement_of_an_empty_filter_cancels():
    """With a hundredth of its weights a filter before batch norm has gradients 100 times larger."""

    def scores(scale, fisher):
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, eps=1e-12), nn.Flatten(), nn.Linear(72, 2)
        )
        with torch.no_grad():
            network[0].weight[0] *= scale
        taker = {"0.weight": GradientsAt(np.arange(9, dtype=np.int32))}
        draw = torch.Generator().manual_seed(1)
        images = torch.randn(4, 1, 8, 8, generator=draw)
        feed_gradients(network, images, torch.tensor([0, 1, 1, 0]), taker, fisher=fisher)
        return taker["0.weight"].result()

    np.testing.assert_allclose(scores(0.01, False), 100 * scores(1, False), rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(scores(0.01, True), scores(1, True), rtol=1e-2, atol=1e-5)
