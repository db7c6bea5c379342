"""The parameters of a sparse model."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Indices, Mask

Floats = NDArray[np.float32]
LARGEST = float(np.sqrt(np.finfo(np.float32).max))  # above it a square is no float32


@dataclass(frozen=True, eq=False)
class Theta:
    """A model's values under a mask: theta in the paper.

    One float32 vector: the kept weights of each prunable layer in order of position, then every
    dense tensor (batch-norm statistics included), both in the order of the parameter spec. A pruned
    weight has no place in it, so nothing can leak into one.
    """

    mask: Mask
    vector: Floats

    def __post_init__(self) -> None:
        expected = length(self.mask)
        if self.vector.shape != (expected,) or self.vector.dtype != np.float32:
            raise ValueError(
                f"theta needs {expected} float32 values under its mask, "
                f"got {self.vector.dtype} of shape {self.vector.shape}"
            )
        self.vector.setflags(write=False)

    @property
    def param_spec(self) -> ParamSpec:
        """The parameter spec of the model these values belong to."""
        return self.mask.param_spec

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where each tensor lies in the vector."""
        return places(self.mask)

    @cached_property
    def version(self) -> int:
        """Eight bytes that name these values, so that they need not be sent twice."""
        digest = hashlib.blake2b(digest_size=8, key=self.mask.version.to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(self.vector, dtype="<f4").data)
        return int.from_bytes(digest.digest(), "little")

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[np.generic]], mask: Mask) -> "Theta":
        """Take the kept values out of a model's full-size tensors."""
        vector = np.empty(length(mask), dtype=np.float32)
        for name, part in places(mask).items():
            flat = _flat(name, tensors[name], mask.param_spec)
            keeps_all = name not in mask.param_spec.prunable or mask.is_full(name)
            vector[part] = flat if keeps_all else flat[mask.indices(name)]
        return cls(mask, vector)

    def kept(self, layer: str) -> Floats:
        """The kept weights of a prunable layer, in order of position."""
        return self.vector[self.places[layer]]

    def tensor(self, name: str) -> Floats:
        """One tensor in its full shape, with zeros where weights are pruned."""
        values = self.vector[self.places[name]]
        if name in self.param_spec.dense:
            return values.reshape(self.param_spec.dense[name])
        if not self.mask.is_full(name):
            flat = np.zeros(self.param_spec.sizes[name], dtype=np.float32)
            flat[self.mask.indices(name)] = values
            values = flat
        return values.reshape(self.param_spec.prunable[name])

    def tensors(self) -> dict[str, Floats]:
        """Every tensor in its full shape."""
        return {name: self.tensor(name) for name in self.places}

    def remasked(self, mask: Mask) -> "Theta":
        """The same model under another mask: dropped weights go, grown ones start at zero."""
        layers = [self._at(layer, mask.indices(layer)) for layer in mask]
        return Theta(mask, np.concatenate([*layers, self.vector[self.mask.count :]]))

    def pruned_to(self, chosen: Mapping[str, NDArray[np.integer]]) -> "Theta":
        """The same model with only these of each layer's kept weights, given in order."""
        mask = Mask(
            self.param_spec, {layer: self.mask.indices(layer)[chosen[layer]] for layer in self.mask}
        )
        layers = [self.kept(layer)[chosen[layer]] for layer in self.mask]
        return Theta(mask, np.concatenate([*layers, self.vector[self.mask.count :]]))

    def with_norms_of(self, other: "Theta", layers: Iterable[str], power: float = 1.0) -> "Theta":
        """The same model, the kept weights of each unit scaled to the norm of another's unit.

        A unit is a filter or an output: a place on the first axis of a layer's weights. With a
        lower power they go a part of the way: to the square root of the ratio at 0.5.
        """
        vector = self.vector.copy()
        for layer in layers:
            own, wanted = self._unit_norms(layer), other._unit_norms(layer)
            scales = np.ones_like(own)
            both = (own > 0) & (wanted > 0)
            scales[both] = (wanted[both] / own[both]) ** power
            vector[self.places[layer]] = self.kept(layer) * scales[self._units(layer)]
        return Theta(self.mask, vector)

    def _units(self, layer: str) -> Indices:
        """The unit of each kept weight of a layer."""
        shape = self.param_spec.prunable[layer]
        return self.mask.indices(layer) // int(np.prod(shape[1:]))

    def _unit_norms(self, layer: str) -> NDArray[np.float64]:
        squares = np.square(self.kept(layer), dtype=np.float64)
        return np.sqrt(np.bincount(self._units(layer), squares, self.param_spec.prunable[layer][0]))

    def _at(self, layer: str, positions: Indices) -> Floats:
        """The layer's values at sorted positions, zero where a weight is pruned."""
        kept, held = self.kept(layer), self.mask.indices(layer)
        if self.mask.is_full(layer) or not len(held):
            return kept[positions] if len(held) else np.zeros(len(positions), dtype=np.float32)
        near = np.minimum(np.searchsorted(held, positions), len(held) - 1)
        return np.where(held[near] == positions, kept[near], np.float32(0))

    def with_dense(self, tensors: Mapping[str, NDArray[np.generic]]) -> "Theta":
        """The same model with some dense tensors (say, batch-norm statistics) replaced."""
        vector = self.vector.copy()
        for name, values in tensors.items():
            if name not in self.param_spec.dense:
                raise ValueError(f"{name} is not a dense tensor of the model")
            vector[self.places[name]] = _flat(name, values, self.param_spec)
        return Theta(self.mask, vector)


def is_usable(vector: Floats) -> bool:
    """Whether values are finite, and small enough to compute with.

    >>> [is_usable(np.float32([value])) for value in (-2, 3e38, np.nan)]
    [True, False, False]
    """
    return bool((np.abs(vector) < LARGEST).all())


def length(mask: Mask) -> int:
    """Number of values of a model under a mask."""
    return mask.count + mask.param_spec.dense_count


def places(mask: Mask) -> dict[str, slice]:
    """Where each tensor lies in the vector of a theta under this mask."""
    found, start = {}, 0
    for name, size in (*mask.counts.items(), *mask.param_spec.dense_sizes.items()):
        found[name] = slice(start, start + size)
        start += size
    return found


def _flat(name: str, values: NDArray[np.generic], param_spec: ParamSpec) -> NDArray[np.generic]:
    size = param_spec.sizes.get(name) or param_spec.dense_sizes[name]
    if np.size(values) != size:
        raise ValueError(f"{name} needs {size} values, got {np.size(values)}")
    return np.asarray(values).reshape(-1)


def statistics_places(theta: Theta) -> NDArray[np.bool_]:
    """Which of the dense values of a model are batch-norm statistics."""
    kept = theta.mask.count
    chosen = np.zeros(len(theta.vector) - kept, dtype=np.bool_)
    for name in theta.param_spec.statistics:
        place = theta.places[name]
        chosen[place.start - kept : place.stop - kept] = True
    return chosen
