"""The graph of a torch network, traced with torch.fx; the one folder here that imports torch."""

from torch import nn

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph
from fedtiny.graph.trace.functions import function
from fedtiny.graph.trace.modules import module
from fedtiny.graph.trace.tracer import recorded
from fedtiny.graph.trace.translation import Translation


def trace(model: nn.Module, shape: tuple[int, ...]) -> Graph:
    """The graph of a network, as it is in eval mode, for images of this shape.

    A shape of two numbers is that of signals (channels, steps), one of one that of rows. Raises an
    error that names the first layer that a graph does not have.
    """
    if not 1 <= len(shape) <= 3:
        raise ModelError(f"a network reads samples of one to three dimensions, not {shape}")

    def translation() -> Translation:
        return Translation(model, shape, module, function)

    training = model.training
    try:
        calls = recorded(model.eval(), lambda node: translation().value_of(node))
        graph = translation().run(calls)
    finally:
        model.train(training)
    state = model.state_dict()
    for name, expected in graph.tensors.items():
        if name not in state or not _fits(tuple(state[name].shape), expected):
            raise ModelError(f"'{name}' does not fit samples of shape {shape}")
    return graph


def _fits(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether a tensor is what the graph has; of a signal's kernel torch leaves out the rows."""
    lines = len(expected) == 4 and expected[2] == 1 and found == (*expected[:2], expected[3])
    return lines or found == expected
