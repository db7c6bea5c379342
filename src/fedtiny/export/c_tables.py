"""A layer's weights as the tables that C code reads: kept weights and the steps between them."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError
from fedtiny.export.c_text import Declarations
from fedtiny.export.network import Values, filters_first, quantise
from fedtiny.graph.arrays import Lowered, Weights

MAX_ESCAPE = 255
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Table:
    """A layer's weights as `runtime/layer.c` reads them."""

    inputs: int
    taps: int
    steps: NDArray[np.uint8] | None
    escape: int
    weights: Array
    scales: NDArray[np.float32] | None
    biases: NDArray[np.float32] | None
    max_kept: int


def table(weights: Weights, values: str) -> Table:
    """The table of a layer, sparse or complete, whichever is smaller."""
    if not np.isfinite(weights.values).all():
        raise ExportError("the model has a weight that is no finite number; it cannot be exported")
    numbers: Array = weights.values
    scales = None
    if values == "int8":
        numbers, scales = quantise(weights)
    places, numbers = weights.positions[numbers != 0], numbers[numbers != 0]
    inputs, taps = prod(weights.shape[1:]), prod(weights.shape[2:])
    escape, steps, read = _coded(places, weights.size)
    if steps.nbytes + len(read) * numbers.itemsize < weights.size * numbers.itemsize:
        most = int(np.bincount(read // inputs, minlength=1).max())
        kept = _spread(numbers, np.searchsorted(read, places), len(read))
        return Table(inputs, taps, steps, escape, kept, scales, weights.bias, most)
    complete = _spread(numbers, places, weights.size)
    return Table(inputs, taps, None, 0, complete, scales, weights.bias, inputs)


def _spread(numbers: Array, places: NDArray[np.int64], size: int) -> Array:
    """Numbers at their places among zeros."""
    spread = np.zeros(size, dtype=numbers.dtype)
    spread[places] = numbers
    return spread


def _coded(
    places: NDArray[np.int64], size: int
) -> tuple[int, NDArray[np.uint8], NDArray[np.int64]]:
    """The best escape, the coded steps, and the places that they lead to.

    Where a step is too long for two bytes, places of weights that are zero come between.
    """
    gaps = np.diff(places, prepend=-1, append=size) - 1
    escape = _best_escape(gaps)
    longest = _longest(escape)
    rests, gaps = np.divmod(gaps, longest + 1)
    spread = np.insert(gaps, np.repeat(np.arange(len(gaps)), rests), longest)
    return escape, _bytes(spread, escape), np.cumsum(spread + 1)[:-1] - 1


def _longest(escape: int) -> int:
    return escape + 256 * (MAX_ESCAPE - escape) + 255


def _best_escape(gaps: NDArray[np.int64]) -> int:
    found, counts = np.unique(gaps, return_counts=True)
    sizes = []
    for escape in range(MAX_ESCAPE + 1):
        rests, last = np.divmod(found, _longest(escape) + 1)
        sizes.append(int((counts * (3 * rests + 1 + (last >= escape))).sum()))
    return int(np.argmin(sizes))


def _bytes(gaps: NDArray[np.int64], escape: int) -> NDArray[np.uint8]:
    long = gaps >= escape
    high, low = np.divmod(gaps - escape, 256)
    ends = np.cumsum(1 + long)
    coded = np.empty(int(ends[-1]), dtype=np.uint8)
    coded[ends - 1] = np.where(long, low, gaps)
    coded[ends[long] - 2] = escape + high[long]
    return coded


def layer_tables(net: Lowered, values: Values) -> dict[str, Table]:
    """The table of every layer, by its name."""
    nodes = {node.name: node for node in net.graph.nodes}
    return {
        name: table(filters_first(nodes[name], weights), values)
        for name, weights in net.weights.items()
    }


def pixel_tables(normalisation: Preparation, *, raw: bool) -> Declarations:
    """What a byte of an image is multiplied by and shifted by; the same of measured values."""
    mean, std = (np.asarray(v, dtype=np.float64) for v in (normalisation.mean, normalisation.std))
    made = Declarations()
    made.array("pixel_scale", (1 / (255 * std)).astype(np.float32))
    made.array("pixel_shift", (-mean / std).astype(np.float32))
    if raw:
        made.array("raw_mean", mean.astype(np.float32))
        made.array("raw_scale", (1 / std).astype(np.float32))
    return made
