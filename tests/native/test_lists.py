"""The lists of kept weights: what they take, and layers too large for two bytes a number."""

import numpy as np
import pytest
import torch
from torch import nn

from fedtiny import models
from fedtiny.graph.trace import trace
from fedtiny.native.library import Options

from .twins import Probe, Twins, agree, batch, random_mask, supported_lanes

MOST_BYTES = 10  # of lists, a kept weight
SHAPE = (3, 32, 32)


@pytest.fixture(scope="module", params=["resnet18", "mobilenetv2"])
def network(request):
    """A network of its own width, and the sizes of its weights that a mask covers."""
    model = models.build(request.param, SHAPE, 10)
    return Probe(trace(model, SHAPE)), models.analyze(model, SHAPE).sizes


@pytest.mark.parametrize("density", [0.05, 0.01])
def test_a_kept_weight_takes_few_bytes_of_lists(network, density):
    native, sizes = network
    counts = {name: max(1, round(size * density)) for name, size in sizes.items()}
    kept = sum(counts.get(name, native.size(name)) for name in native.layers)
    for lanes in supported_lanes():
        for batch_size in (4, 64):
            planned = native.plan(Options(batch=batch_size, lanes=lanes), counts)
            assert planned.lists <= MOST_BYTES * kept


def wide_convolution():
    """More gradients of outputs, or inputs, in scratch than two bytes can count."""
    layers = [nn.Conv2d(2, 300, 1, bias=False), nn.BatchNorm2d(300), nn.ReLU()]
    more = [nn.Conv2d(300, 3, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *more, nn.Linear(3, 3)), (2, 32, 34)


def wide_linear():
    """More inputs, and more kept weights, than two bytes can count."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 150 * 150, 3)), (3, 150, 150)


@pytest.mark.parametrize("case", [wide_convolution, wide_linear])
@pytest.mark.parametrize("density", [0.3, None])
def test_large_layers_agree_with_torch(case, density):
    torch.manual_seed(0)
    model, shape = case()
    rng = np.random.default_rng(1)
    weights = {n: p.numel() for n, p in model.named_parameters() if p.dim() > 1}
    masks = {n: random_mask(size, density, rng) for n, size in weights.items()} if density else {}
    twins = Twins.make(model, shape, masks, batch=5, lanes=4, top_count=9, input_gradient=True)
    images, labels = batch(rng, 5, shape, 3)
    agree(twins.gradients(images, labels), 2e-4, twins.noise(images, labels))
    for name in masks:
        dense = {name: np.zeros(weights[name], np.float32)}
        twins.native.train(images, labels, update=False, dense=dense)
        pruned = np.abs(dense[name])
        pruned[masks[name]] = -1
        few = min(9, weights[name] - len(masks[name]))
        positions, values = twins.native.top_gradients(images, labels, {name: few})[name]
        assert set(positions) == set(np.argsort(-pruned, kind="stable")[:few])
        np.testing.assert_array_equal(values, dense[name][positions])
