"""Planes as convolutions read them: pixels apart for transposed ones, in parts for a stride."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fedtiny.export.c_steps import Cut, Step
from fedtiny.graph.ir import Kind, Node, Pair, Shape


def with_spreads(steps: Iterable[Step], shapes: dict[int, Shape]) -> Iterator[Step]:
    """A transposed convolution is one of pixels that lie a stride apart, its kernel turned."""
    for step in steps:
        node = step.node
        if node.kind != Kind.TRANSPOSED_CONVOLUTION:
            yield step
            continue
        source, *others = step.reads
        if node.stride != (1, 1):
            channels, *sides = shapes[source]
            rows, columns = ((n - 1) * s + 1 for n, s in zip(sides, node.stride, strict=True))
            value = _added(shapes, (channels, rows, columns))
            yield Step("spread", node, (source,), value)
            source = value
        yield replace(step, node=turned(node), reads=(source, *others))


def turned(node: Node) -> Node:
    """The convolution that a transposed one is; its padding may be below zero."""
    end = zip(node.span, node.ends, node.output_padding, strict=True)
    top, left = (span - 1 - cut for span, cut in zip(node.span, node.padding, strict=True))
    bottom, right = (span - 1 - cut + more for span, cut, more in end)
    plain = replace(node, kind=Kind.CONVOLUTION, stride=(1, 1), output_padding=(0, 0))
    return replace(plain, padding=(top, left), padding_end=(bottom, right))


def with_cuts(steps: Sequence[Step], shapes: dict[int, Shape]) -> Iterator[Step]:
    """A convolution with a stride reads parts of planes; those of one stride share them."""
    groups: dict[tuple[int, Pair], list[Step]] = {}
    for step in steps:
        if step.is_strided and step.action != "convolve_planes":
            groups.setdefault((step.reads[0], step.node.stride), []).append(step)
    values: dict[tuple[int, Pair], int] = {}
    for step in steps:
        if not step.is_strided:
            yield step
            continue
        if step.action == "convolve_planes":
            cut = _cut([step], shapes)
            yield replace(step, cut=cut, scratch=_added(shapes, (1, *cut.rows_and_columns)))
            continue
        source, *others = step.reads
        group = source, step.node.stride
        cut = _cut(groups[group], shapes)
        if group not in values:
            values[group] = _added(shapes, (shapes[source][0], *cut.rows_and_columns))
            yield Step("split", step.node, (source,), values[group], cut=cut)
        yield replace(step, reads=(values[group], *others), cut=cut)


def _added(shapes: dict[int, Shape], shape: Shape) -> int:
    """The number of a value that no node gives."""
    shapes[len(shapes)] = shape
    return len(shapes) - 1


def _cut(readers: Sequence[Step], shapes: dict[int, Shape]) -> Cut:
    """Parts that are large enough for all convolutions that read them."""
    stride = readers[0].node.stride
    margins, sizes = [], []
    for axis in (0, 1):
        margin = max(step.node.padding[axis] for step in readers)
        side = shapes[readers[0].reads[0]][1 + axis]
        needed = [(side + margin - 1) // stride[axis] + 1]
        for step in readers:
            last_tap = step.node.span[axis] - 1 - step.node.padding[axis] + margin
            needed.append(shapes[step.gives][1 + axis] + last_tap // stride[axis])
        margins.append(margin)
        sizes.append(max(needed))
    return Cut(stride, (margins[0], margins[1]), (sizes[0], sizes[1]))
