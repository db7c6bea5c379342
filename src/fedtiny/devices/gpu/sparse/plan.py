"""How a network is computed at its kept weights, whatever the mask and the number of devices."""

from collections.abc import Sequence

from fedtiny.devices.gpu.sparse.lowering import (
    Convolution,
    UnsupportedNetworkError,
    Value,
    gradients,
    lower,
)
from fedtiny.devices.gpu.sparse.taps import backward_reach, forward_reach
from fedtiny.devices.gpu.sparse.tiles import Tile, choose
from fedtiny.graph.ir import Graph, Node
from fedtiny.models.param_spec import ParamSpec

MAX_LINEAR = 1 << 22  # weights of pruned linear layers, which are held in full for every device
WORDS = {"bf16": ("Bf16Pair", 2), "fp32": ("Fp32", 1)}
"""By precision, the word of cuda/words.cuh and how many images it holds."""


class Plan:
    """The steps of a network and their tiles; a network that has none is refused."""

    def __init__(
        self, graph: Graph, param_spec: ParamSpec, batch: int, word: str, limit: int
    ) -> None:
        self.graph = graph
        self.param_spec = param_spec
        self.batch = batch
        self.limit = limit
        self.word, width = WORDS[word]
        if batch % width:
            raise UnsupportedNetworkError(f"--train.batch-size {batch} is odd")
        self.images = batch // width
        self.forward = lower(graph, self._merges)
        self.backward = gradients(self.forward)
        self.tiles = {s: self._fitting(s) for s in self.convolutions}
        linear = sum(size for name, size in param_spec.sizes.items() if name not in self._convolved)
        if linear > MAX_LINEAR:
            raise UnsupportedNetworkError(
                f"its pruned linear layers have {linear:,} weights, more than {MAX_LINEAR:,}"
            )

    @property
    def convolutions(self) -> list[Convolution]:
        """The steps that are convolutions."""
        return [step for step in self.forward.steps if isinstance(step, Convolution)]

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The names of the weights that each of them has."""
        return tuple(
            tuple(f"{node.name}.weight" for node in step.nodes) for step in self.convolutions
        )

    @property
    def _convolved(self) -> set[str]:
        return {name for group in self.groups for name in group}

    def _both(self, nodes: Sequence[Node], source: Value) -> tuple[Tile | None, Tile | None]:
        size, channels = source.buffer.size, source.channels
        number = self.graph.nodes.index(nodes[0])
        out, filters = self.graph.shapes[number][1:], sum(n.channels for n in nodes)
        there = forward_reach(nodes, channels, size, out, self.images)
        back = backward_reach(nodes, filters, size, out, self.images)
        return choose(there, self.limit), choose(back, self.limit)

    def _merges(self, nodes: Sequence[Node], source: Value) -> bool:
        return all(self._both(nodes, source))

    def _fitting(self, step: Convolution) -> tuple[Tile, Tile]:
        there, back = self._both(step.nodes, step.source)
        if there is None or back is None:
            raise UnsupportedNetworkError(
                f"'{step.nodes[0].name}' does not fit into the {self.limit // 1024} kB of shared "
                "memory that a block may have"
            )
        return there, back
