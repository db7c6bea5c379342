"""A network described as a list of plain records: what the native library runs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any

from fedtiny.errors import ModelError

Pair = tuple[int, int]
Shape = tuple[int, ...]


class Kind(IntEnum):
    """What a node computes."""

    INPUT = 0
    CONVOLUTION = 1
    LINEAR = 2
    BATCH_NORM = 3
    RELU = 4
    ADD = 5
    MAX_POOL = 6
    MEAN_POOL = 7
    ADAPTIVE_POOL = 8
    FLATTEN = 9
    DROPOUT = 10


@dataclass(frozen=True)
class Node:
    """One step of a network. `name` is that of the module whose parameters it holds."""

    kind: Kind
    inputs: tuple[int, ...] = ()
    name: str = ""
    channels: int = 0
    size: Pair = (0, 0)
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    bias: bool = False
    count_padding: bool = True
    epsilon: float = 1e-5
    momentum: float = 0.1
    probability: float = 0.0


class Graph:
    """A network under construction: each method adds a node and gives its number.

    >>> net = Graph((1, 8, 8))
    >>> features = net.relu(net.batch_norm("bn", net.convolution("conv", 0, 4, kernel=(3, 3))))
    >>> net.linear("fc", net.flatten(net.adaptive_pool(features, (1, 1))), 10)
    6
    >>> [node.kind.name for node in net.nodes][:3]
    ['INPUT', 'CONVOLUTION', 'BATCH_NORM']
    """

    def __init__(self, shape: Shape) -> None:
        if len(shape) != 3:
            raise ModelError(f"a network reads images of (channels, height, width), not {shape}")
        self.nodes = [Node(Kind.INPUT, channels=shape[0], size=(shape[1], shape[2]))]

    def add_node(self, node: Node) -> int:
        """Append a node as it is."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def convolution(
        self,
        name: str,
        source: int,
        filters: int,
        *,
        kernel: Pair,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        bias: bool = False,
    ) -> int:
        """Cross-correlation, as torch's Conv2d."""
        return self.add_node(
            Node(
                Kind.CONVOLUTION,
                (source,),
                name,
                channels=filters,
                kernel=kernel,
                stride=stride,
                padding=padding,
                bias=bias,
            )
        )

    def linear(self, name: str, source: int, neurons: int, *, bias: bool = True) -> int:
        """A linear layer over something flat."""
        return self.add_node(Node(Kind.LINEAR, (source,), name, channels=neurons, bias=bias))

    def batch_norm(
        self, name: str, source: int, *, epsilon: float = 1e-5, momentum: float = 0.1
    ) -> int:
        """Batch norm over channels."""
        return self.add_node(
            Node(Kind.BATCH_NORM, (source,), name, epsilon=epsilon, momentum=momentum)
        )

    def relu(self, source: int) -> int:
        """max(x, 0)."""
        return self.add_node(Node(Kind.RELU, (source,)))

    def add(self, first: int, second: int) -> int:
        """The sum of two nodes of one shape."""
        return self.add_node(Node(Kind.ADD, (first, second)))

    def max_pool(self, source: int, kernel: Pair, stride: Pair, padding: Pair = (0, 0)) -> int:
        """The largest value of each window."""
        return self.add_node(
            Node(Kind.MAX_POOL, (source,), kernel=kernel, stride=stride, padding=padding)
        )

    def mean_pool(
        self,
        source: int,
        kernel: Pair,
        stride: Pair,
        padding: Pair = (0, 0),
        *,
        count_padding: bool = True,
    ) -> int:
        """The mean of each window."""
        return self.add_node(
            Node(
                Kind.MEAN_POOL,
                (source,),
                kernel=kernel,
                stride=stride,
                padding=padding,
                count_padding=count_padding,
            )
        )

    def adaptive_pool(self, source: int, size: Pair) -> int:
        """Means over windows that cut the image into this many rows and columns."""
        return self.add_node(Node(Kind.ADAPTIVE_POOL, (source,), size=size))

    def flatten(self, source: int) -> int:
        """All values of an image in one row."""
        return self.add_node(Node(Kind.FLATTEN, (source,)))

    def dropout(self, source: int, probability: float = 0.5) -> int:
        """Zero a share of the values in training."""
        return self.add_node(Node(Kind.DROPOUT, (source,), probability=probability))

    def to_plain(self) -> list[dict[str, Any]]:
        """The nodes as records that any format can carry."""
        return [asdict(node) for node in self.nodes]

    @classmethod
    def from_plain(cls, records: Sequence[Mapping[str, Any]]) -> "Graph":
        """The network that such records describe."""
        made = cls.__new__(cls)
        made.nodes = [_node(record) for record in records]
        return made


def _node(record: Mapping[str, Any]) -> Node:
    known = {field.name for field in fields(Node)}
    if not record.keys() <= known or "kind" not in record:
        raise ModelError(f"a node cannot have these fields: {sorted(record.keys() - known)}")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
    return Node(**{**values, "kind": Kind(values["kind"])})
