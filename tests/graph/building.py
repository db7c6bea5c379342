"""Graphs by hand: each method adds a node and gives its number."""

from types import SimpleNamespace

from fedtiny.graph.ir import Graph, Kind, Node
from fedtiny.graph.operations import OPERATIONS


class Builder:
    """A network under construction.

    >>> net = Builder((1, 8, 8))
    >>> net.linear("fc", net.flatten(net.relu(net.convolution("conv", 0, 4, kernel=(3, 3)))), 10)
    4
    >>> net.graph.shapes[-1]
    (10, 1, 1)
    """

    def __init__(self, shape):
        self.nodes = [Node(Kind.INPUT, channels=shape[0], size=tuple(shape[1:]))]

    @property
    def graph(self):
        """What was built, checked."""
        return Graph(tuple(self.nodes))

    @property
    def unchecked(self):
        """What was built as it is, for what checks it itself."""
        return SimpleNamespace(nodes=tuple(self.nodes))

    def shape(self, number):
        """What a node gives."""
        found = []
        for node in self.nodes[: number + 1]:
            sources = [found[i] for i in node.inputs]
            found.append(OPERATIONS[node.kind].shape(node, sources))
        return found[number]

    def node(self, kind, *inputs, **fields):
        self.nodes.append(Node(kind, inputs, **fields))
        return len(self.nodes) - 1

    def convolution(self, name, source, filters, **fields):
        return self.node(Kind.CONVOLUTION, source, name=name, channels=filters, **fields)

    def linear(self, name, source, neurons, *, bias=True):
        return self.node(Kind.LINEAR, source, name=name, channels=neurons, bias=bias)

    def batch_norm(self, name, source):
        return self.node(Kind.BATCH_NORM, source, name=name)

    def relu(self, source):
        return self.node(Kind.RELU, source)

    def add(self, first, second):
        return self.node(Kind.ADD, first, second)

    def max_pool(self, source, kernel, stride, padding=(0, 0)):
        return self.node(Kind.MAX_POOL, source, kernel=kernel, stride=stride, padding=padding)

    def mean_pool(self, source, kernel, stride, padding=(0, 0), **fields):
        fields = {"kernel": kernel, "stride": stride, "padding": padding, **fields}
        return self.node(Kind.MEAN_POOL, source, **fields)

    def adaptive_pool(self, source, size):
        return self.node(Kind.ADAPTIVE_POOL, source, size=size)

    def flatten(self, source):
        return self.node(Kind.FLATTEN, source)

    def dropout(self, source, probability=0.5):
        return self.node(Kind.DROPOUT, source, probability=probability)
