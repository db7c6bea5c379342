"""A network as the few calls that C code makes."""

from collections.abc import Iterator, Sequence

from fedtiny.errors import ExportError
from fedtiny.export.c_planes import with_cuts, with_spreads
from fedtiny.export.c_steps import Program, Step
from fedtiny.graph.ir import LAYERS, Graph, Kind, Node, Shape
from fedtiny.graph.operations import lacking
from fedtiny.graph.passes import for_inference

ACTIONS = {
    Kind.INPUT: "load",
    Kind.CONVOLUTION: "convolve",
    Kind.TRANSPOSED_CONVOLUTION: "convolve",
    Kind.LINEAR: "convolve",
    Kind.BATCH_NORM: "normalise",
    Kind.GROUP_NORM: "group_norm",
    Kind.LAYER_NORM: "layer_norm",
    Kind.RELU: "rectify",
    Kind.RELU6: "rectify",
    Kind.LEAKY_RELU: "leaky_relu",
    Kind.SILU: "silu",
    Kind.HARD_SWISH: "hard_swish",
    Kind.HARD_SIGMOID: "hard_sigmoid",
    Kind.SIGMOID: "sigmoid",
    Kind.TANH: "hyperbolic_tangent",
    Kind.GELU: "gelu",
    Kind.SOFTMAX: "softmax",
    Kind.ADD: "add",
    Kind.MULTIPLY: "multiply",
    Kind.SCALE: "scale",
    Kind.CONCAT: "concatenate",
    Kind.SLICE: "slice",
    Kind.MAX_POOL: "max_pool",
    Kind.MEAN_POOL: "mean_pool",
    Kind.ADAPTIVE_POOL: "adaptive_pool",
    Kind.FLATTEN: "flatten",
    Kind.RESHAPE: "flatten",
    Kind.PERMUTE: "permute",
    Kind.UPSAMPLE: "upsample",
    Kind.MATMUL: "multiply_matrices",
    Kind.PARAMETER: "constant",
}
"""The function of the C runtime for each operation; dropout is left out."""
LIMITS = {Kind.RELU: "RELU", Kind.RELU6: "RELU6"}
CAN_LIMIT = (*LAYERS, Kind.BATCH_NORM, Kind.ADD)


def program(graph: Graph) -> Program:
    """The steps of a network; some convolutions have one before them that arranges planes."""
    if lacks := lacking(graph.nodes, (*ACTIONS, Kind.DROPOUT)):
        raise ExportError(f"the C export lacks {lacks}; ONNX and packed have it")
    graph = for_inference(graph)
    shapes = dict(enumerate(graph.shapes))
    steps = with_spreads(fused(graph), shapes)
    return Program(tuple(with_cuts(list(steps), shapes)), shapes)


def fused(graph: Graph) -> Iterator[Step]:
    """Sums and ReLUs join the layer before them where nothing else reads that layer."""
    values: dict[int, int] = {}

    def only_reader(number: int, *kinds: Kind) -> int | None:
        found = graph.readers[number]
        return found[0] if len(found) == 1 and graph.nodes[found[0]].kind in kinds else None

    for number, (node, sources) in enumerate(graph.read):
        if number in values:
            continue
        action = _action(node, sources)
        joined, reads = [number], [values[i] for i in node.inputs]
        if action.startswith("convolve") and (added := only_reader(number, Kind.ADD)):
            (other,) = (i for i in graph.nodes[added].inputs if i != number)
            if other in values:
                reads.append(values[other])
                joined.append(added)
        limit = LIMITS.get(node.kind, "LINEAR")
        if node.kind in CAN_LIMIT and (relu := only_reader(joined[-1], *LIMITS)):
            limit = LIMITS[graph.nodes[relu].kind]
            joined.append(relu)
        values.update(dict.fromkeys(joined, joined[-1]))
        yield Step(action, node, tuple(reads), joined[-1], limit)


def _action(node: Node, sources: Sequence[Shape]) -> str:
    """The function for a node, which may depend on what it reads."""
    match node.kind:
        case Kind.CONVOLUTION | Kind.LINEAR | Kind.TRANSPOSED_CONVOLUTION:
            return _layer_action(node, sources[0])
        case Kind.MULTIPLY if sources[0] != sources[1]:
            return "multiply_planes"
        case Kind.GELU if node.approximate:
            return "gelu_by_tanh"
    return ACTIONS[node.kind]


def _layer_action(node: Node, source: Shape) -> str:
    if node.groups > 1:
        depthwise = node.groups == source[0] and node.kind == Kind.CONVOLUTION
        strided = node.stride != (1, 1)
        return "convolve_planes" if depthwise and strided else "convolve_groups"
    one_pixel = source[1:] == (1, 1) and (node.kernel, node.padding, node.ends) == ONE_PIXEL
    return "connect" if one_pixel and node.kind != Kind.TRANSPOSED_CONVOLUTION else "convolve"


ONE_PIXEL = ((1, 1), (0, 0), (0, 0))
