"""A theta inside a message: only what the receiver does not hold yet."""

from dataclasses import dataclass

import numpy as np

from fedtiny.errors import WireError
from fedtiny.federation.wire.indices import read_positions
from fedtiny.federation.wire.reader import Reader
from fedtiny.federation.wire.writer import Writer, write_numbers, write_values
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length

NO_THETA, SAME_THETA, VALUES, MASK_AND_VALUES = range(4)


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


def write_theta(out: Writer, theta: Theta, known: Known) -> None:
    """A theta for one who holds what is known."""
    form = _form(theta, known)
    write_numbers(out, "<BQ", form, theta.mask.version)
    if form == SAME_THETA:
        write_numbers(out, "<Q", theta.version)
        return
    if form == MASK_AND_VALUES:
        _write_mask(out, theta.mask)
    write_values(out, theta.vector)


def write_no_theta(out: Writer) -> None:
    """The place of a theta, left empty."""
    write_numbers(out, "<B", NO_THETA)


def read_theta(
    reader: Reader, param_spec: ParamSpec, mask: Mask | None, theta: Theta | None
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


def _form(theta: Theta, known: Known) -> int:
    if known.theta is not None and known.theta == theta.version:
        return SAME_THETA
    return VALUES if known.mask == theta.mask.version else MASK_AND_VALUES


def _write_mask(out: Writer, mask: Mask) -> None:
    for layer, size in mask.param_spec.sizes.items():
        out.positions(None if mask.is_full(layer) else mask.indices(layer), size)


def _read_mask(reader: Reader, param_spec: ParamSpec, version: int) -> Mask:
    kept = {layer: read_positions(reader, size) for layer, size in param_spec.sizes.items()}
    mask = Mask(param_spec, kept)
    if mask.version != version:
        raise WireError(f"the mask is not the {version:016x} it claims to be")
    return mask


def _held_mask(version: int, held: list[Mask | None]) -> Mask:
    for mask in held:
        if mask is not None and mask.version == version:
            return mask
    raise MissingVersion(f"the message needs mask {version:016x}, which is not held here")


def _held_theta(reader: Reader, mask_version: int, theta: Theta | None) -> Theta:
    (version,) = reader.numbers("<Q", "the version of theta")
    if theta is None or (theta.mask.version, theta.version) != (mask_version, version):
        raise MissingVersion(f"the message needs theta {version:016x}, which is not held here")
    return theta
