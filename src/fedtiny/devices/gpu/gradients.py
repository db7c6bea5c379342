"""The largest gradients of pruned weights, found where the gradients are."""

import numpy as np
import torch
from torch import Tensor

from fedtiny.sparse.mask import Indices
from fedtiny.sparse.vector import SparseVector

SLAB = 1 << 22  # gradients that are looked at in one go


class DeviceTop:
    """The `count` largest values seen so far, with the order of :class:`TopBuffer`.

    Slabs come in order of position, so ties go to the lower position.
    """

    slab_values = SLAB

    def __init__(self, size: int, count: int, kept: Indices, device: torch.device) -> None:
        self.size = size
        self.count = min(count, size - len(kept))
        self.kept = kept
        self._indices = torch.empty(0, dtype=torch.int64, device=device)
        self._values = torch.empty(0, device=device)

    def take(self, first: int, slab: Tensor) -> None:
        """Look at the gradients of a run of positions."""
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
        """What was found, sorted by position."""
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
