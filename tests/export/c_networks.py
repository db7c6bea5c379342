"""Random small networks of every kind of step, for C code."""

import numpy as np
from hypothesis import strategies as st

from fedtiny.data.transforms import Preparation
from fedtiny.export.network import TinyModel
from fedtiny.graph.arrays import Lowered, Norm, Weights
from fedtiny.graph.operations import OPERATIONS

from ..graph import building

DENSITIES = (0.0, 0.03, 0.3, 1.0)
KINDS = ("convolution", "batch_norm", "relu", "add", "max_pool", "mean_pool", "dropout")


class Builder:
    """A network that grows by whatever is drawn."""

    def __init__(self, draw):
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.channels = [draw(st.integers(1, 3))]
        shape = (self.channels[0], draw(st.integers(1, 14)), draw(st.integers(1, 14)))
        self.net, self.weights, self.norms = building.Builder(shape), {}, {}

    def size(self, number):
        shapes = []
        for node in self.net.nodes:
            shapes.append(OPERATIONS[node.kind].shape(node, [shapes[i] for i in node.inputs]))
        return shapes[number][1:]

    def grow(self):
        """Add one step that reads a step at hand."""
        source = self.draw(st.integers(max(0, len(self.channels) - 3), len(self.channels) - 1))
        kind = self.draw(st.sampled_from(KINDS))
        channels = getattr(self, kind)(source, f"step{len(self.channels)}")
        self.channels.append(channels or self.channels[source])

    def window(self, source, most_padding):
        kernel = tuple(self.draw(st.integers(1, min(4, side))) for side in self.size(source))
        padding = tuple(self.draw(st.integers(0, most_padding(k))) for k in kernel)
        stride = tuple(self.draw(st.integers(1, 3)) for _ in kernel)
        return kernel, stride, padding

    def convolution(self, source, name):
        filters = self.draw(st.integers(1, 6))
        kernel, stride, padding = self.window(source, lambda _: 3)
        bias = self.draw(st.booleans())
        self.net.convolution(
            name, source, filters, kernel=kernel, stride=stride, padding=padding, bias=bias
        )
        self.weights[name] = self.random((filters, self.channels[source], *kernel), bias)
        return filters

    def random(self, shape, bias):
        size = int(np.prod(shape))
        values = self.rng.standard_normal(size).astype(np.float32)
        kept = np.flatnonzero(self.rng.random(size) < self.draw(st.sampled_from(DENSITIES)))
        biases = self.rng.standard_normal(shape[0]).astype(np.float32) if bias else None
        if self.draw(st.integers(0, 3)) == 0 or len(kept) == size:
            return Weights(shape, None, values, biases)
        return Weights(shape, kept, values[kept], biases)

    def batch_norm(self, source, name):
        self.net.batch_norm(name, source)
        gamma, beta, mean = self.rng.standard_normal((3, self.channels[source])).astype(np.float32)
        self.norms[name] = Norm(gamma, beta, mean, np.exp(mean), epsilon=1e-5)

    def relu(self, source, _):
        self.net.relu(source)

    def dropout(self, source, _):
        self.net.dropout(source)

    def add(self, source, _):
        alike = [
            i
            for i, channels in enumerate(self.channels)
            if (channels, self.size(i)) == (self.channels[source], self.size(source))
        ]
        self.net.add(source, self.draw(st.sampled_from(alike)))

    def max_pool(self, source, _):
        self.net.max_pool(source, *self.window(source, lambda kernel: kernel // 2))

    def mean_pool(self, source, _):
        window = self.window(source, lambda kernel: kernel // 2)
        self.net.mean_pool(source, *window, count_padding=self.draw(st.booleans()))

    def finish(self):
        """The head: maybe a pool, and one or two linear layers."""
        last = len(self.channels) - 1
        if self.draw(st.booleans()):
            last = self.net.adaptive_pool(last, (self.draw(st.integers(1, 3)), 2))
        inputs = self.channels[-1] * int(np.prod(self.size(last)))
        last = self.net.flatten(last)
        if self.draw(st.booleans()):
            last = self.net.relu(self.net.linear("hidden", last, 5))
            self.weights["hidden"] = self.random((5, inputs), True)
            inputs = 5
        self.net.linear("head", last, 4, bias=False)
        self.weights["head"] = self.random((4, inputs), False)
        return Lowered(self.net.graph, self.weights, self.norms)


@st.composite
def networks(draw):
    """A model of up to eight steps and a head; pools have no window in padding alone."""
    builder = Builder(draw)
    for _ in range(draw(st.integers(0, 8))):
        builder.grow()
    channels = builder.channels[0]
    normalisation = Preparation((0.25, 0.5, 0.4)[:channels], (0.3, 0.2, 0.25)[:channels])
    return TinyModel(builder.finish(), normalisation, ("a", "b", "c", "d"), {})
