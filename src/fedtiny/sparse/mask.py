"""The mask of a sparse model."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtiny.graph.ir import Graph
from fedtiny.graph.reach import Reachability
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.vector import is_position_list

Indices = NDArray[np.int32]


class Mask:
    """Which weights of a model are kept: m in the paper.

    A mask belongs to one parameter spec and cannot be changed or be anything else than a mask of
    it. Each layer is held as the sorted flat positions of its kept weights, or as None when it
    keeps all, so memory follows the kept weights.
    """

    def __init__(self, param_spec: ParamSpec, kept: Mapping[str, ArrayLike | None]) -> None:
        if kept.keys() != param_spec.prunable.keys():
            raise ValueError(
                f"a mask needs exactly the {len(param_spec.prunable)} prunable layers; "
                f"these do not match: {sorted(kept.keys() ^ param_spec.prunable.keys())}"
            )
        self.param_spec = param_spec
        self._kept = {
            name: _checked_positions(name, kept[name], size)
            for name, size in param_spec.sizes.items()
        }

    @classmethod
    def full(cls, param_spec: ParamSpec) -> "Mask":
        """The mask of a dense model."""
        return cls(param_spec, dict.fromkeys(param_spec.prunable))

    @classmethod
    def from_arrays(cls, param_spec: ParamSpec, arrays: Mapping[str, ArrayLike]) -> "Mask":
        """A mask from arrays of zeros and ones in the shapes of the layers."""
        kept = {}
        for name, array in arrays.items():
            bits = np.asarray(array)
            if bits.shape != param_spec.prunable.get(name):
                raise ValueError(f"{name}: a mask of shape {bits.shape} does not fit the layer")
            if not np.isin(bits, (0, 1)).all():
                raise ValueError(f"{name}: a mask holds zeros and ones only")
            kept[name] = np.flatnonzero(bits)
        return cls(param_spec, kept)

    def replace(self, kept: Mapping[str, ArrayLike | None]) -> "Mask":
        """The same mask with other kept positions in some layers."""
        return Mask(self.param_spec, {**self._kept, **kept})

    def __iter__(self) -> Iterator[str]:
        return iter(self.param_spec.prunable)

    def is_full(self, layer: str) -> bool:
        """Whether the layer keeps every weight."""
        return self._kept[layer] is None

    def indices(self, layer: str) -> Indices:
        """Sorted flat positions of the layer's kept weights."""
        kept = self._kept[layer]
        return np.arange(self.param_spec.sizes[layer], dtype=np.int32) if kept is None else kept

    @property
    def positions(self) -> Mapping[str, Indices | None]:
        """Sorted flat positions of the kept weights by layer; None of a layer that keeps all."""
        return self._kept

    def kept(self, layer: str) -> int:
        """Number of kept weights of a layer: n^l in the paper."""
        positions = self._kept[layer]
        return self.param_spec.sizes[layer] if positions is None else len(positions)

    def array(self, layer: str) -> NDArray[np.bool_]:
        """The layer's mask in the shape of the layer."""
        bits = np.zeros(self.param_spec.sizes[layer], dtype=np.bool_)
        bits[self.indices(layer)] = True
        return bits.reshape(self.param_spec.prunable[layer])

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Number of kept weights by layer."""
        return MappingProxyType({layer: self.kept(layer) for layer in self})

    @cached_property
    def count(self) -> int:
        """Number of kept weights of the model."""
        return sum(self.counts.values())

    @property
    def density(self) -> float:
        """Kept share of the prunable weights: d in the paper."""
        return (
            self.count / self.param_spec.prunable_count if self.param_spec.prunable_count else 1.0
        )

    @cached_property
    def densities(self) -> Mapping[str, float]:
        """Kept share by layer: d^l in the paper."""
        sizes = self.param_spec.sizes
        return MappingProxyType({name: n / sizes[name] for name, n in self.counts.items()})

    def reachability(self, graph: Graph) -> Reachability:
        """What the mask leaves of the ways through a network: its effective density, by layer."""
        return Reachability(graph, self._kept, self.param_spec.sizes)

    @cached_property
    def version(self) -> int:
        """Eight bytes that name this mask, the same wherever and whenever it is made."""
        return int.from_bytes(self._hash(size=8), "little")

    @cached_property
    def digest(self) -> bytes:
        """Thirty-two bytes that name it, of which nobody can find two masks that have the same."""
        return self._hash(size=32)

    def _hash(self, size: int) -> bytes:
        digest = hashlib.blake2b(
            digest_size=size, key=self.param_spec.fingerprint.to_bytes(4, "little")
        )
        for layer, positions in self._kept.items():
            digest.update(f"{layer}:{self.kept(layer)};".encode())
            if positions is not None:
                digest.update(positions.astype("<i4", copy=False).tobytes())
        return digest.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self.version == other.version

    def __hash__(self) -> int:
        return self.version

    def __repr__(self) -> str:
        return f"Mask(layers={len(self.counts)}, kept={self.count}, density={self.density:.4g})"


def _checked_positions(layer: str, kept: ArrayLike | None, size: int) -> Indices | None:
    if kept is None:
        return None
    positions = np.asarray(kept)
    if not is_position_list(positions, size):
        raise ValueError(
            f"{layer}: kept positions must be whole numbers, sorted, distinct and below {size}"
        )
    if positions.size == size:
        return None
    indices = positions.astype(np.int32)
    indices.setflags(write=False)
    return indices
