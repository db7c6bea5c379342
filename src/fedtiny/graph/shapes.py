"""Shape rules of the operations, and what is wrong with a node for what it reads."""

from collections.abc import Sequence
from math import prod

from fedtiny.graph.node import CONVOLUTIONS, Kind, Node, Shape

MAX_SIDE = 4096  # of a kernel, a stride, a dilation or a padding
Sources = Sequence[Shape]
Tensors = dict[str, tuple[int, ...]]


def same(node: Node, sources: Sources) -> Shape:
    """As what it reads first."""
    return sources[0]


def stated(node: Node, sources: Sources) -> Shape:
    """As the node says."""
    return node.channels, *node.size


def windowed(node: Node, sources: Sources) -> Shape:
    """A place for each window of a convolution or pool."""
    rows, columns = (_windows(node, axis, side) for axis, side in enumerate(sources[0][1:]))
    return node.channels if node.kind in CONVOLUTIONS else sources[0][0], rows, columns


def _windows(node: Node, axis: int, side: int) -> int:
    """How many windows there are along an axis; in ceil mode each begins on what it reads."""
    padding, stride = node.padding[axis], node.stride[axis]
    left = side + padding + node.ends[axis] - node.span[axis]
    count = (-(-left // stride) if node.ceil else left // stride) + 1
    return count - 1 if node.ceil and (count - 1) * stride >= side + padding else count


def transposed(node: Node, sources: Sources) -> Shape:
    """The image whose windows are the places of what is read."""
    rows, columns = (
        (side - 1) * node.stride[a]
        + node.span[a]
        + node.output_padding[a]
        - node.padding[a]
        - node.ends[a]
        for a, side in enumerate(sources[0][1:])
    )
    return node.channels, rows, columns


def windows_misfit(node: Node, sources: Sources) -> str:
    """Of a convolution or pool."""
    convolution = node.kind in CONVOLUTIONS
    for axis, side in enumerate(sources[0][1:]):
        kernel, padding, end = node.kernel[axis], node.padding[axis], node.ends[axis]
        if not all(1 <= n <= MAX_SIDE for n in (kernel, node.stride[axis], node.dilation[axis])):
            return f"needs kernels and strides of 1 to {MAX_SIDE}"
        if not 0 <= max(padding, end) <= MAX_SIDE or (not convolution and 2 * padding > kernel):
            return "needs a padding that its kernel can bridge"
        if node.kind != Kind.TRANSPOSED_CONVOLUTION and side + padding + end < node.span[axis]:
            return "has a kernel larger than what it reads"
    return _groups_misfit(node, sources) if convolution else _pool_misfit(node)


def _groups_misfit(node: Node, sources: Sources) -> str:
    if node.ceil:
        return "has no ceil mode"
    if node.groups < 1 or sources[0][0] % node.groups or node.channels % node.groups:
        return f"cannot share its channels out among {node.groups} groups"
    pairs = zip(node.output_padding, node.stride, node.dilation, strict=True)
    if any(more and more >= max(sides) for more, *sides in pairs):
        return "has an output padding that is not below its stride or dilation"
    return ""


def _pool_misfit(node: Node) -> str:
    if node.dilation != (1, 1) or node.padding_end is not None:
        return "has no dilation and no uneven padding"
    return ""


def norm_groups_misfit(node: Node, sources: Sources) -> str:
    """Of a group norm."""
    if node.groups < 1 or sources[0][0] % node.groups:
        return f"cannot share {sources[0][0]} channels out among {node.groups} groups"
    return ""


def add_misfit(node: Node, sources: Sources) -> str:
    """A sum adds two of one shape."""
    return "" if sources[0] == sources[1] else "adds two of different shapes"


def multiply_misfit(node: Node, sources: Sources) -> str:
    """A product has a second factor of the same shape, or one value a channel."""
    if sources[1] in (sources[0], (sources[0][0], 1, 1)):
        return ""
    return "multiplies with neither the same shape nor one value a channel"


def axis_misfit(node: Node, sources: Sources) -> str:
    """Of what works along one axis."""
    if not 0 <= node.axis <= 2:
        return "has no such axis"
    others = {shape[: node.axis] + shape[node.axis + 1 :] for shape in sources}
    return "joins two that differ along another axis" if len(others) > 1 else ""


def joined(node: Node, sources: Sources) -> Shape:
    """One behind the other along an axis."""
    return _with_side(sources[0], node.axis, sum(shape[node.axis] for shape in sources))


def sliced(node: Node, sources: Sources) -> Shape:
    """A part along an axis."""
    return _with_side(sources[0], node.axis, node.channels)


def slice_misfit(node: Node, sources: Sources) -> str:
    """A slice lies within what it reads."""
    if trouble := axis_misfit(node, sources):
        return trouble
    within = node.start >= 0 and node.start + node.channels <= sources[0][node.axis]
    return "" if within else "reaches beyond what it reads"


def _with_side(shape: Shape, axis: int, side: int) -> Shape:
    channels, rows, columns = (side if a == axis else old for a, old in enumerate(shape))
    return channels, rows, columns


def reshape_misfit(node: Node, sources: Sources) -> str:
    """The same values in another shape."""
    same_count = prod(sources[0]) == node.channels * prod(node.size)
    return "" if same_count else "gives another number of values than it reads"


def permuted(node: Node, sources: Sources) -> Shape:
    """The axes of what it reads in another order."""
    channels, rows, columns = (sources[0][axis] for axis in node.order)
    return channels, rows, columns


def permute_misfit(node: Node, sources: Sources) -> str:
    """An order names every axis once."""
    return "" if sorted(node.order) == [0, 1, 2] else "needs an order of its three axes"


def upsample_misfit(node: Node, sources: Sources) -> str:
    """Nearest values, each repeated as often as the others."""
    sides = zip(node.size, sources[0][1:], strict=True)
    whole = all(big >= 1 and big % side == 0 for big, side in sides)
    return "" if whole else "must scale by whole numbers"


def product(node: Node, sources: Sources) -> Shape:
    """Matrices (rows, columns), one a channel."""
    return sources[0][0], sources[0][1], sources[1][2]


def product_misfit(node: Node, sources: Sources) -> str:
    """The columns of one are the rows of the other."""
    (batch, _, inner), (other, rows, _) = sources
    return "" if (batch, inner) == (other, rows) else "multiplies matrices that do not fit"


def parameter_misfit(node: Node, sources: Sources) -> str:
    """What a parameter gives is what it holds."""
    fits = len(node.shape) > 0 and prod(node.shape) == node.channels * prod(node.size)
    return "" if fits else "gives another number of values than it holds"


def layer_tensors(node: Node, sources: Sources) -> Tensors:
    """Weight and bias; a weight begins with its filters, a transposed one with its channels."""
    channels = sources[0][0]
    shape: tuple[int, ...] = (node.channels, channels // node.groups, *node.kernel)
    if node.kind == Kind.LINEAR:
        shape = (node.channels, channels)
    if node.kind == Kind.TRANSPOSED_CONVOLUTION:
        shape = (channels, node.channels // node.groups, *node.kernel)
    return {"weight": shape, "bias": (node.channels,)} if node.bias else {"weight": shape}


def norm_tensors(node: Node, sources: Sources) -> Tensors:
    """Scale and shift of each channel; of a batch norm its running statistics too."""
    statistics = ("running_mean", "running_var") if node.kind == Kind.BATCH_NORM else ()
    return dict.fromkeys(("weight", "bias", *statistics), (sources[0][0],))
