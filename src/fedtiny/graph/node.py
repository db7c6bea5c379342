"""One step of a network: what it computes and all its settings."""

from dataclasses import dataclass, field
from enum import IntEnum

Pair = tuple[int, int]
Shape = tuple[int, int, int]
"""Channels, rows and columns of one image. What is flat has one row and one column, a signal of
one axis has one row, and the tokens of a transformer are rows whose features are the channels."""


class Kind(IntEnum):
    """What a node computes; the numbers are those of the native library."""

    INPUT = 0
    CONVOLUTION = 1
    LINEAR = 2
    BATCH_NORM = 3
    RELU = 4
    ADD = 5
    MAX_POOL = 6
    MEAN_POOL = 7
    ADAPTIVE_POOL = 8
    FLATTEN = 9
    DROPOUT = 10
    TRANSPOSED_CONVOLUTION = 11
    GROUP_NORM = 12
    LAYER_NORM = 13
    RELU6 = 14
    LEAKY_RELU = 15
    SILU = 16
    HARD_SWISH = 17
    HARD_SIGMOID = 18
    SIGMOID = 19
    TANH = 20
    GELU = 21
    SOFTMAX = 22
    MULTIPLY = 23
    CONCAT = 24
    RESHAPE = 25
    PERMUTE = 26
    UPSAMPLE = 27
    MATMUL = 28
    PARAMETER = 29
    SLICE = 30
    SCALE = 31


CONVOLUTIONS = (Kind.CONVOLUTION, Kind.TRANSPOSED_CONVOLUTION)
LAYERS = (*CONVOLUTIONS, Kind.LINEAR)
NORMS = (Kind.BATCH_NORM, Kind.GROUP_NORM, Kind.LAYER_NORM)
POOLS = (Kind.MAX_POOL, Kind.MEAN_POOL)
WINDOWS = (*CONVOLUTIONS, *POOLS)
ACTIVATIONS = (
    *(Kind.RELU, Kind.RELU6, Kind.LEAKY_RELU, Kind.SILU, Kind.HARD_SWISH, Kind.HARD_SIGMOID),
    *(Kind.SIGMOID, Kind.TANH, Kind.GELU),
)
"""Functions of single values."""


@dataclass(frozen=True)
class Node:
    """One step of a network. `name` is that of the module whose parameters it holds.

    A field that a kind does not use has its default. Nodes of one name share their parameters.
    """

    kind: Kind
    inputs: tuple[int, ...] = ()
    name: str = ""
    channels: int = 0
    size: Pair = (0, 0)
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    bias: bool = False
    count_padding: bool = True
    epsilon: float = 1e-5
    momentum: float = 0.1
    probability: float = 0.0
    groups: int = 1
    """Of a convolution, or of a group norm."""
    dilation: Pair = (1, 1)
    padding_end: Pair | None = None
    """Padding below and to the right of a convolution, if it is not `padding`."""
    output_padding: Pair = (0, 0)
    """Rows and columns that a transposed convolution gives beyond its shape rule."""
    ceil: bool = False
    """Whether a pool has a last window that is not all there."""
    slope: float = 0.01
    """Of a leaky ReLU below zero."""
    approximate: bool = False
    """Whether GELU is worked out by tanh."""
    axis: int = 0
    """Of a softmax, concat or slice: 0 channels, 1 rows, 2 columns."""
    start: int = 0
    """The first value of a slice; it has `channels` of them along `axis`."""
    order: tuple[int, ...] = (0, 1, 2)
    """Which axes of what it reads a permute has as channels, rows and columns."""
    factor: float = 1.0
    offset: float = 0.0
    """What a scale step multiplies with and then adds."""
    shape: tuple[int, ...] = ()
    """Of a parameter in the state dict; the step gives it as (channels, *size)."""
    module: str = field(default="", compare=False)
    """The module that computes it, for messages."""

    @property
    def ends(self) -> Pair:
        """The padding below and to the right."""
        return self.padding if self.padding_end is None else self.padding_end

    @property
    def span(self) -> Pair:
        """How many rows and columns a window spans, with what dilation leaves out."""
        (rows, columns), (down, right) = self.kernel, self.dilation
        return (rows - 1) * down + 1, (columns - 1) * right + 1
