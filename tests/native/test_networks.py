"""The project's networks against torch: whole steps, threads, memory, translation."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from fedtiny import models
from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph
from fedtiny.graph.trace import trace
from fedtiny.native.library import NativeError, Options, Rates
from fedtiny.native.model import largest_fit

from .twins import Probe, Twins, agree, batch, random_mask, supported_lanes, wake_norms

NETWORKS = {
    "resnet18": (8, (3, 32, 32), 18),
    "vgg11": (4, (3, 32, 32), 12),
    "vgg11_small": (8, (1, 32, 40), 12),
    "small": (8, (3, 13, 17), 33),
}


def network(name, density=0.1, **options):
    """The network with a random mask and weights that keep their signal; no dropout."""
    width, shape, count = NETWORKS[name]
    model = wake_norms(models.build(name, shape, 10, width=width))
    param_spec = models.analyze(model, shape)
    rng = np.random.default_rng(0)
    masks = {layer: random_mask(size, density, rng) for layer, size in param_spec.sizes.items()}
    with torch.no_grad():
        for layer in masks:
            model.state_dict()[layer].mul_(density**-0.5)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    twins = Twins.make(model, shape, masks, **{"batch": count, **options})
    return twins, *batch(rng, count, shape, 10)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_of_each_network(name, recompute):
    twins, images, labels = network(name, threads=2, recompute=recompute, optimizer="sgd")
    expected = twins.torch.eval()(torch.from_numpy(images).double()).detach().numpy()
    agree({"logits": (expected, twins.native.logits(images))}, 1e-4)
    agree(twins.gradients(images, labels), 1e-3)
    twins.step(images, labels, "sgd")
    agree(twins.states(), 2e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_half_storage_is_near(name):
    twins, images, labels = network(name, storage="float16", recompute=True)
    pairs = twins.gradients(images, labels)
    expected, found = (np.concatenate([p[i].reshape(-1) for p in pairs.values()]) for i in (0, 1))
    assert np.linalg.norm(expected - found) < 0.1 * np.linalg.norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"storage": "float16", "recompute": True}])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_number_of_threads_changes_no_bit(name, options):
    results = []
    for threads in (1, 2, 3, 5):
        twins, images, labels = network(name, threads=threads, top_count=50, **options)
        native = twins.native
        native.start(Rates(lr=0.01))
        for _ in range(2):
            native.train(images, labels)
        top = native.top_gradients(images, labels, {native.layers[1]: 50})
        tensors = [native.get(n) for n in twins.tensors()]
        results.append([*tensors, *top[native.layers[1]], native.logits(images)])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("recompute", [False, True])
def test_what_was_planned_is_what_is_taken(storage, recompute):
    twins, _, _ = network("resnet18")
    native = twins.native
    counts = {name: len(kept) for name, kept in twins.kept.items()}
    for size in (1, 16, 17, 40):
        options = Options(batch=size, forward_batch=50, storage=storage, recompute=recompute)
        planned = native.plan(options, counts)
        native.prepare(options, twins.kept)
        assert bytes(native.taken) == bytes(planned)
        assert planned.total >= planned.parameters + planned.activations
    kept = sum(counts.values())
    assert planned.parameters < 4 * 4 * (kept + 60_000), "values, gradients, two moments"


def test_memory_shrinks_as_it_should():
    native = network("resnet18")[0].native
    full = native.plan(Options(batch=64)).activations
    half = native.plan(Options(batch=64, storage="float16")).activations
    again = native.plan(Options(batch=64, recompute=True)).activations
    assert half == pytest.approx(full / 2, rel=0.01)
    assert again < 0.7 * full


def test_a_smaller_batch_after_a_larger_one():
    twins, images, labels = network("resnet18", batch=64, forward_batch=10)
    for count in (18, 3, 17, 18):
        twins.native.set("bn1.running_mean", np.zeros(8))
        pairs = twins.gradients(images[:count], labels[:count])
        agree({"loss": pairs["loss"], "fc": pairs["fc.weight"]}, 1e-3)
        whole = twins.native.logits(images[:count])
        np.testing.assert_allclose(whole[:2], twins.native.logits(images[:2]), rtol=1e-5, atol=1e-5)


def test_preparing_again_gives_another_mask():
    twins, images, _ = network("small")
    first = twins.native.logits(images)
    values = {n: twins.native.get(n) for n in twins.tensors()}
    layer = twins.native.layers[1]
    twins.native.prepare(twins.native.options, {layer: np.arange(3, dtype=np.int32)})
    assert twins.native.get(layer).size == 3
    twins.native.prepare(twins.native.options, twins.kept)
    for name, value in values.items():
        twins.native.set(name, value)
    np.testing.assert_array_equal(twins.native.logits(images), first)


def test_a_description_travels_as_plain_records():
    graph = trace(models.build("resnet18", (3, 8, 8), 10, width=4), (3, 8, 8))
    again = Graph.from_plain(graph.to_plain())
    assert again.nodes == graph.nodes
    assert Probe(again).layers[0] == "conv1.weight"
    with pytest.raises(ModelError, match="colour"):
        Graph.from_plain([{"kind": 0, "colour": 3}])


UNSUPPORTED = {
    "softmax (1)": nn.Softmax(1),
    "transposed_convolution (1)": nn.ConvTranspose2d(4, 4, 3),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_layer_is_named(name):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), UNSUPPORTED[name], *_head(4))
    with pytest.raises(NativeError, match=re.escape(f"does not have {name}")):
        Probe(trace(model, (3, 8, 8)))


def test_a_batch_norm_that_runs_twice_is_named():
    norm, relu = nn.BatchNorm2d(4), nn.ReLU()
    body = (nn.Conv2d(3, 4, 3), norm, relu, nn.Conv2d(4, 4, 3), norm, relu)
    model = nn.Sequential(*body, *_head(4))
    with pytest.raises(NativeError, match=r"a batch norm that runs twice \(1\)"):
        Probe(trace(model, (3, 8, 8)))
    model[4] = nn.BatchNorm2d(4)
    assert len(Probe(trace(model, (3, 8, 8))).graph.nodes) == 10


@pytest.mark.slow
@pytest.mark.parametrize("density", [0.003, 0.02])
@pytest.mark.parametrize("name", NETWORKS)
def test_dead_channels_change_nothing_that_matters(name, density):
    whole, images, labels = network(name, density, optimizer="sgd")
    lean, _, _ = network(name, density, optimizer="sgd", remove_dead=True, threads=2)
    assert lean.native.taken.activations <= whole.native.taken.activations
    for twins in (whole, lean):
        twins.native.start(Rates(lr=0.1, momentum=0.9, decay=1e-3))
        for _ in range(3):
            twins.native.train(images, labels)
    np.testing.assert_allclose(
        lean.native.logits(images), whole.native.logits(images), rtol=1e-4, atol=1e-5
    )
    for tensor in whole.tensors():
        if "running" not in tensor:  # of a channel that is not computed it stays
            expected = whole.native.get(tensor)
            np.testing.assert_allclose(lean.native.get(tensor), expected, rtol=1e-3, atol=1e-5)


def test_dead_channels_take_no_memory():
    whole, _, _ = network("resnet18", 0.003)
    lean, images, labels = network("resnet18", 0.003, remove_dead=True)
    assert lean.native.taken.activations < 0.8 * whole.native.taken.activations
    with pytest.raises(NativeError, match="left out"):
        lean.native.top_gradients(images, labels, {"conv1.weight": 0})


def test_a_network_of_which_nothing_lives():
    masks = {layer: np.empty(0, dtype=np.int32) for layer in ("0.weight", "2.weight")}
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), *_head(6)
    )
    twins = Twins.make(
        model,
        (3, 9, 9),
        {**masks, "6.weight": np.array([1], dtype=np.int32)},
        batch=8,
        remove_dead=True,
    )
    images, labels = batch(np.random.default_rng(0), 8, (3, 9, 9), 5)
    pairs = twins.gradients(images, labels)
    agree({name: pairs[name] for name in ("loss", "6.bias")}, 1e-5)


def test_nothing_lives_behind_a_flattened_dropout():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm1d(4 * 36), nn.Linear(144, 3)
    )
    empty = np.empty(0, dtype=np.int32)
    native = Twins.make(model, (2, 8, 8), {"4.weight": empty}, batch=8, remove_dead=True).native
    images, labels = batch(np.random.default_rng(0), 8, (2, 8, 8), 3)
    assert np.isfinite(native.train(images, labels, update=False).loss)


def _head(channels):
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5)


def test_the_largest_batch_that_fits_a_budget():
    twins, _, _ = network("resnet18")
    counts = {name: len(kept) for name, kept in twins.kept.items()}
    wanted = Options(batch=128)
    whole = twins.native.plan(wanted, counts).total
    options = largest_fit(twins.native, wanted, counts, {0: whole})
    assert (options.batch, options.recompute, options.storage) == (128, False, "float32")
    assert twins.native.plan(options, counts).total == whole
    options = largest_fit(twins.native, wanted, counts, {0: whole // 2})
    assert options.batch == 128
    assert options.storage == "float16" or options.recompute
    options = largest_fit(twins.native, wanted, counts, {0: whole // 10})
    assert 2 <= options.batch < 128
    assert twins.native.plan(options, counts).total <= whole // 10
    with pytest.raises(NativeError, match="needs at least"):
        largest_fit(twins.native, wanted, counts, {0: 100_000})


@pytest.mark.skipif(supported_lanes() != [4, 8, 16], reason="needs vectors of three widths")
def test_a_small_batch_does_not_fill_idle_lanes():
    native = network("small")[0].native
    sixteen, eight = (native.plan(Options(batch=8, lanes=lanes)).activations for lanes in (16, 8))
    assert native.plan(Options(batch=8)).activations == eight < sixteen
