"""A network as an immutable graph that is checked when it is made and knows every shape."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from fedtiny.errors import ModelError
from fedtiny.graph.node import LAYERS, WINDOWS, Kind, Node, Pair, Shape
from fedtiny.graph.operations import OPERATIONS, tensor_name
from fedtiny.graph.records import nodes_of

__all__ = ["LAYERS", "LIMITS", "UNTRUSTED", "Graph", "Kind", "Limits", "Node", "Pair", "Shape"]

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Limits:
    """How large a network may be; values are those of one image."""

    nodes: int
    values: int
    """Of what one node gives."""
    layer_weights: int
    """Of one layer, kept or not."""
    weights: int = UNLIMITED
    """Of all layers together."""
    held: int = UNLIMITED
    """Values that all nodes give together."""
    read: int = UNLIMITED
    """Values that the windows of one node read, each as often as it is read."""


LIMITS = Limits(nodes=100_000, values=1 << 26, layer_weights=1 << 30)
"""Of every graph, and of the native library (csrc/limits.h)."""
UNTRUSTED = Limits(
    nodes=10_000,
    values=1 << 24,
    layer_weights=1 << 28,
    weights=1 << 28,
    held=1 << 29,
    read=1 << 27,
)
"""Of packed files, which may come from a stranger."""


@dataclass(frozen=True)
class Graph:
    """A network: its nodes in the order in which they run; the first is the image, the last gives
    the logits. A node reads nodes before it.

    >>> image = Node(Kind.INPUT, channels=1, size=(8, 8))
    >>> Graph((image, Node(Kind.FLATTEN, (0,)), Node(Kind.LINEAR, (1,), "fc", 10))).shapes
    ((1, 8, 8), (64, 1, 1), (10, 1, 1))
    """

    nodes: tuple[Node, ...]
    shapes: tuple[Shape, ...] = field(init=False, repr=False, compare=False)
    """What every node gives for one image."""
    log_softmax: bool = field(default=False, compare=False)
    """Whether the network had a log-softmax behind its logits, which the graph leaves out."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "shapes", _shapes(self.nodes))
        self.check_limits(LIMITS)
        if self.shapes[-1][1:] != (1, 1):
            raise ModelError("the last step must give one logit a class")
        if not self.layers:
            raise ModelError("a network has at least one layer of weights")
        self._check_names()

    def _check_names(self) -> None:
        """A name stands for one layer, however often it runs."""
        known: dict[str, tuple[Node, Any]] = {}
        for node, sources in self.read:
            tensors = OPERATIONS[node.kind].tensors(node, sources)
            first, shapes = known.setdefault(node.name, (node, tensors)) if tensors else (node, {})
            if (tensors and not node.name) or first.kind != node.kind or shapes != tensors:
                raise ModelError("every step that holds weights needs a name of its own")

    def check_limits(self, limits: Limits) -> None:
        """Refuse a network that is larger than this."""
        if not 2 <= len(self.nodes) <= limits.nodes:
            raise ModelError(f"a network has 2 to {limits.nodes} steps, not {len(self.nodes)}")
        values = [prod(shape) for shape in self.shapes]
        for number, count in enumerate(values):
            if count > limits.values:
                raise ModelError(f"step {number} gives {count} values for an image")
        if sum(values) > limits.held:
            raise ModelError(f"its steps give more than {limits.held} values for an image together")
        if self.largest_read > limits.read:
            raise ModelError(f"a step reads more than {limits.read} values of an image")
        weights = [prod(shape) for shape in self.weight_shapes.values()]
        if max(weights, default=0) > limits.layer_weights or sum(weights) > limits.weights:
            most = min(limits.layer_weights, limits.weights)
            raise ModelError(f"a network of more than {most} weights is not taken")

    def check_all_needed(self) -> None:
        """Refuse nodes that do not lead to the result: they would be computed for nothing."""
        idle = set(range(len(self.nodes))) - self.needed
        if idle:
            raise ModelError(f"its result does not need step {min(idle)}")

    @cached_property
    def read(self) -> tuple[tuple[Node, tuple[Shape, ...]], ...]:
        """Every node with the shapes of what it reads."""
        return tuple((n, tuple(self.shapes[i] for i in n.inputs)) for n in self.nodes)

    @cached_property
    def layers(self) -> dict[int, Node]:
        """The convolutions and linear layers, by number."""
        return {i: node for i, node in enumerate(self.nodes) if node.kind in LAYERS}

    @property
    def is_chain(self) -> bool:
        """Whether no step joins what came by several ways, as shortcuts, branches and gates do."""
        return all(len(node.inputs) < 2 for node in self.nodes)

    @cached_property
    def projections(self) -> frozenset[str]:
        """The layers that a shortcut is made of: beside them a way of several leads to a sum."""
        found = set()
        for join in (node for node in self.nodes if node.kind == Kind.ADD):
            last = {number for i in join.inputs if (number := self._layer_before(i)) is not None}
            for layer in last:
                (source,) = self.nodes[layer].inputs
                if any(source in self._before(self.nodes[other].inputs[0]) for other in last):
                    found.add(self.nodes[layer].name)
        return frozenset(found)

    @cached_property
    def normalized(self) -> frozenset[str]:
        """The layers that only batch norm reads, which undoes the scale of their filters."""
        others = {
            node.name
            for number, node in self.layers.items()
            if {self.nodes[reader].kind for reader in self.readers[number]} != {Kind.BATCH_NORM}
        }
        return frozenset(node.name for node in self.layers.values() if node.name not in others)

    def _layer_before(self, number: int) -> int | None:
        """The layer that leads to a node, and nowhere else, by steps that read one thing each."""
        while len(self.readers[number]) == len(self.nodes[number].inputs) == 1:
            if number in self.layers:
                return number
            (number,) = self.nodes[number].inputs
        return None

    def _before(self, number: int) -> set[int]:
        """The numbers of the nodes that lead to one, without itself."""
        found = {*self.nodes[number].inputs}
        for earlier in reversed(range(number)):
            if earlier in found:
                found.update(self.nodes[earlier].inputs)
        return found

    @cached_property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter and statistic, by its name in a state dict."""
        return {
            tensor_name(node, part): shape
            for node, sources in self.read
            for part, shape in OPERATIONS[node.kind].tensors(node, sources).items()
        }

    @cached_property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every layer's weights, by the layer's name."""
        return {n.name: self.tensors[f"{n.name}.weight"] for n in self.layers.values()}

    @cached_property
    def uses(self) -> dict[str, int]:
        """How often one image uses each weight of a layer, in all its runs, by the layer's name."""
        found: dict[str, int] = {}
        for number, node in self.layers.items():
            sources, shape = self.read[number][1], self.shapes[number]
            count = OPERATIONS[node.kind].uses(sources, shape)
            found[node.name] = found.get(node.name, 0) + count
        return found

    @cached_property
    def other_macs(self) -> int:
        """Multiply-adds of one image that no layer's weights are part of."""
        return sum(OPERATIONS[node.kind].macs(sources) for node, sources in self.read)

    @cached_property
    def needed(self) -> frozenset[int]:
        """The numbers of the nodes that lead to the last, and of the image."""
        last = len(self.nodes) - 1
        return frozenset({0, last} | self._before(last))

    @cached_property
    def readers(self) -> list[list[int]]:
        """By node, those that read it, each as often as it does."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for source in node.inputs:
                found[source].append(number)
        return found

    @property
    def last_reads(self) -> dict[int, int]:
        """The last node that needs what each node gives; the result is needed after all."""
        reads = {i: k for k, node in enumerate(self.nodes) for i in (*node.inputs, k)}
        return {**reads, len(self.nodes) - 1: len(self.nodes)}

    @cached_property
    def largest_read(self) -> int:
        """Values of one image that all windows of a node hold, of the node that has the most."""
        windows = zip(self.read, self.shapes, strict=True)
        return max(_values_read(node, sources, shape) for (node, sources), shape in windows)

    def to_plain(self) -> list[dict[str, Any]]:
        """The nodes as records that another process reads."""
        return [asdict(node) for node in self.nodes]

    @classmethod
    def from_plain(cls, plain: Any) -> "Graph":
        """The network that such records say."""
        return cls(nodes_of(plain, training=True, most=LIMITS.nodes))


def _values_read(node: Node, sources: Sequence[Shape], shape: Shape) -> int:
    """Those that all windows of a node hold, or those that it reads with its padding, if more."""
    if node.kind not in WINDOWS:
        return max(1, OPERATIONS[node.kind].macs(sources))
    image, places = sources[0], shape
    if node.kind == Kind.TRANSPOSED_CONVOLUTION:
        image, places = places, image
    padded = prod(
        side + a + b for side, a, b in zip(image[1:], node.padding, node.ends, strict=True)
    )
    return image[0] * max(padded, prod(node.kernel) * prod(places[1:]))


def _shapes(nodes: Sequence[Node]) -> tuple[Shape, ...]:
    """What every node gives, or an error that names the first that does not fit."""
    found: list[Shape] = []
    for number, node in enumerate(nodes):
        operation = OPERATIONS[node.kind]
        sources = [found[i] for i in node.inputs if 0 <= i < number]
        trouble = ""
        if (node.kind == Kind.INPUT) != (number == 0):
            trouble = "is out of place: the first step, and no other, is the input"
        elif not len(sources) == len(node.inputs) == operation.reads:
            trouble = f"must read {operation.reads} steps before it"
        if trouble := trouble or operation.misfit(node, sources):
            raise ModelError(f"step {number} ({node.kind.name.lower()}) {trouble}")
        found.append(operation.shape(node, sources))
        if min(found[-1]) < 1:
            raise ModelError(f"step {number} gives {prod(found[-1])} values for an image")
    return tuple(found)
