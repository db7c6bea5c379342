"""Every operation of device networks against torch in float64, forward and gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtiny.graph.ir import Kind
from fedtiny.native.library import NativeError

from ..graph.building import Builder
from .reference import ACTIVATIONS, Reference
from .strategies import device_networks, masks_of
from .twins import Twins, agree, batch, random_mask, supported_lanes, wake_norms

CLASSES = 4


def ended(net, x):
    """A head behind a node: every value counts."""
    net.linear("head", net.flatten(x), CLASSES)
    return net.graph


def compare(graph, masks=None, *, count=13, seed=0, tolerance=1e-4, **options):
    """Logits, gradients and statistics of a random batch."""
    torch.manual_seed(seed)
    model = wake_norms(Reference(graph))
    kept = masks(model) if masks else {}
    options = {"batch": 40, "threads": 2, "input_gradient": True, **options}
    twins = Twins.make(model, graph.shapes[0], kept, **options)
    images, labels = batch(np.random.default_rng(seed), count, graph.shapes[0], CLASSES)
    expected = twins.torch.eval()(torch.from_numpy(images).double()).detach().numpy()
    found = twins.native.logits(images)
    noise = twins.noise(images, labels)
    pairs = twins.gradients(images, labels)
    if options.get("storage") == "float16":
        theirs, ours = (np.concatenate([p[i].ravel() for p in pairs.values()]) for i in (0, 1))
        assert np.linalg.norm(theirs - ours) < 0.1 * np.linalg.norm(theirs)  # kinks are crossed
        return
    agree({"logits": (expected, found)}, max(5e-5, tolerance / 4))
    agree(pairs, tolerance, noise)
    if not options.get("remove_dead"):
        agree(twins.states(), 2e-5)


def share_of(model, density):
    """A random share of every layer."""
    rng = np.random.default_rng(1)
    sizes = {n: p.numel() for n, p in model.named_parameters() if p.ndim > 1}
    return {name: random_mask(size, density, rng) for name, size in sizes.items()}


def half_of(model):
    return share_of(model, 0.5)


def convolved(net, name="stem", source=0, filters=6, **fields):
    return net.convolution(name, source, filters, **{"kernel": (3, 3), "padding": (1, 1), **fields})


def normed(net, x, name="norm"):
    return net.batch_norm(name, x)


def activation(kind, **fields):
    def build(net):
        """As a view of batch norm, of a sum, of another activation, and read by a sum."""
        x = net.node(kind, normed(net, convolved(net)), **fields)
        y = net.node(kind, net.add(x, convolved(net, "other", x)), **fields)
        z = net.node(kind, convolved(net, "third", net.node(kind, y, **fields)), **fields)
        return net.add(z, net.relu(y))

    return build


def squeeze_excite(net):
    x = net.node(Kind.HARD_SWISH, normed(net, convolved(net)))
    pooled = net.adaptive_pool(x, (1, 1))
    inner = net.relu(net.convolution("reduce", pooled, 3, bias=True))
    scale = net.node(Kind.HARD_SIGMOID, net.convolution("expand", inner, 6, bias=True))
    return convolved(net, "after", net.node(Kind.MULTIPLY, x, scale))


def products(net):
    x = normed(net, convolved(net))
    squared = net.node(Kind.MULTIPLY, x, x)
    relu = net.relu(convolved(net, "other", squared))
    return net.batch_norm("last", net.node(Kind.MULTIPLY, relu, squared))


def fire(net):
    squeezed = net.relu(net.convolution("squeeze", 0, 3, bias=True))
    one = net.relu(net.convolution("one", squeezed, 4, bias=True))
    three = net.relu(convolved(net, "three", squeezed, 5, bias=True))
    joined = net.node(Kind.CONCAT, one, three)
    again = net.batch_norm("norm", net.node(Kind.CONCAT, joined, joined))
    return net.max_pool(net.node(Kind.CONCAT, again, 0), (3, 3), (2, 2))


def shuffle(net):
    """The two halves of a tensor, one convolved, joined and shuffled."""
    x = net.relu(normed(net, convolved(net, filters=8)))
    _, rows, columns = net.shape(x)
    left = net.node(Kind.SLICE, x, channels=4)
    right = net.node(Kind.SLICE, x, start=4, channels=4)
    right = net.relu(net.batch_norm("inner", convolved(net, "deep", right, 4, groups=4)))
    x = net.node(Kind.CONCAT, left, right)
    x = net.node(Kind.RESHAPE, x, channels=2, size=(4, rows * columns))
    x = net.node(Kind.PERMUTE, x, order=(1, 0, 2))
    x = net.node(Kind.RESHAPE, x, channels=8, size=(rows, columns))
    return net.add(
        x, net.node(Kind.PERMUTE, net.node(Kind.PERMUTE, x, order=(1, 2, 0)), order=(2, 0, 1))
    )


def shared(net):
    """One convolution three times, once on larger planes; one linear layer twice."""
    x = net.relu(convolved(net, "same", convolved(net), 6, bias=True))
    x = net.relu(convolved(net, "same", x, 6, bias=True))
    x = convolved(
        net, "same", net.node(Kind.UPSAMPLE, x, size=(22, 18)), 6, bias=True, stride=(2, 2)
    )
    x = net.node(Kind.GROUP_NORM, x, name="gn", groups=2)
    x = net.node(Kind.GROUP_NORM, net.relu(x), name="gn", groups=2)
    x = net.relu(net.linear("fc", net.flatten(net.adaptive_pool(x, (1, 1))), 6))
    return net.relu(net.linear("fc", x, 6))


CASES = {
    **{kind.name.lower(): activation(kind) for kind in ACTIVATIONS},
    "leaky relu that rises": activation(Kind.LEAKY_RELU, slope=-0.3),
    "gelu by tanh": activation(Kind.GELU, approximate=True),
    "depthwise": lambda net: convolved(
        net, "deep", net.node(Kind.RELU6, normed(net, convolved(net))), groups=6, stride=(2, 2)
    ),
    "depthwise with more filters": lambda net: convolved(
        net, "deep", net.relu(convolved(net)), 18, groups=6, bias=True
    ),
    "groups": lambda net: net.relu(
        normed(net, convolved(net, "deep", convolved(net, bias=True), 9, groups=3))
    ),
    "wide groups": lambda net: net.relu(
        normed(net, convolved(net, "deep", convolved(net, filters=10), 18, groups=2, stride=(2, 3)))
    ),
    "dilation": lambda net: convolved(net, dilation=(2, 3), padding=(1, 2), stride=(2, 1)),
    "uneven padding": lambda net: normed(
        net, convolved(net, padding=(0, 2), padding_end=(1, 0), stride=(2, 3))
    ),
    "group norm": lambda net: net.relu(
        net.node(Kind.GROUP_NORM, convolved(net), name="gn", groups=3)
    ),
    "group norm of a view": lambda net: convolved(
        net,
        "next",
        net.node(Kind.GROUP_NORM, net.relu(normed(net, convolved(net))), name="gn", groups=1),
    ),
    "layer norm": lambda net: convolved(
        net, "next", net.node(Kind.LAYER_NORM, convolved(net), name="ln")
    ),
    "linear at each place": lambda net: net.relu(net.linear("token", convolved(net), 5)),
    "squeeze and excite": squeeze_excite,
    "products": products,
    "fire": fire,
    "shuffle": shuffle,
    "shared": shared,
    "upsample": lambda net: net.node(
        Kind.UPSAMPLE, net.relu(normed(net, convolved(net))), size=(22, 27)
    ),
    "ceil max pool": lambda net: net.node(
        Kind.MAX_POOL, convolved(net), kernel=(3, 2), stride=(2, 2), padding=(1, 0), ceil=True
    ),
    "ceil mean pool": lambda net: net.node(
        Kind.MEAN_POOL, convolved(net), kernel=(3, 3), stride=(2, 2), padding=(1, 1), ceil=True
    ),
    "ceil mean pool without padding": lambda net: net.node(
        Kind.MEAN_POOL,
        convolved(net),
        kernel=(3, 2),
        stride=(3, 3),
        padding=(1, 1),
        ceil=True,
        count_padding=False,
    ),
}


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("options", [{}, {"recompute": True, "remove_dead": True}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_each_operation(name, options, storage):
    net = Builder((3, 11, 9))
    graph = ended(net, CASES[name](net))
    compare(graph, half_of, storage=storage, **options)
    if not options:
        compare(graph, storage=storage, count=21)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["depthwise", "wide groups", "shuffle"])
def test_groups_of_which_most_is_kept_are_computed_whole(name, optimizer):
    """Pruned weights stay zero, their gradients can be asked for, and a plan is what is taken."""
    net = Builder((3, 11, 9))
    graph = ended(net, CASES[name](net))
    compare(graph, lambda model: share_of(model, 0.8))
    torch.manual_seed(0)
    model = Reference(graph)
    kept = share_of(model, 0.8)
    how = {"batch": 16, "top_count": 9, "optimizer": optimizer}
    twins = Twins.make(model, graph.shapes[0], kept, **how)
    images, labels = batch(np.random.default_rng(0), 16, graph.shapes[0], CLASSES)
    counts = {layer: len(positions) for layer, positions in kept.items()}
    assert bytes(twins.native.plan(twins.native.options, counts)) == bytes(twins.native.taken)
    found = twins.native.top_gradients(images, labels, {"deep.weight": 9})["deep.weight"]
    twins.gradients(images, labels)
    gradient = twins.torch.get_parameter("deep.weight").grad.numpy().reshape(-1)
    pruned = np.delete(np.arange(gradient.size), kept["deep.weight"])
    largest = pruned[np.argsort(-np.abs(gradient[pruned]))[:9]]
    np.testing.assert_array_equal(found[0], np.sort(largest))
    twins.step(images, labels, optimizer, steps=3)
    agree({n: pair for n, pair in twins.states().items() if "running" not in n}, 5e-3)


def test_the_gradients_of_a_layer_that_runs_twice_are_those_of_all_runs():
    net = Builder((3, 11, 9))
    graph = ended(net, shared(net))
    torch.manual_seed(0)
    model = Reference(graph)
    twins = Twins.make(model, graph.shapes[0], half_of(model), batch=16, threads=2, top_count=20)
    images, labels = batch(np.random.default_rng(0), 16, graph.shapes[0], CLASSES)
    native, names = twins.native, ("same.weight", "fc.weight")
    found = native.top_gradients(images, labels, dict.fromkeys(names, 9))
    sums = {name: np.zeros(native.size(name), np.float32) for name in names}
    native.train(images, labels, update=False, dense=sums)
    asked = {name: np.arange(0, native.size(name), 5, dtype=np.int32) for name in names}
    picked = native.gradients_at(images, labels, asked)
    twins.gradients(images, labels)
    for name in names:
        gradient = twins.torch.get_parameter(name).grad.numpy().reshape(-1)
        noise = 1e-4 * np.abs(gradient).max()
        np.testing.assert_allclose(sums[name], gradient, atol=noise)
        np.testing.assert_allclose(picked[name], gradient[asked[name]], atol=noise)
        pruned = np.delete(np.arange(gradient.size), twins.kept[name])
        largest = pruned[np.argsort(-np.abs(gradient[pruned]))[:9]]
        np.testing.assert_array_equal(found[name][0], np.sort(largest))
    with pytest.raises(NativeError, match="runs twice"):
        native.top_gradients(images, labels, {"fc.weight": 1}, fisher=True)


@pytest.mark.slow
@settings(max_examples=150, derandomize=True)  # norms of nearly equal values amplify any rounding
@given(device_networks(), st.data())
def test_any_network_agrees_with_torch(graph, data):
    options = {
        "recompute": data.draw(st.booleans()),
        "remove_dead": data.draw(st.booleans()),
        "lanes": data.draw(st.sampled_from(supported_lanes())),
    }
    seed = data.draw(st.integers(0, 2**16))
    masks = data.draw(st.sampled_from([None, lambda model: data.draw(masks_of(model))]))
    compare(graph, masks, count=data.draw(st.integers(2, 20)), seed=seed, tolerance=1e-3, **options)
