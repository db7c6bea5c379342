"""Share the training samples among the devices: by Dirichlet draws, evenly, or by label shards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtiny.errors import DataError
from fedtiny.randomness import generator

Array = NDArray[Any]
KINDS = ("dirichlet", "iid", "shards")
REDRAWS = 100


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """Which training samples each device has; no sample is on two devices.

    Example:
        >>> fedtiny.Partition.by_ids(["ann", "bob", "ann"])
        <Partition: 2 devices with 1 to 2 samples>
    """

    devices: tuple[Array, ...]
    """For each device the indices of its samples, sorted, int64."""

    def __post_init__(self) -> None:
        if not self.devices:
            raise DataError("a partition needs 1 device or more")
        indices, _ = self.flat()
        if len(np.unique(indices)) != len(indices) or (len(indices) and indices.min() < 0):
            raise DataError("a partition must not give a sample to two devices")

    def __len__(self) -> int:
        return len(self.devices)

    def __repr__(self) -> str:
        sizes = self.sizes
        return f"<Partition: {len(self)} devices with {sizes.min():,} to {sizes.max():,} samples>"

    @property
    def end(self) -> int:
        """One past the highest index."""
        indices, _ = self.flat()
        return int(indices.max(initial=-1)) + 1

    @property
    def sizes(self) -> Array:
        """How many samples each device has."""
        return np.array([len(device) for device in self.devices], dtype=np.int64)

    def table(self, labels: Array, n_classes: int) -> Array:
        """How many samples of each class each device has.

        Args:
            labels: The label of every training sample.
            n_classes: How many classes there are.

        Returns:
            Counts, [devices, classes].

        Example:
            >>> Partition((np.array([0, 1]), np.array([2]))).table(np.array([0, 1, 1]), 2).tolist()
            [[1, 1], [0, 1]]
        """
        rows = [np.bincount(labels[device], minlength=n_classes) for device in self.devices]
        return np.stack(rows)

    def flat(self) -> tuple[Array, Array]:
        """The partition as two arrays.

        Returns:
            All indices, one device after another, and where each device's begin and end.
        """
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        return np.concatenate(self.devices).astype(np.int64), offsets

    @classmethod
    def of(cls, drawn: Iterable[Array]) -> "Partition":
        """The partition of these samples, whatever their order.

        Args:
            drawn: For each device the indices of its samples.

        Returns:
            The partition.
        """
        return cls(tuple(np.sort(device.astype(np.int64)) for device in drawn))

    @classmethod
    def by_ids(cls, ids: ArrayLike) -> "Partition":
        """One device for each id, in the order of the ids: whose sample is whose.

        Args:
            ids: For each training sample a whole number or a text.

        Returns:
            The partition.

        Example:
            >>> [device.tolist() for device in Partition.by_ids(["bo", "al", "bo"]).devices]
            [[1], [0, 2]]
        """
        found = np.asarray(ids)
        if found.ndim != 1 or not len(found) or found.dtype.kind not in "iuUSb":
            raise DataError(
                "device ids must be one whole number or text for each training sample, not "
                f"{found.dtype} of shape {list(found.shape)}"
            )
        _, device = np.unique(found, return_inverse=True)
        ends = np.cumsum(np.bincount(device))[:-1]
        return cls.of(np.split(np.argsort(device, kind="stable"), ends))

    def within(self, chosen: Array) -> "Partition":
        """The same of some samples, numbered anew in their order; who has none is left out.

        Args:
            chosen: Indices of the samples that are kept.

        Returns:
            The partition of these.

        Example:
            >>> whose = Partition((np.array([0, 3]), np.array([1]), np.array([2])))
            >>> [device.tolist() for device in whose.within(np.array([1, 3])).devices]
            [[1], [0]]
        """
        places = np.full(max(self.end, int(chosen.max(initial=-1)) + 1), -1)
        places[chosen] = np.arange(len(chosen))
        own = [places[device] for device in self.devices]
        own = [device[device >= 0] for device in own]
        return Partition.of(device for device in own if len(device))

    @classmethod
    def from_flat(cls, indices: Array, offsets: Array) -> "Partition":
        """The partition that :meth:`flat` wrote.

        Args:
            indices: All indices, one device after another.
            offsets: Where each device's begin and end.

        Returns:
            The partition.
        """
        ordered = len(offsets) > 1 and offsets[0] == 0 and bool(np.all(np.diff(offsets) >= 0))
        if not ordered or offsets[-1] != len(indices):
            raise DataError("the saved partition is damaged: its offsets do not fit its indices")
        return cls.of(indices[start:end] for start, end in pairwise(offsets))


def split(
    kind: str,
    labels: Array,
    devices: int,
    *,
    alpha: float,
    shards_per_device: int,
    seed: int,
    minimum: int,
) -> Partition:
    """A partition of this kind: ``dirichlet``, ``iid`` or ``shards``.

    Where a draw leaves a device with fewer than ``minimum`` samples, it is filled up from the
    largest ones.
    """
    if devices < 1 or minimum < 1:
        raise DataError(
            "a partition needs 1 device or more and a minimum of 1 sample or more, "
            f"not {devices} and {minimum}"
        )
    if devices * minimum > len(labels):
        raise DataError(
            f"{devices} devices with {minimum} samples or more need {devices * minimum} samples, "
            f"but there are {len(labels)}; take fewer devices or a lower minimum"
        )
    draw = generator(seed, "partition")
    if kind == "dirichlet":
        drawn = _dirichlet(labels, devices, alpha, minimum, draw)
    elif kind == "iid":  # parts that differ by one sample at most
        drawn = np.array_split(draw.permutation(len(labels)), devices)
    elif kind == "shards":
        drawn = _shards(labels, devices, shards_per_device, draw)
    else:
        raise DataError(f"there is no partition {kind!r}; choose one of {', '.join(KINDS)}")
    return Partition.of(_filled_up(drawn, minimum))


def _dirichlet(
    labels: Array, devices: int, alpha: float, minimum: int, draw: np.random.Generator
) -> list[Array]:
    """Each class shared by a Dirichlet(alpha) draw; the smaller alpha, the less alike devices are.

    Classes are drawn independently, so no class is treated otherwise than another. All is drawn
    again until every device has ``minimum`` samples, ``REDRAWS`` times at most.
    """
    if not 0 < alpha < np.inf:
        raise DataError(f"alpha must be a finite number above 0, not {alpha}")
    for _ in range(REDRAWS):
        parts: list[list[Array]] = [[] for _ in range(devices)]
        for label in np.unique(labels):
            samples = draw.permutation(np.flatnonzero(labels == label))
            shares = draw.dirichlet(np.full(devices, alpha))
            if not (np.isfinite(shares).all() and shares.sum() > 0):  # alpha is tiny
                shares = np.full(devices, 1 / devices)
            cuts = np.rint(np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
            for part, cut in zip(parts, np.split(samples, cuts), strict=True):
                part.append(cut)
        drawn = [np.concatenate(part) for part in parts]
        if min(map(len, drawn)) >= minimum:
            break
    return drawn


def _shards(
    labels: Array, devices: int, shards_per_device: int, draw: np.random.Generator
) -> list[Array]:
    """Samples sorted by label and cut into shards, of which each device gets so many at random."""
    count = devices * shards_per_device
    if not 0 < count <= len(labels):
        raise DataError(
            f"{len(labels)} samples cannot be cut into {count} shards; "
            f"give each of {devices} devices from 1 to {len(labels) // devices}"
        )
    order = draw.permutation(len(labels))
    by_label = order[np.argsort(labels[order], kind="stable")]
    dealt = draw.permutation(count).reshape(devices, shards_per_device)
    cut = np.array_split(by_label, count)
    return [np.concatenate([cut[shard] for shard in hand]) for hand in dealt]


def _filled_up(drawn: Sequence[Array], minimum: int) -> list[Array]:
    """Move samples one by one from the largest device to those below the minimum."""
    moved = [device.tolist() for device in drawn]
    sizes = np.array([len(device) for device in drawn])
    for device in np.flatnonzero(sizes < minimum):
        while sizes[device] < minimum:
            largest = int(np.argmax(sizes))
            moved[device].append(moved[largest].pop())
            sizes[device] += 1
            sizes[largest] -= 1
    return [np.array(device, dtype=np.int64) for device in moved]
