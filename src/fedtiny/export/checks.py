"""Whether steps fit together: the shape of what each gives, or an error that names one."""

from collections.abc import Sequence
from math import isfinite, prod

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph, Kind, Node, Pair
from fedtiny.native.effective import LAYERS, WINDOWS

Shape = tuple[int, int, int]
NAMED = (*LAYERS, Kind.BATCH_NORM)
MAX_STEPS = 10_000
MAX_VALUES = 1 << 24  # of one image, in what a step gives
MAX_HELD = 1 << 29  # of one image, in what all steps give together
MAX_WEIGHTS = 1 << 28  # of a network, kept or not
MAX_READ = 1 << 27  # values of an image that the windows of a step read, each as often as it is
MAX_SIDE = 4096  # of a kernel, stride or padding


def shapes(graph: Graph) -> list[Shape]:
    """Channels, rows and columns of what every step gives; what is flat has one row and column."""
    nodes = graph.nodes
    if not 2 <= len(nodes) <= MAX_STEPS:
        raise ModelError(f"a network has 2 to {MAX_STEPS} steps, not {len(nodes)}")
    found: list[Shape] = []
    for number, node in enumerate(nodes):
        trouble = _misplaced(number, node) or _unfit(node, [found[i] for i in node.inputs])
        if trouble:
            raise ModelError(f"step {number} ({node.kind.name.lower()}) {trouble}")
        found.append(_shape(node, found))
        if not 1 <= prod(found[-1]) <= MAX_VALUES:
            raise ModelError(f"step {number} gives {prod(found[-1])} values for an image")
    if sum(map(prod, found)) > MAX_HELD:
        raise ModelError(f"its steps give more than {MAX_HELD} values for an image together")
    if largest_read(graph, found) > MAX_READ:
        raise ModelError(f"a step reads more than {MAX_READ} values of an image")
    if found[-1][1:] != (1, 1):
        raise ModelError("the last step must give one logit a class")
    if not any(node.kind in LAYERS for node in nodes):
        raise ModelError("a network has at least one layer of weights")
    _check_names([node.name for node in nodes if node.kind in NAMED])
    return found


def largest_read(graph: Graph, given: list[Shape]) -> int:
    """Values of one image that all windows of a step hold, of the step that has the most."""
    most = 1
    for node, (_, rows, columns) in zip(graph.nodes, given, strict=True):
        if node.kind in WINDOWS:
            most = max(most, given[node.inputs[0]][0] * prod(node.kernel) * rows * columns)
    return most


def check_all_needed(nodes: Sequence[Node]) -> None:
    """Refuse steps that do not lead to the result: they would be computed for nothing."""
    idle = set(range(len(nodes))) - needed(nodes)
    if idle:
        raise ModelError(f"its result does not need step {min(idle)}")


def needed(nodes: Sequence[Node]) -> set[int]:
    """The numbers of the nodes that lead to the last, and of the input."""
    found = {0, len(nodes) - 1}
    for number in reversed(range(len(nodes))):
        if number in found:
            found.update(nodes[number].inputs)
    return found


def _check_names(names: list[str]) -> None:
    if "" in names or len(set(names)) < len(names):
        raise ModelError("every step that holds weights needs a name of its own")


def weight_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The shape of every layer's weights, by its name."""
    given, wanted = shapes(graph), {}
    for node in graph.nodes:
        if node.kind in LAYERS:
            inputs = given[node.inputs[0]][0]
            kernel = node.kernel if node.kind == Kind.CONVOLUTION else ()
            wanted[node.name] = (node.channels, inputs, *kernel)
    if sum(map(prod, wanted.values())) > MAX_WEIGHTS:
        raise ModelError(f"a network of more than {MAX_WEIGHTS} weights is not taken")
    return wanted


def norm_sizes(graph: Graph) -> dict[str, int]:
    """The number of channels of every batch norm, by its name."""
    pairs = zip(graph.nodes, shapes(graph), strict=True)
    return {node.name: shape[0] for node, shape in pairs if node.kind == Kind.BATCH_NORM}


def _misplaced(number: int, node: Node) -> str:
    """What is wrong with where a step stands and what it reads, or nothing."""
    wanted = {Kind.INPUT: 0, Kind.ADD: 2}.get(node.kind, 1)
    if (node.kind == Kind.INPUT) != (number == 0):
        return "is out of place: the first step, and no other, is the input"
    if len(node.inputs) != wanted or not all(0 <= i < number for i in node.inputs):
        return f"must read {wanted} steps before it"
    return ""


def _unfit(node: Node, read: list[Shape]) -> str:
    """What is wrong with a step for what it reads, or nothing."""
    if node.kind == Kind.ADD and read[0] != read[1]:
        return "adds two of different shapes"
    if node.kind == Kind.LINEAR and read[0][1:] != (1, 1):
        return "must read something flat"
    if node.kind == Kind.BATCH_NORM and not (isfinite(node.epsilon) and node.epsilon > 0):
        return "needs an epsilon above 0"
    return _unfit_windows(node, read[0][1:]) if node.kind in WINDOWS else ""


def _unfit_windows(node: Node, size: Pair) -> str:
    for kernel, stride, padding, side in zip(
        node.kernel, node.stride, node.padding, size, strict=True
    ):
        if not (1 <= kernel <= MAX_SIDE and 1 <= stride <= MAX_SIDE):
            return f"needs kernels and strides of 1 to {MAX_SIDE}"
        if not 0 <= padding <= MAX_SIDE or (node.kind != Kind.CONVOLUTION and 2 * padding > kernel):
            return "needs a padding that its kernel can bridge"
        if side + 2 * padding < kernel:
            return "has a kernel larger than what it reads"
    return ""


def _shape(node: Node, given: list[Shape]) -> Shape:
    if node.kind == Kind.INPUT:
        return node.channels, *node.size
    channels, rows, columns = given[node.inputs[0]]
    if node.kind in WINDOWS:
        rows, columns = (
            (side + 2 * padding - kernel) // stride + 1
            for side, kernel, stride, padding in zip(
                (rows, columns), node.kernel, node.stride, node.padding, strict=True
            )
        )
    if node.kind == Kind.ADAPTIVE_POOL:
        rows, columns = node.size
    if node.kind == Kind.FLATTEN:
        return channels * rows * columns, 1, 1
    return node.channels if node.kind in LAYERS else channels, rows, columns
