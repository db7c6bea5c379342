"""A torch tensor as a view of what a node gives: which of its values lie along which axis.

Reshaping, permuting and indexing of tensors are worked out on views; a node is only made where the
values themselves must move.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from fedtiny.graph.node import Shape

BATCH = -1  # the axis of images
IMAGES = (1 << 31) - 1  # how many there are, as long as nobody knows: a prime, which nothing splits


class Part(NamedTuple):
    """A share of an axis of a node: so many steps of `stride` values along it."""

    axis: int
    size: int
    stride: int


Axis = tuple[Part, ...]
"""An axis of a tensor, its slowest part first; one of size 1 has no parts."""
ALL_IMAGES: Axis = (Part(BATCH, IMAGES, 1),)


@dataclass(frozen=True)
class View:
    """A tensor: the number of a node, and by axis the parts of what it gives."""

    node: int
    axes: tuple[Axis, ...]
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Zeros around the rows and columns: left, right, top, bottom."""
    expanded: bool = False
    """Whether its axes of size 1 stand for larger ones."""

    @classmethod
    def of(cls, node: int, shape: Shape, places: Sequence[int]) -> "View":
        """A tensor of images whose axes are these of a node."""
        return cls(node, (ALL_IMAGES, *(whole(axis, shape[axis]) for axis in places)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        sizes = [prod(part.size for part in axis) for axis in self.axes]
        left, right, top, bottom = self.pad
        if any(self.pad):
            sizes[-1] += left + right
            sizes[-2] += top + bottom
        return tuple(sizes)

    @property
    def is_flat(self) -> bool:
        """Whether it has one row of values an image."""
        return len(self.axes) == 2 and self.axes[0] in (ALL_IMAGES, ())

    def place(self, axis: int, shape: Shape) -> int | None:
        """The axis of the node that an axis of the tensor is, if it is one whole."""
        parts = self.axes[axis]
        axis = parts[0].axis if parts else BATCH
        return axis if axis != BATCH and parts == whole(axis, shape[axis]) else None

    def permuted(self, order: Iterable[int]) -> "View":
        """With the axes in another order."""
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def reshaped(self, shape: Sequence[int]) -> "View | None":
        """In another shape; nothing where that would need values of no single part."""
        left = list(joined([part for axis in self.axes for part in axis]))
        axes = []
        for size in shape:
            taken = []
            while size > 1 and left:
                part = left.pop(0)
                if size % part.size == 0:
                    taken.append(part)
                    size //= part.size
                elif part.size % size == 0:
                    rest = part.size // size
                    taken.append(Part(part.axis, size, part.stride * rest))
                    left.insert(0, Part(part.axis, rest, part.stride))
                    size = 1
                else:
                    return None
            if size != 1:
                return None
            axes.append(joined(taken))
        return None if left else replace(self, axes=tuple(axes))


def whole(axis: int, size: int) -> Axis:
    """All of an axis of a node."""
    return (Part(axis, size, 1),) if size > 1 else ()


def joined(parts: Iterable[Part]) -> Axis:
    """The same with neighbors along one axis made one."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if last and last.axis == part.axis and last.stride == part.size * part.stride:
            found[-1] = Part(part.axis, last.size * part.size, part.stride)
        else:
            found.append(part)
    return tuple(found)


@dataclass(frozen=True)
class Move:
    """How values move to another order: as `sizes`, by `order`."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]


def move(wanted: Sequence[Axis]) -> Move:
    """How parts that lie in the order of their node come into a wanted one.

    Parts that are neighbors before and after are one.
    """
    target = [part for axis in wanted for part in axis]
    source = sorted(target, key=lambda part: (part.axis, -part.stride))
    ranks = [source.index(part) for part in target]
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] + 1 == rank:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    ordered = sorted(runs)
    sizes = tuple(prod(source[rank].size for rank in run) for run in ordered)
    return Move(sizes, tuple(ordered.index(run) for run in runs))
