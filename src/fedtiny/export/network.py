"""A trained network as it is shipped, with all that goes with it; NumPy only, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtiny.data.images import DataSet, own_shape
from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError
from fedtiny.graph.arrays import Lowered, Norm, Weights
from fedtiny.graph.ir import Graph, Kind, Node, Shape
from fedtiny.graph.node import NORMS
from fedtiny.graph.operations import OPERATIONS
from fedtiny.graph.passes import fold_batch_norm, for_inference
from fedtiny.graph.passes import remove_dead as without_dead
from fedtiny.sparse.theta import Theta

Values = Literal["fp32", "fp16", "int8"]
Activations = Literal["int8"]
Reads = Literal["bytes", "floats", "values"]
"""What a model was trained on: images of bytes or of floats, or sequences and tables."""
Batch = TypeVar("Batch", bound=Any)
LARGEST_INT8 = 127
MAX_CLAIMED = 1 << 53  # bytes that a card may claim: a larger number is no exact float


@dataclass(frozen=True)
class QParams:
    """What int8 activations stand for: value = scale * (integer - zero_point)."""

    scale: float
    zero_point: int


@dataclass(frozen=True, eq=False)
class TinyModel:
    """A network with what is needed to use it: how pixels are normalised, and its classes' names.

    The card says where it comes from: method, density, accuracy, data, config, version. `held` is
    how the file it was read from holds its weights.
    """

    net: Lowered
    normalisation: Preparation
    classes: tuple[str, ...]
    card: Mapping[str, Any]
    held: Values = "fp32"
    activations: Mapping[int, QParams] | None = None
    """How steps hold what they give in int8, by the number of the node; None: in float32."""
    reads: Reads = "bytes"

    @property
    def shape(self) -> Shape:
        """Channels, rows and columns of an image."""
        return self.net.graph.shapes[0]

    @property
    def dense_bytes(self) -> int:
        """Bytes of the model before pruning, as its card tells them, or else of its full shape."""
        claimed = self.card.get("dense_bytes")
        if type(claimed) is int and 0 < claimed < MAX_CLAIMED:
            return claimed
        return 4 * sum(map(prod, self.net.graph.weight_shapes.values()))


def reads_of(data: DataSet) -> Reads:
    """What a model of these data reads."""
    if data.layout != "NCHW":
        return "values"
    return "bytes" if data.train.images.dtype == np.uint8 else "floats"


def as_samples(batch: Batch, expected: Shape, reads: Reads, *, look: bool = True) -> Batch:
    """A batch of arrays or tensors as the training samples were held: bytes, or floats.

    Refuses what would mean something else. Without `look`, values are not seen.
    """
    images: Batch = as_images(batch, expected)
    is_float = "float" in str(images.dtype)
    if reads == "bytes" and look and len(images) and not str(images.dtype).endswith("uint8"):
        most = 1 if is_float else 255
        if not 0 <= images.min() <= images.max() <= most:
            raise ExportError(
                "the model was trained on images of bytes, and takes whole numbers from 0 to 255, "
                "or floats from 0 to 1"
            )
    if is_float:
        return images
    if reads == "floats":
        raise ExportError(
            "the model was trained on images of floats; scale whole numbers as in training and "
            "cast them: images.astype(numpy.float32)"
        )
    is_array, is_bytes = isinstance(images, np.ndarray), reads == "bytes"
    converted: Batch
    if is_array:
        converted = images.astype(np.uint8 if is_bytes else np.float32)
    else:
        converted = images.byte() if is_bytes else images.float()
    return converted


def as_images(batch: Batch, expected: Shape) -> Batch:
    """A batch as [N, C, H, W], of signals [N, C, T] and rows [N, F] too, channels first or last.

    Refuses one that the model was not trained for.
    """
    found = tuple(batch.shape[1:])
    channels, rows, columns = expected
    lines = {1: (channels, columns)}.get(rows), {(1, 1): (channels,)}.get((rows, columns))
    if found != expected and found not in lines:
        if found not in ((rows, columns, channels), {1: (columns, channels)}.get(rows)):
            raise ExportError(
                f"the model takes samples of shape {own_shape(expected)}, not {found}"
            )
        batch = batch.swapaxes(1, -1)
        batch = batch.swapaxes(2, 3) if len(found) == 3 else batch
    reshaped: Batch = batch.reshape((len(batch), *expected))
    return reshaped


def lower(graph: Graph, theta: Theta, *, fold: bool, remove_dead: bool) -> Lowered:
    """The network as it is shipped: the same logits from fewer steps and channels.

    `fold` makes batch norm part of the layer before it. `remove_dead` takes out channels that
    nothing reads, weights that only add a constant (which joins a bias), and those that only read
    padding.
    """
    graph = for_inference(graph)
    shapes, nodes = graph.weight_shapes, graph.nodes
    net = Lowered(
        graph,
        {node.name: _weights(node, shapes[node.name], theta) for node in graph.layers.values()},
        {node.name: _norm(node, theta) for node in nodes if node.kind in NORMS},
        {n.name: theta.tensor(n.name).reshape(-1) for n in nodes if n.kind == Kind.PARAMETER},
    )
    net = fold_batch_norm(net) if fold else net
    return without_dead(net) if remove_dead else net


def _weights(node: Node, shape: tuple[int, ...], theta: Theta) -> Weights:
    name = f"{node.name}.weight"
    bias = theta.tensor(f"{node.name}.bias") if node.bias else None
    if name in theta.param_spec.dense:
        return Weights(shape, None, theta.tensor(name).reshape(-1), bias)
    indices = None if theta.mask.is_full(name) else theta.mask.indices(name).astype(np.int64)
    return Weights(shape, indices, theta.kept(name), bias)


def _norm(node: Node, theta: Theta) -> Norm:
    parts = OPERATIONS[node.kind].tensors(node, [(1, 1, 1)])
    return Norm(*(theta.tensor(f"{node.name}.{part}") for part in parts), epsilon=node.epsilon)


def quantise(weights: Weights) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Weights in eight bits, and the scale of each filter that they are multiplied by.

    They are the nearest whole numbers from -127 to 127, the largest weight of a filter.
    """
    filters = weights.filters
    largest = np.zeros(weights.shape[0], dtype=np.float32)
    np.maximum.at(largest, filters, np.abs(weights.values))
    scales = np.where(largest > 0, largest / np.float32(LARGEST_INT8), np.float32(1))
    values = np.rint(weights.values / scales[filters]).clip(-LARGEST_INT8, LARGEST_INT8)
    return values.astype(np.int8), scales.astype(np.float32)


def filters_first(node: Node, weights: Weights) -> Weights:
    """A layer's weights as those of a convolution.

    Those of a transposed one are turned; doing so twice gives what was there.
    """
    if node.kind != Kind.TRANSPOSED_CONVOLUTION:
        return weights
    channels, filters, rows, columns = weights.shape
    split = (node.groups, channels // node.groups, filters, rows, columns)
    group, channel, filter, row, column = np.unravel_index(weights.positions, split)
    turned = (group * filters + filter, channel, rows - 1 - row, columns - 1 - column)
    shape = turned_shape(node, weights.shape)
    indices = np.ravel_multi_index(turned, shape)
    order = np.argsort(indices)
    kept = None if len(order) == weights.size else indices[order]
    return Weights(shape, kept, weights.values[order], weights.bias)


def turned_shape(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that `filters_first` gives weights of this one."""
    if node.kind != Kind.TRANSPOSED_CONVOLUTION:
        return shape
    channels, filters, *kernel = shape
    return (node.groups * filters, channels // node.groups, *kernel)
