"""Effective density: the kept weights that can carry something of an image to the output."""

from fedtiny.graph.ir import Graph
from fedtiny.graph.reach import Reachability
from fedtiny.sparse.mask import Mask


def reachability(graph: Graph, mask: Mask) -> Reachability:
    """What a mask leaves of the ways through a network; its layers are the prunable ones."""
    kept = {layer: None if mask.is_full(layer) else mask.indices(layer) for layer in mask}
    return Reachability(graph, kept, mask.param_spec.sizes)


def effective_density(graph: Graph, mask: Mask) -> float:
    """The share of the prunable weights that are kept and lie on such a way."""
    return reachability(graph, mask).density
