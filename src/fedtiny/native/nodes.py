"""A graph as the native library takes it: its nodes as C records, and where each tensor is."""

from enum import IntEnum

from fedtiny.graph.ir import LAYERS, Graph, Kind, Node
from fedtiny.native.library import NodeRecord


class Parameter(IntEnum):
    """fedtiny_parameter."""

    WEIGHT = 0
    BIAS = 1
    SCALE = 2
    SHIFT = 3
    RUNNING_MEAN = 4
    RUNNING_VAR = 5
    BATCH_MEAN = 6
    BATCH_VAR = 7
    CORRECTED_VAR = 8


_LAYER = {"weight": Parameter.WEIGHT, "bias": Parameter.BIAS}
_NORM = {
    "weight": Parameter.SCALE,
    "bias": Parameter.SHIFT,
    "running_mean": Parameter.RUNNING_MEAN,
    "running_var": Parameter.RUNNING_VAR,
}


def node_record(node: Node) -> NodeRecord:
    """A node as a C record."""
    first, second = (*node.inputs, -1, -1)[:2]
    return NodeRecord(
        int(node.kind),
        first,
        second,
        node.channels,
        *node.size,
        node.kernel,
        node.stride,
        node.padding,
        node.bias,
        node.count_padding,
        node.epsilon,
        node.momentum,
        node.probability,
    )


def places_of(graph: Graph) -> dict[str, tuple[int, Parameter]]:
    """Which node and parameter each tensor is."""
    holding = (*LAYERS, Kind.BATCH_NORM)
    numbers = {node.name: i for i, node in enumerate(graph.nodes) if node.kind in holding}
    found = {}
    for tensor in graph.tensors:
        name, _, part = tensor.rpartition(".")
        number = numbers[name]
        parts = _NORM if graph.nodes[number].kind is Kind.BATCH_NORM else _LAYER
        found[tensor] = (number, parts[part])
    return found
