"""One network with many operations side by side, each a branch of its own, for C code."""

from functools import partial
from math import prod

import numpy as np

from fedtiny.data.transforms import Preparation
from fedtiny.export.network import TinyModel
from fedtiny.graph.arrays import Lowered, Norm, Weights
from fedtiny.graph.node import ACTIVATIONS, POOLS, Kind
from fedtiny.graph.operations import OPERATIONS

from ..graph import building

NORMS = (Kind.BATCH_NORM, Kind.GROUP_NORM, Kind.LAYER_NORM)
MOST = 300
DENSITIES = (0.0, 0.05, 0.4, 1.0)


class Branches:
    """A network whose logits are what all of its branches give, one behind the other."""

    def __init__(self, seed, shape):
        self.rng = np.random.default_rng(seed)
        self.net = building.Builder(shape)
        self.shapes = [tuple(shape)]
        self.weights, self.norms, self.parameters = {}, {}, {}
        self.ends = []

    def add(self, kind, *inputs, **fields):
        """A node; gives its number."""
        number = self.net.node(kind, *inputs, **fields)
        node = self.net.nodes[number]
        sources = [self.shapes[i] for i in node.inputs]
        assert not OPERATIONS[kind].misfit(node, sources), (kind, fields, sources)
        self.shapes.append(OPERATIONS[kind].shape(node, sources))
        assert min(self.shapes[-1]) > 0
        return number

    def some(self, low, high):
        """A number from low to high."""
        return int(self.rng.integers(low, high + 1))

    def pair(self, low, high):
        return self.some(low, high), self.some(low, high)

    def divisor(self, of, most=1 << 30):
        """A number that divides this one."""
        return int(self.rng.choice([n for n in range(1, min(of, most) + 1) if of % n == 0]))

    def source(self):
        """The image, or what some step gives that is not large."""
        return int(self.rng.choice([i for i, s in enumerate(self.shapes) if prod(s) < MOST]))

    def floats(self, *shape):
        return self.rng.standard_normal(shape).astype(np.float32)

    def random_weights(self, shape, filters, bias):
        kept = np.flatnonzero(self.rng.random(prod(shape)) < self.rng.choice(DENSITIES))
        values = self.floats(len(kept)) / np.float32(np.sqrt(max(1, len(kept) / shape[0])))
        biases = self.floats(filters) if bias else None
        if len(kept) == prod(shape):
            return Weights(shape, None, values, biases)
        return Weights(shape, kept, values, biases)

    def layer(self, kind, source, channels, **fields):
        """A convolution or linear layer with random weights."""
        name, bias = f"layer{len(self.shapes)}", bool(self.some(0, 1))
        number = self.add(kind, source, name=name, channels=channels, bias=bias, **fields)
        sources = [self.shapes[source]]
        shape = OPERATIONS[kind].tensors(self.net.nodes[number], sources)["weight"]
        self.weights[name] = self.random_weights(shape, channels, bias)
        return number

    def model(self):
        """Every branch is in its result."""
        last = self.add(Kind.FLATTEN, self.ends[0])
        for end in self.ends[1:]:
            last = self.add(Kind.CONCAT, last, self.add(Kind.FLATTEN, end))
        net = Lowered(self.net.graph, self.weights, self.norms, self.parameters)
        normalisation = Preparation(*((0.5,) * self.shapes[0][0] for _ in range(2)))
        return TinyModel(net, normalisation, tuple(map(str, range(self.shapes[last][0]))), {})


def window(b, sides, dilation=(1, 1)):
    """A kernel that fits, with its padding, uneven or not."""
    padding, end = b.pair(0, 2), b.pair(0, 2) if b.some(0, 1) else None
    spans = [side + p + e for side, p, e in zip(sides, padding, end or padding, strict=True)]
    kernel = [min(b.some(1, 4), (n - 1) // d + 1) for n, d in zip(spans, dilation, strict=True)]
    return {"kernel": tuple(kernel), "padding": padding, "padding_end": end, "dilation": dilation}


def convolution(b, *, depthwise=False, stride=None):
    """Any kernel, stride, dilation and groups."""
    source = b.source()
    channels, *sides = b.shapes[source]
    groups = channels if depthwise else b.divisor(channels)
    fields = window(b, sides, b.pair(1, 2))
    filters, stride = groups * b.some(1, 2), stride or b.pair(1, 3)
    return b.layer(Kind.CONVOLUTION, source, filters, groups=groups, stride=stride, **fields)


def depthwise_in_place(b):
    """The same shape comes out, so that planes are written over."""
    source = convolution(b)
    kernel = {"kernel": (3, 3), "padding": (1, 1), "groups": b.shapes[source][0]}
    return b.layer(Kind.CONVOLUTION, source, b.shapes[source][0], **kernel)


def transposed(b):
    """Strides, groups, dilation, and a padding that may cut more off than the kernel adds."""
    source = b.source()
    channels, *sides = b.shapes[source]
    stride, dilation, kernel = b.pair(1, 3), b.pair(1, 2), b.pair(1, 4)
    groups = b.divisor(channels)
    more = tuple(b.some(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True))
    sizes = [
        (side - 1) * s + (k - 1) * d + 1 + m
        for side, s, k, d, m in zip(sides, stride, kernel, dilation, more, strict=True)
    ]
    padding = tuple(b.some(0, min(3, (size - 1) // 2)) for size in sizes)
    fields = {"stride": stride, "dilation": dilation, "kernel": kernel, "padding": padding}
    filters = groups * b.some(1, 2)
    fields |= {"groups": groups, "output_padding": more}
    return b.layer(Kind.TRANSPOSED_CONVOLUTION, source, filters, **fields)


def linear(b):
    """Over the channels, at each place."""
    return b.layer(Kind.LINEAR, b.source(), b.some(1, 5))


def flat_linear(b):
    """Over all values."""
    return b.layer(Kind.LINEAR, b.add(Kind.FLATTEN, b.source()), b.some(1, 5))


def squeeze_and_excite(b):
    """Convolutions of one pixel, whose result multiplies planes."""
    source = b.source()
    channels = b.shapes[source][0]
    hidden = b.layer(Kind.CONVOLUTION, b.add(Kind.ADAPTIVE_POOL, source, size=(1, 1)), 3)
    gate = b.layer(Kind.CONVOLUTION, b.add(Kind.RELU, hidden), channels)
    return b.add(Kind.MULTIPLY, source, b.add(Kind.HARD_SIGMOID, gate))


def shared(b):
    """A layer that runs twice."""
    source = b.source()
    first = b.layer(Kind.CONVOLUTION, source, b.shapes[source][0], kernel=(3, 3), padding=(1, 1))
    node = b.net.nodes[first]
    fields = {"name": node.name, "channels": node.channels, "kernel": (3, 3), "padding": (1, 1)}
    return b.add(Kind.CONVOLUTION, b.add(Kind.RELU, first), bias=node.bias, **fields)


def norm(b, kind):
    source, name = b.source(), f"norm{len(b.shapes)}"
    channels = b.shapes[source][0]
    gamma, beta, mean = b.floats(3, channels)
    statistics = (mean, np.exp(mean)) if kind == Kind.BATCH_NORM else ()
    b.norms[name] = Norm(gamma, beta, *statistics, epsilon=1e-3)
    groups = b.divisor(channels) if kind == Kind.GROUP_NORM else 1
    return b.add(kind, source, name=name, groups=groups, epsilon=1e-3)


def activation(b, kind):
    """Of what a layer gives or the image holds, limited to it or not."""
    source = convolution(b) if b.some(0, 1) else b.source()
    fields = {"slope": 0.2} if kind == Kind.LEAKY_RELU else {}
    return b.add(kind, source, **fields)


def pool(b, kind):
    source = b.source()
    kernel = tuple(min(b.some(1, 4), side) for side in b.shapes[source][1:])
    padding = tuple(b.some(0, side // 2) for side in kernel)
    fields = {"kernel": kernel, "padding": padding, "stride": b.pair(1, 3)}
    fields |= {"ceil": bool(b.some(0, 1)), "count_padding": bool(b.some(0, 1))}
    return b.add(kind, source, **fields)


def adaptive_pool(b):
    return b.add(Kind.ADAPTIVE_POOL, b.source(), size=b.pair(1, 4))


def sum_of_two(b):
    source = b.source()
    other = b.layer(Kind.LINEAR, b.source(), b.shapes[source][0])
    if b.shapes[other] != b.shapes[source]:
        other = b.add(Kind.TANH, source)
    return b.add(Kind.RELU6, b.add(Kind.ADD, other, source))


def product_of_two(b):
    source = b.source()
    return b.add(Kind.MULTIPLY, b.add(Kind.SIGMOID, source), source)


def concat(b):
    """Along any axis, and of one thing twice."""
    source, axis = b.source(), b.some(0, 2)
    first, second = b.add(Kind.SILU, source), b.add(Kind.RELU, source)
    joined = b.add(Kind.CONCAT, first, second, axis=axis)
    joined = b.add(Kind.CONCAT, joined, b.some(first, second), axis=axis)
    read = b.layer(Kind.CONVOLUTION, joined, 3, kernel=(3, 3), padding=(1, 1))
    b.ends.append(b.add(Kind.TANH, first if b.some(0, 1) else joined))
    return read


def cut_out(b):
    source, axis = b.source(), b.some(0, 2)
    start = b.some(0, b.shapes[source][axis] - 1)
    channels = b.some(1, b.shapes[source][axis] - start)
    return b.add(Kind.SLICE, source, axis=axis, start=start, channels=channels)


def reshape(b):
    """Into another shape that is then convolved."""
    source = b.source()
    count = prod(b.shapes[source])
    rows = b.divisor(count, most=8)
    shape = {"channels": rows, "size": (1, count // rows)}
    reshaped = b.add(Kind.RESHAPE, b.add(Kind.RELU, source) if b.some(0, 1) else source, **shape)
    if b.some(0, 1):
        return b.layer(Kind.CONVOLUTION, reshaped, 2, kernel=(1, 3), padding=(0, 1))
    return reshaped


def permute(b):
    return b.add(Kind.PERMUTE, b.source(), order=tuple(map(int, b.rng.permutation(3))))


def upsample(b):
    source = b.source()
    rows, columns = b.shapes[source][1:]
    return b.add(Kind.UPSAMPLE, source, size=(rows * b.some(1, 3), columns * b.some(1, 3)))


def product_of_matrices(b):
    source = b.source()
    turned = b.add(Kind.PERMUTE, source, order=(0, 2, 1))
    return b.add(Kind.SOFTMAX, b.add(Kind.MATMUL, source, turned), axis=2)


def softmax(b):
    return b.add(Kind.SOFTMAX, b.source(), axis=b.some(0, 2))


def scale(b):
    return b.add(Kind.SCALE, b.source(), factor=0.7, offset=-0.3)


def parameter(b):
    source, name = b.source(), f"parameter{len(b.shapes)}"
    channels, *size = b.shapes[source]
    b.parameters[name] = b.floats(channels * prod(size))
    fields = {"channels": channels, "size": tuple(size), "shape": (1, *size, channels)}
    return b.add(Kind.ADD, source, b.add(Kind.PARAMETER, name=name, **fields))


def gelu_by_tanh(b):
    return b.add(Kind.GELU, b.source(), approximate=True)


FORMS = {
    "convolution": convolution,
    "depthwise with a stride": partial(convolution, depthwise=True, stride=(2, 2)),
    "depthwise": partial(convolution, depthwise=True, stride=(1, 1)),
    **{made.__name__: made for made in (depthwise_in_place, transposed, linear, flat_linear)},
    **{made.__name__: made for made in (squeeze_and_excite, shared, adaptive_pool, sum_of_two)},
    **{made.__name__: made for made in (product_of_two, concat, cut_out, reshape, permute)},
    **{made.__name__: made for made in (upsample, product_of_matrices, softmax, scale)},
    **{made.__name__: made for made in (parameter, gelu_by_tanh)},
    **{kind.name: partial(norm, kind=kind) for kind in NORMS},
    **{kind.name: partial(pool, kind=kind) for kind in POOLS},
    **{kind.name: partial(activation, kind=kind) for kind in ACTIVATIONS},
}


def model_of_branches(seed):
    """Every operation once, with settings and sources by chance."""
    rng = np.random.default_rng(seed)
    b = Branches(seed, (int(rng.integers(1, 5)), *map(int, rng.integers(1, 10, 2))))
    names = list(FORMS)
    for name in rng.permutation(names):
        b.ends.append(FORMS[name](b))
    return b.model()
