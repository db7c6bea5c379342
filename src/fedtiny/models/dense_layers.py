"""Which layers stay dense unless they are asked for: depthwise ones, and squeeze-and-excite."""

from collections.abc import Sequence

from torch import nn

from fedtiny.graph.ir import Graph
from fedtiny.graph.node import Kind
from fedtiny.models import Traced


def dense_by_default(model: nn.Module, layers: Sequence[str], graph: Traced) -> set[str]:
    """The names of a model's depthwise convolutions and of its squeeze-and-excite layers.

    They have few weights, and each of these matters much. Squeeze-and-excite is seen in the graph
    of a network only, by how it is wired and not by a name.
    """
    excites = squeeze_excite(graph) if isinstance(graph, Graph) else set()
    return {name for name in layers if name in excites or _is_depthwise(model.get_submodule(name))}


def _is_depthwise(layer: nn.Module) -> bool:
    """Whether every filter of a convolution reads one channel of several."""
    groups = getattr(layer, "groups", 1)
    return groups > 1 and groups == getattr(layer, "in_channels", 0)


def squeeze_excite(graph: Graph) -> set[str]:
    """The layers between the mean of something over space and its product with that something."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.kind != Kind.MULTIPLY:
            continue
        first, second = node.inputs
        found |= set(_gate(graph, first, second)) | set(_gate(graph, second, first))
    return found


def _gate(graph: Graph, gate: int, gated: int) -> list[str]:
    """The layers on the way from the mean of what is gated to the gate; none on any other way."""
    passed: list[str] = []
    number = gate
    while len(graph.nodes[number].inputs) == 1:
        node = graph.nodes[number]
        if node.kind == Kind.ADAPTIVE_POOL and node.inputs == (gated,):
            return passed
        if number in graph.layers:
            passed.append(node.name)
        (number,) = node.inputs
    return []
