"""What takes the gradient of a layer, a slab of filters at a time, and keeps the few asked for."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtiny.sparse.mask import Indices
from fedtiny.sparse.top import SLAB_PER_COUNT, TopBuffer
from fedtiny.sparse.vector import SparseVector

SLAB = 1 << 22  # gradients that are looked at in one go


class HostTop:
    """Feeds a buffer of size a with what a layer's pruned weights get.

    Gradients come in slabs, a run of filters each, in order of position.
    """

    def __init__(self, size: int, count: int, kept: Indices) -> None:
        self.buffer = TopBuffer(size, count)
        self.kept = kept
        self.slab_values = SLAB_PER_COUNT * self.buffer.count  # at most, but for one filter

    def take(self, first: int, slab: Tensor) -> None:
        """Look at the gradients from this position on."""
        here = slice(*np.searchsorted(self.kept, (first, first + slab.numel())))
        every = np.arange(slab.numel(), dtype=np.int32)
        pruned = np.delete(every, self.kept[here] - first)
        self.buffer.push(pruned + first, slab.reshape(-1).cpu().numpy()[pruned])

    def result(self) -> SparseVector:
        """The largest of them, sorted by position."""
        return self.buffer.result()


class DeviceTop:
    """The same, found where the gradients are: slabs come in order, so ties go to the lower one."""

    slab_values = SLAB

    def __init__(self, size: int, count: int, kept: Indices, device: torch.device) -> None:
        self.size = size
        self.count = min(count, size - len(kept))
        self.kept = kept
        self._indices = torch.empty(0, dtype=torch.int64, device=device)
        self._values = torch.empty(0, device=device)

    def take(self, first: int, slab: Tensor) -> None:
        values = slab.reshape(-1)
        start, stop = np.searchsorted(self.kept, (first, first + len(values)))
        pruned = torch.ones(len(values), dtype=torch.bool, device=values.device)
        held = torch.from_numpy(self.kept[start:stop].astype(np.int64) - first)
        pruned[held.to(values.device)] = False
        best = _largest(values, pruned, self.count)
        self._indices = torch.cat([self._indices, best + first])
        self._values = torch.cat([self._values, values[best]])
        if len(self._values) > self.count:
            best = _largest(
                self._values, torch.ones_like(self._values, dtype=torch.bool), self.count
            )
            self._indices, self._values = self._indices[best], self._values[best]

    def result(self) -> SparseVector:
        indices = self._indices.cpu().numpy().astype(np.int32)
        return SparseVector(self.size, indices, self._values.cpu().numpy())


def _largest(values: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Sorted positions of the largest magnitudes among those allowed, ties to the lower one."""
    scores = values.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    scores = torch.where(allowed, scores, -1.0)
    count = min(count, int(allowed.sum()))
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=values.device)
    cut = scores.topk(count, sorted=False).values.min()
    above = (scores > cut).nonzero().flatten()
    ties = (scores == cut).nonzero().flatten()[: count - len(above)]
    return torch.cat([above, ties]).sort().values


class GradientsAt:
    """The gradients at some positions of a layer, found wherever the gradients are."""

    def __init__(self, positions: Indices, slab_values: int | None = None) -> None:
        self.positions = positions
        self.slab_values = slab_values or SLAB_PER_COUNT * len(positions)
        self._values = np.zeros(len(positions), dtype=np.float32)

    def take(self, first: int, slab: Tensor) -> None:
        """Pick out what lies in the gradients from this position on."""
        here = slice(*np.searchsorted(self.positions, (first, first + slab.numel())))
        own = torch.from_numpy(self.positions[here].astype(np.int64) - first)
        self._values[here] = slab.reshape(-1)[own.to(slab.device)].cpu().numpy()

    def result(self) -> NDArray[np.float32]:
        """A value for each position."""
        return self._values


Top = HostTop | DeviceTop
Taker = Top | GradientsAt
