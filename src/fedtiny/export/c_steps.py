"""The steps of a C program: one call each, by the values that they read and give."""

import re
from dataclasses import dataclass
from math import prod

from fedtiny.graph.ir import Node, Pair, Shape


@dataclass(frozen=True)
class Cut:
    """How planes are cut into `stride` parts along each axis, for convolutions with a stride.

    Each part has `size` rows and columns; the plane has `margin` rows and columns of zeros before
    its own.
    """

    stride: Pair
    margin: Pair
    size: Pair

    @property
    def rows_and_columns(self) -> Pair:
        """Of all parts of a plane, one below the other."""
        return prod(self.stride) * self.size[0], self.size[1]


@dataclass(frozen=True)
class Step:
    """One call: a node with the sum and the ReLU behind it, or what arranges planes for it.

    Values go by the number of the node that gives them. What is added comes second in `reads`.
    """

    action: str
    node: Node
    reads: tuple[int, ...]
    gives: int
    limit: str = "LINEAR"
    """How its values are cut off: LINEAR, RELU or RELU6."""
    cut: Cut | None = None
    scratch: int | None = None
    """A value that only this step needs: the parts of one plane."""

    @property
    def name(self) -> str:
        """What its tables are called in C, such as node5_layer1_0_conv1; no two are the same."""
        return f"node{self.gives}_" + re.sub(r"[^A-Za-z0-9]", "_", self.node.name)

    @property
    def convolves(self) -> bool:
        """Whether it lists kept weights and gathers what they read."""
        return self.action.startswith("convolve")

    @property
    def gathered(self) -> int:
        """The value in which a convolution finds its pixels."""
        return self.reads[0] if self.scratch is None else self.scratch

    @property
    def is_strided(self) -> bool:
        """Whether it is a convolution that skips pixels."""
        return self.convolves and self.node.stride != (1, 1)

    @property
    def is_depthwise(self) -> bool:
        """Whether a plane is read by filters of its own, and by one of them at a time."""
        return self.action == "convolve_groups" and self.node.groups == self.node.channels

    @property
    def may_overwrite(self) -> tuple[int, ...]:
        """Values in whose place the result may be written if it has their shape."""
        if self.convolves:
            others = tuple(value for value in self.reads[1:] if value != self.reads[0])
            return (*others, self.reads[0]) if self.is_depthwise else others
        return self.reads if self.action in PIXEL_BY_PIXEL else ()


PIXEL_BY_PIXEL = (
    *("normalise", "group_norm", "layer_norm", "rectify", "leaky_relu", "silu", "hard_swish"),
    *("hard_sigmoid", "sigmoid", "hyperbolic_tangent", "gelu", "gelu_by_tanh", "softmax"),
    *("add", "multiply", "multiply_planes", "scale"),
)
"""What may write where it reads."""


@dataclass(frozen=True)
class Program:
    """Steps in the order in which they run; the first loads the image."""

    steps: tuple[Step, ...]
    shapes: dict[int, Shape]

    def last_reads(self) -> dict[int, int]:
        """The number of the last step that reads each value; the result is read after all."""
        found = {v: i for i, step in enumerate(self.steps) for v in (*step.reads, step.gives)}
        return {**found, self.steps[-1].gives: len(self.steps)}
