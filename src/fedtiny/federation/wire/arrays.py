"""Dense arrays by name and sparse gradients by layer, inside a message."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import WireError
from fedtiny.federation.messages import Arrays
from fedtiny.federation.wire.indices import read_positions
from fedtiny.federation.wire.plain import read_name, write_name
from fedtiny.federation.wire.reader import Reader
from fedtiny.federation.wire.writer import Writer, write_numbers, write_values
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.vector import SparseVector

DTYPES = tuple(map(np.dtype, (np.float32, np.float64, np.int32, np.int64, np.uint8)))
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 2**40


def write_arrays(out: Writer, arrays: Arrays) -> None:
    """Dense arrays by name."""
    write_numbers(out, "<H", len(arrays))
    for name, array in arrays.items():
        write_name(out, name)
        _write_array(out, name, np.asarray(array))


def read_arrays(reader: Reader) -> dict[str, NDArray[Any]]:
    """Dense arrays by name."""
    (count,) = reader.numbers("<H", "the number of arrays")
    arrays: dict[str, NDArray[Any]] = {}
    for _ in range(count):
        name = read_name(reader)
        if name in arrays:
            raise WireError(f"the message holds the array {name} twice")
        arrays[name] = _read_array(reader, name)
    return arrays


def write_gradients(
    out: Writer, gradients: Mapping[str, SparseVector], param_spec: ParamSpec
) -> None:
    """Sparse vectors by prunable layer."""
    numbers = {layer: number for number, layer in enumerate(param_spec.sizes)}
    write_numbers(out, "<H", len(gradients))
    for layer, gradient in gradients.items():
        if param_spec.sizes.get(layer) != gradient.size:
            raise WireError(f"gradients of size {gradient.size} do not fit the layer {layer}")
        write_numbers(out, "<H", numbers[layer])
        out.positions(gradient.indices, gradient.size)
        write_values(out, gradient.values.astype(np.float32, copy=False))


def read_gradients(reader: Reader, param_spec: ParamSpec) -> dict[str, SparseVector]:
    """Sparse vectors by prunable layer."""
    layers = list(param_spec.sizes.items())
    (count,) = reader.numbers("<H", "the number of gradients")
    gradients: dict[str, SparseVector] = {}
    for _ in range(count):
        (number,) = reader.numbers("<H", "the number of a layer")
        if number >= len(layers) or layers[number][0] in gradients:
            raise WireError(f"gradients of layer {number}: no such layer, or named before")
        layer, size = layers[number]
        gradients[layer] = _read_sparse(reader, size)
    return gradients


def _read_sparse(reader: Reader, size: int) -> SparseVector:
    positions = read_positions(reader, size)
    count = size if positions is None else len(positions)
    values = reader.array(count, np.float32, "the values of gradients")
    return SparseVector(
        size, np.arange(size, dtype=np.int32) if positions is None else positions, values
    )


def _write_array(out: Writer, name: str, array: NDArray[Any]) -> None:
    if array.dtype not in DTYPES or array.ndim > MAX_DIMENSIONS:
        raise WireError(
            f"the array {name} of {array.dtype} in {array.ndim} dimensions cannot travel"
        )
    write_numbers(out, "<BB", DTYPES.index(array.dtype), array.ndim)
    write_numbers(out, f"<{array.ndim}I", *array.shape)
    write_values(out, array)


def _read_array(reader: Reader, name: str) -> NDArray[Any]:
    code, dimensions = reader.numbers("<BB", f"the array {name}")
    if code >= len(DTYPES) or dimensions > MAX_DIMENSIONS:
        raise WireError(f"the array {name} has dtype {code} and {dimensions} dimensions")
    shape = reader.numbers(f"<{dimensions}I", f"the shape of the array {name}")
    if prod(max(1, side) for side in shape) > MAX_ELEMENTS:
        raise WireError(f"the array {name} is too large: {shape}")
    return reader.array(prod(shape), DTYPES[code], f"the array {name}").reshape(shape)
