"""What a message carries: dense arrays by name, sparse gradients by layer, and a theta.

Of a theta only what the receiver does not hold yet travels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import WireError
from fedtiny.federation.messages import Arrays
from fedtiny.federation.wire import indices as parts
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length
from fedtiny.sparse.vector import SparseVector

DTYPES = tuple(map(np.dtype, (np.float32, np.float64, np.int32, np.int64, np.uint8)))
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 2**40
VOTES = 0x8000  # added to the number of a layer whose positions have the value 1 each
NO_THETA, SAME_THETA, VALUES, MASK_AND_VALUES = range(4)


def write_arrays(out: parts.Writer, arrays: Arrays) -> None:
    """Dense arrays by name."""
    parts.write_numbers(out, "<H", len(arrays))
    for name, array in arrays.items():
        text = parts.checked_name(name).encode()
        parts.write_numbers(out, "<B", len(text))
        out.raw(text)
        array = np.asarray(array)
        if array.dtype not in DTYPES or array.ndim > MAX_DIMENSIONS:
            raise WireError(
                f"the array {name} of {array.dtype} in {array.ndim} dimensions cannot travel"
            )
        parts.write_numbers(out, "<BB", DTYPES.index(array.dtype), array.ndim)
        parts.write_numbers(out, f"<{array.ndim}I", *array.shape)
        parts.write_values(out, array)


def read_arrays(reader: parts.Reader) -> dict[str, NDArray[Any]]:
    """Dense arrays by name."""
    (count,) = reader.numbers("<H", "the number of arrays")
    arrays: dict[str, NDArray[Any]] = {}
    for _ in range(count):
        (size,) = reader.numbers("<B", "a name")
        name = parts.checked_name(parts.decoded(reader.take(size, "a name")))
        if name in arrays:
            raise WireError(f"the message holds the array {name} twice")
        arrays[name] = _read_array(reader, name)
    return arrays


def write_gradients(
    out: parts.Writer, gradients: Mapping[str, SparseVector], param_spec: ParamSpec
) -> None:
    """Sparse vectors by prunable layer."""
    numbers = {layer: number for number, layer in enumerate(param_spec.sizes)}
    parts.write_numbers(out, "<H", len(gradients))
    for layer, gradient in gradients.items():
        if param_spec.sizes.get(layer) != gradient.size:
            raise WireError(f"gradients of size {gradient.size} do not fit the layer {layer}")
        votes = len(gradient) > 0 and bool((gradient.values == 1).all())
        parts.write_numbers(out, "<H", numbers[layer] + (VOTES if votes else 0))
        parts.write_positions(out, gradient.indices, gradient.size)
        if not votes:
            parts.write_values(out, gradient.values.astype(np.float32, copy=False))


def read_gradients(reader: parts.Reader, param_spec: ParamSpec) -> dict[str, SparseVector]:
    """Sparse vectors by prunable layer."""
    layers = list(param_spec.sizes.items())
    (count,) = reader.numbers("<H", "the number of gradients")
    gradients: dict[str, SparseVector] = {}
    for _ in range(count):
        (number,) = reader.numbers("<H", "the number of a layer")
        votes, number = divmod(number, VOTES)
        if number >= len(layers) or layers[number][0] in gradients:
            raise WireError(f"gradients of layer {number}: no such layer, or named before")
        layer, size = layers[number]
        positions = parts.read_positions(reader, size)
        count = size if positions is None else len(positions)
        if votes:
            values = np.ones(count, dtype=np.float32)
        else:
            values = reader.array(count, np.float32, "the values of gradients")
        places = np.arange(size, dtype=np.int32) if positions is None else positions
        gradients[layer] = SparseVector(size, places, values)
    return gradients


def _read_array(reader: parts.Reader, name: str) -> NDArray[Any]:
    code, dimensions = reader.numbers("<BB", f"the array {name}")
    if code >= len(DTYPES) or dimensions > MAX_DIMENSIONS:
        raise WireError(f"the array {name} has dtype {code} and {dimensions} dimensions")
    shape = reader.numbers(f"<{dimensions}I", f"the shape of the array {name}")
    if prod(max(1, side) for side in shape) > MAX_ELEMENTS:
        raise WireError(f"the array {name} is too large: {shape}")
    return reader.array(prod(shape), DTYPES[code], f"the array {name}").reshape(shape)


class MissingVersion(WireError):  # noqa: N818
    """A message that builds on a mask or a theta which the receiver does not hold."""


@dataclass(frozen=True)
class Known:
    """The versions of what a receiver holds already, as far as the sender knows."""

    mask: int | None = None
    theta: int | None = None

    @classmethod
    def of(cls, theta: Theta) -> "Known":
        """What a receiver holds once it was sent this theta."""
        return cls(theta.mask.version, theta.version)


NOTHING_KNOWN = Known()


def write_theta(out: parts.Writer, theta: Theta | None, known: Known) -> None:
    """A theta for one who holds what is known, or none."""
    if theta is None:
        parts.write_numbers(out, "<B", NO_THETA)
        return
    form = VALUES if known.mask == theta.mask.version else MASK_AND_VALUES
    if known.theta is not None and known.theta == theta.version:
        form = SAME_THETA
    parts.write_numbers(out, "<BQ", form, theta.mask.version)
    if form == SAME_THETA:
        parts.write_numbers(out, "<Q", theta.version)
        return
    if form == MASK_AND_VALUES:
        for layer, size in theta.param_spec.sizes.items():
            parts.write_positions(out, theta.mask.positions[layer], size)
    parts.write_values(out, theta.vector)


def read_theta(
    reader: parts.Reader, param_spec: ParamSpec, mask: Mask | None, theta: Theta | None
) -> Theta | None:
    """A theta, built on the mask or the theta that the receiver holds."""
    (form,) = reader.numbers("<B", "the form of theta")
    if form == NO_THETA:
        return None
    if form > MASK_AND_VALUES:
        raise WireError(f"theta has the unknown form {form}")
    (version,) = reader.numbers("<Q", "the mask version")
    if form == SAME_THETA:
        return _held_theta(reader, version, theta)
    held = [mask, theta.mask if theta else None]
    found = _held_mask(version, held) if form == VALUES else _read_mask(reader, param_spec, version)
    return Theta(found, reader.array(length(found), np.float32, "the values of theta"))


def _read_mask(reader: parts.Reader, param_spec: ParamSpec, version: int) -> Mask:
    kept = {layer: parts.read_positions(reader, size) for layer, size in param_spec.sizes.items()}
    mask = Mask(param_spec, kept)
    if mask.version != version:
        raise WireError(f"the mask is not the {version:016x} it claims to be")
    return mask


def _held_mask(version: int, held: list[Mask | None]) -> Mask:
    for mask in held:
        if mask is not None and mask.version == version:
            return mask
    raise MissingVersion(f"the message needs mask {version:016x}, which is not held here")


def _held_theta(reader: parts.Reader, mask_version: int, theta: Theta | None) -> Theta:
    (version,) = reader.numbers("<Q", "the version of theta")
    if theta is None or (theta.mask.version, theta.version) != (mask_version, version):
        raise MissingVersion(f"the message needs theta {version:016x}, which is not held here")
    return theta
