"""A graph in native code: its parameters under a mask, training, measuring, fitting a budget."""

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.graph.ir import Graph
from fedtiny.graph.operations import native_lacks
from fedtiny.native.library import (
    GradQueryRecord,
    Memory,
    NativeError,
    NodeRecord,
    Options,
    Parameter,
    PassRecord,
    Rates,
    Score,
    library,
    node_records,
    places_of,
)

Floats = NDArray[np.float32]
Positions = NDArray[np.int32]
SMALLEST_BATCH = 2  # batch norm cannot measure one image


class _Mode(IntEnum):
    """fedtiny_mode: what a pass does."""

    FORWARD = 0
    OWN_STATISTICS = 1
    MEASURE = 2
    GRADIENTS = 3
    TRAIN = 4


class NativeModel:
    """A network in native code. Tensors go by the names of the torch model's state dict."""

    def __init__(self, graph: Graph) -> None:
        if missing := native_lacks(graph.nodes):
            raise NativeError(f"the native library does not have {missing}")
        self.graph = graph
        self._library = library()
        self._handle = ctypes.c_void_p()
        records = node_records(graph.nodes)
        array = (NodeRecord * len(records))(*records)
        self._library.call("create", array, len(records), ctypes.byref(self._handle))
        self._places = places_of(graph)
        self.options: Options | None = None
        self._counts: dict[str, int] = {}

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle:
            self._library.call("destroy", handle)
            self._handle = ctypes.c_void_p()

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all parameters and statistics, in order."""
        return tuple(self._places)

    def size(self, name: str) -> int:
        """Number of values of a tensor, pruned ones included."""
        self._place(name)
        return prod(self.graph.tensors[name])

    def _call(self, name: str, *arguments: Any) -> None:
        self._library.call(name, self._handle, *arguments)

    def plan(self, options: Options, counts: Mapping[str, int] | None = None) -> Memory:
        """What preparing would take, with this many kept weights by layer; takes nothing."""
        memory, kept = Memory(), self._kept(counts or {})
        self._call("plan", ctypes.byref(options.record()), kept.ctypes.data, ctypes.byref(memory))
        return memory

    def prepare(self, options: Options, kept: Mapping[str, Positions | None] | None = None) -> None:
        """Take the memory and install a mask; every parameter is zero then.

        `kept` has the sorted positions of kept weights by layer; one that is not named, or has
        None, keeps all.
        """
        sparse = {
            name: np.ascontiguousarray(_whole_numbers(name, positions), dtype=np.int32)
            for name, positions in (kept or {}).items()
            if positions is not None
        }
        kept_counts = {name: len(positions) for name, positions in sparse.items()}
        counts = self._kept(kept_counts)
        pointers = (ctypes.c_void_p * len(self.graph.nodes))()
        for name, positions in sparse.items():
            pointers[self._place(name)[0]] = positions.ctypes.data
        self.options = None
        self._call("prepare", ctypes.byref(options.record()), counts.ctypes.data, pointers)
        self.options = options
        self._counts = kept_counts

    def set(self, name: str, values: NDArray[Any]) -> None:
        """Set a tensor; of a weight, its kept values."""
        flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        self._call("set", *self._place(name), flat.ctypes.data, flat.size)

    def get(self, name: str) -> Floats:
        """A tensor as it is; of a weight, its kept values."""
        return self._get(*self._place(name), self._length(name)).astype(np.float32)

    def batch_statistics(
        self, norm: str, *, corrected: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance that a batch norm saw in the last pass with statistics of its own."""
        var = Parameter.CORRECTED_VAR if corrected else Parameter.BATCH_VAR
        node, _ = self._place(f"{norm}.running_mean")
        size = self.size(f"{norm}.running_mean")
        return self._get(node, Parameter.BATCH_MEAN, size), self._get(node, var, size)

    def _get(self, node: int, parameter: Parameter, size: int) -> NDArray[np.float64]:
        values = np.empty(size, dtype=np.float64)
        self._call("get", node, parameter, values.ctypes.data, size)
        return values

    def start(self, rates: Rates) -> None:
        """A fresh optimizer."""
        self._call("start", ctypes.byref(rates))

    def train(
        self,
        images: Floats,
        labels: NDArray[np.int64],
        *,
        seed: int = 0,
        update: bool = True,
        freeze_norms: bool = False,
        dense: Mapping[str, Floats] | None = None,
    ) -> Score:
        """One training step; `seed` keys dropout.

        With `freeze_norms` batch norm computes with its running statistics, which stay. Each array
        of `dense` has the complete gradient of its layer added.
        """
        records = [self._dense_record(name, sums) for name, sums in (dense or {}).items()]
        mode = _Mode.TRAIN if update else _Mode.GRADIENTS
        settings = {"seed": seed, "freeze_norms": freeze_norms}
        return self._run(mode, images, labels, queries=_array(records), **settings)

    def top_gradients(
        self,
        images: Floats,
        labels: NDArray[np.int64],
        counts: Mapping[str, int],
        *,
        seed: int = 0,
        epsilon: float = 0.0,
        freeze_norms: bool = False,
        fisher: bool = False,
    ) -> dict[str, tuple[Positions, Floats]]:
        """The largest gradients of each layer's pruned weights, by position; changes nothing.

        Batch norm computes with this epsilon at least; with `fisher` gradients are divided by the
        root of twice their Fisher information.
        """
        sizes = {name: min(count, self.size(name)) for name, count in counts.items()}
        found = {
            name: (np.empty(n, np.int32), np.empty(n, np.float32)) for name, n in sizes.items()
        }
        factors = {name: self._fisher_room(name) for name in counts} if fisher else {}
        queries = _array([self._query(name, *own, factors) for name, own in found.items()])
        settings = {"seed": seed, "epsilon": epsilon, "freeze_norms": freeze_norms}
        self._run(_Mode.MEASURE, images, labels, queries=queries, **settings)
        return {
            name: (indices[: record.count], values[: record.count])
            for (name, (indices, values)), record in zip(found.items(), queries, strict=True)
        }

    def gradients_at(
        self,
        images: Floats,
        labels: NDArray[np.int64],
        positions: Mapping[str, Positions],
        *,
        seed: int = 0,
        epsilon: float = 0.0,
        freeze_norms: bool = False,
        fisher: bool = False,
    ) -> dict[str, Floats]:
        """The gradients of these weights of each layer, as of `top_gradients`; changes nothing."""
        asked = {
            name: np.ascontiguousarray(_whole_numbers(name, own), dtype=np.int32)
            for name, own in positions.items()
        }
        found = {name: np.empty(len(own), np.float32) for name, own in asked.items()}
        factors = {name: self._fisher_room(name) for name in asked} if fisher else {}
        queries = _array(
            [
                self._query(name, own, found[name], factors, at_positions=True)
                for name, own in asked.items()
            ]
        )
        settings = {"seed": seed, "epsilon": epsilon, "freeze_norms": freeze_norms}
        self._run(_Mode.MEASURE, images, labels, queries=queries, **settings)
        return found

    def _query(
        self,
        name: str,
        indices: Positions,
        values: Floats,
        fisher: Mapping[str, Floats] | None = None,
        at_positions: bool = False,
    ) -> GradQueryRecord:
        factors = (fisher or {}).get(name)
        return GradQueryRecord(
            self._place(name)[0],
            len(indices),
            indices.ctypes.data,
            values.ctypes.data,
            None,
            None if factors is None else factors.ctypes.data,
            at_positions,
        )

    def _fisher_room(self, name: str) -> Floats:
        """A value for each channel, or input of a linear layer, and each filter."""
        node = self._place(name)[0]
        channels = self.graph.read[node][1][0][0]
        return np.empty(channels + self.graph.tensors[name][0], dtype=np.float32)

    def forward(
        self,
        images: Floats,
        labels: NDArray[np.int64] | None = None,
        *,
        own_statistics: bool = False,
    ) -> Score:
        """Loss and right answers without training; with running statistics or the batch's own."""
        mode = _Mode.OWN_STATISTICS if own_statistics else _Mode.FORWARD
        return self._run(mode, images, labels)

    def _run(
        self, mode: _Mode, images: Floats, labels: Any, *, queries: Any = None, **settings: Any
    ) -> Score:
        images, labels = self._checked(images, labels)
        record = PassRecord(
            mode=mode,
            query_count=len(queries or ()),
            queries=ctypes.cast(queries, ctypes.c_void_p),
            images=images.ctypes.data,
            labels=None if labels is None else labels.ctypes.data,
            count=len(images),
            **settings,
        )
        score = Score()
        self._call("run", ctypes.byref(record), ctypes.byref(score))
        return score

    def _checked(self, images: Floats, labels: Any) -> tuple[Floats, Any]:
        shape = self.graph.shapes[0]
        images = np.ascontiguousarray(images, dtype=np.float32)
        if images.shape[1:] != shape:
            raise NativeError(f"images must be [N, {shape}], but have shape {images.shape}")
        if labels is not None:
            labels = np.ascontiguousarray(labels, dtype=np.int64)
            if labels.shape != (len(images),):
                raise NativeError(f"{len(images)} images need as many labels, not {labels.shape}")
        return images, labels

    def _dense_record(self, name: str, sums: Floats) -> GradQueryRecord:
        if sums.dtype != np.float32 or sums.size != self.size(name) or not sums.flags.c_contiguous:
            raise NativeError(f"{name}: sums need {self.size(name)} float32 values in one piece")
        return GradQueryRecord(self._place(name)[0], 0, None, None, sums.ctypes.data, None, 0)

    def _place(self, name: str) -> tuple[int, Parameter]:
        if name not in self._places:
            raise NativeError(f"the network has no tensor '{name}'")
        return self._places[name]

    def _length(self, name: str) -> int:
        return self._counts.get(name, self.size(name))

    def _kept(self, counts: Mapping[str, int]) -> NDArray[np.int64]:
        """Number of kept weights by node, -1 for all."""
        kept = np.full(len(self.graph.nodes), -1, dtype=np.int64)
        for name, count in counts.items():
            if self._place(name)[1] is not Parameter.WEIGHT:
                raise NativeError(f"'{name}' is no weight that could be pruned")
            kept[self._place(name)[0]] = count
        return kept


def _array(queries: list[GradQueryRecord]) -> Any:
    return (GradQueryRecord * len(queries))(*queries)


def _whole_numbers(name: str, positions: NDArray[Any]) -> NDArray[Any]:
    found = np.asarray(positions)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise NativeError(f"{name}: kept positions must be a list of whole numbers")
    if found.size and (found.min() < 0 or found.max() >= 2**31):
        raise NativeError(f"{name}: kept positions must be from 0 to below 2^31")
    return found


def largest_fit(
    model: NativeModel,
    options: Options,
    counts: Mapping[str, int],
    budgets: Mapping[int, int],
    beside: Mapping[int, int] = MappingProxyType({}),
) -> Options:
    """The largest batch up to that of `options` that fits, and how; worked out without taking any.

    `budgets` are bytes by the lanes of the devices, 0 for this processor's own; all must be met.
    `beside` are bytes that they need outside the arena. Of
    ways that allow the same batch the first is taken: as asked for, with recomputing, with half
    storage, with both. A budget for which no batch is small enough is refused.
    """
    ways = [
        options,
        replace(options, recompute=True),
        replace(options, storage="float16"),
        replace(options, storage="float16", recompute=True),
    ]

    def excess(way: Options, batch: int) -> int:
        """Bytes by which the device that lacks most of them misses its budget."""
        sized = _sized(way, batch)
        plans = {lanes: model.plan(_with_lanes(sized, lanes), counts) for lanes in budgets}
        return max(
            int(plan.total) + beside.get(lanes, 0) - budgets[lanes] for lanes, plan in plans.items()
        )

    batches = {way: _largest_batch(partial(excess, way), options.batch) for way in ways}
    best = max(batches, key=batches.__getitem__)
    if not batches[best]:
        budget = min(budgets.values())
        least = budget + min(excess(way, SMALLEST_BATCH) for way in ways)
        raise NativeError(
            f"a device needs at least {least / 1e6:.1f} MB to train this model, "
            f"more than the budget of {budget / 1e6:.1f} MB"
        )
    return _sized(best, batches[best])


def _sized(options: Options, batch: int) -> Options:
    return replace(options, batch=batch, forward_batch=min(options.forward_batch or batch, batch))


def _with_lanes(options: Options, lanes: int) -> Options:
    """As a device of so many lanes computes: it leaves half of 16 unused where they would idle."""
    return replace(options, lanes=8 if lanes == 16 and options.batch <= 8 else lanes)


def _largest_batch(excess: Callable[[int], int], most: int) -> int:
    """By bisection, since memory grows with the batch; 0 if none fits."""
    fits = bisect_right(range(1, most + 1), 0, key=excess)
    return fits if fits >= SMALLEST_BATCH else 0
