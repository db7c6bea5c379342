"""Where the values of several devices lie: parameters, activations, gradients, sums."""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import inf, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtiny.devices.gpu.sparse.arguments import View, address
from fedtiny.devices.gpu.sparse.lowering import Buffer, Value
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask

ROUNDED = 32  # rooms are multiples of this
GROWTH = 1.25  # room beside what is kept, for a mask that grows


@dataclass(frozen=True)
class Layout:
    """The places of a device's values: every dense tensor, pruned linear layers in full, and then
    the kept weights of convolutions, those that are computed together in one segment.

    `groups` are the convolutions of each segment, by the names of their weights.
    """

    param_spec: ParamSpec
    groups: tuple[tuple[str, ...], ...]
    rooms: tuple[int, ...]

    @cached_property
    def starts(self) -> dict[str, int]:
        """Where each dense tensor and each pruned linear layer begins."""
        sizes = {**self.param_spec.dense_sizes, **self._linear}
        return dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))

    @cached_property
    def _linear(self) -> dict[str, int]:
        convolved = {name for group in self.groups for name in group}
        return {n: s for n, s in self.param_spec.sizes.items() if n not in convolved}

    @property
    def dense(self) -> int:
        """Values that have one gradient each."""
        return self.param_spec.dense_count + sum(self._linear.values())

    @cached_property
    def segments(self) -> tuple[int, ...]:
        """Where each segment begins."""
        return tuple(accumulate(self.rooms, initial=self.dense))[:-1]

    @property
    def values(self) -> int:
        """All values of a device."""
        return self.dense + sum(self.rooms)

    def counts(self, mask: Mask) -> tuple[int, ...]:
        """Kept weights of each segment."""
        return tuple(sum(len(self.kept(name, mask)) for name in group) for group in self.groups)

    def kept(self, name: str, mask: Mask) -> NDArray[np.int32]:
        """Kept positions of a convolution; one that is never pruned keeps all."""
        if name in self.param_spec.prunable:
            return mask.indices(name)
        return np.arange(self.param_spec.dense_sizes[name], dtype=np.int32)

    def places(self, mask: Mask) -> NDArray[np.int64]:
        """Where each value of a theta lies."""
        found: dict[str, NDArray[np.int64]] = {}
        for group, first in zip(self.groups, self.segments, strict=True):
            for name in group:
                found[name] = first + np.arange(len(self.kept(name, mask)))
                first += len(found[name])
        for name in self._linear:
            found[name] = self.starts[name] + mask.indices(name).astype(np.int64)
        for name, size in self.param_spec.dense_sizes.items():
            if name not in found:
                found[name] = self.starts[name] + np.arange(size)
        names = [*self.param_spec.prunable, *self.param_spec.dense]
        return np.concatenate([found[name] for name in names])

    def moves(self, mask: Mask) -> NDArray[np.uint8]:
        """Which of the dense values are trained: 1 if they are weights, 2 if norms or biases."""
        found = np.zeros(self.dense, dtype=np.uint8)
        convolved = {name for group in self.groups for name in group}
        for name, size in self.param_spec.dense_sizes.items():
            if name not in convolved and name not in self.param_spec.statistics:
                dimensions = len(self.param_spec.dense[name])
                found[self.starts[name] : self.starts[name] + size] = 1 if dimensions > 1 else 2
        for name in self._linear:
            found[self.starts[name] + mask.indices(name)] = 1
        return found

    def roomy(self, mask: Mask) -> "Layout":
        """The same with room for a mask too; no layer gets less."""
        rooms = [-(-max(1, int(n * GROWTH)) // ROUNDED) * ROUNDED for n in self.counts(mask)]
        larger = tuple(max(both) for both in zip(rooms, self.rooms, strict=True))
        return Layout(self.param_spec, self.groups, larger)

    def fits(self, mask: Mask) -> bool:
        """Whether a mask has room."""
        return all(n <= room for n, room in zip(self.counts(mask), self.rooms, strict=True))


@dataclass
class Activations:
    """The tensors of all devices in words, each with its coefficients; made when asked for."""

    devices: int
    images: int
    """Word images of a device."""
    device: torch.device
    _stored: dict[Buffer, Tensor] = field(default_factory=dict)
    _coefs: dict[tuple[Buffer, str], Tensor] = field(default_factory=dict)

    @cached_property
    def multiprocessors(self) -> int:
        """Of the GPU."""
        if self.device.type != "cuda":
            return 1
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    def tensor(self, buffer: Buffer) -> Tensor:
        """A buffer's words: [devices * images, channels, positions]."""
        if buffer not in self._stored:
            shape = (self.devices * self.images, buffer.channels, prod(buffer.size))
            self._stored[buffer] = torch.zeros(shape, dtype=torch.int32, device=self.device)
        return self._stored[buffer]

    def coefs(self, buffer: Buffer, kind: str = "forward") -> Tensor:
        """Coefficients of a buffer's channels: [devices, channels, 4]."""
        if (buffer, kind) not in self._coefs:
            shape = (self.devices, buffer.channels, 4)
            self._coefs[buffer, kind] = torch.zeros(shape, device=self.device)
        return self._coefs[buffer, kind]

    def view(self, value: Value, *, relu: bool = True) -> View:
        """A value as it is read; without `relu`, its gradient passes everywhere."""
        found = self.raw(value) if value.shifted else self.plain(value.buffer, value.first)
        found.floor = 0.0 if value.relu and not value.relu_stored else -inf
        found.relu = int(value.relu and relu)
        return found

    def raw(self, value: Value, kind: str = "forward") -> View:
        """What is stored of a value, with its coefficients."""
        found = self.plain(value.buffer, value.first)
        coefs = self.coefs(value.buffer, kind)
        found.coef, found.coefs = address(coefs, 4 * value.first), value.buffer.channels
        return found

    def plain(self, buffer: Buffer, first: int = 0) -> View:
        """What is stored, from some channel on."""
        area = prod(buffer.size)
        stored = address(self.tensor(buffer), first * area)
        return View(stored, None, buffer.channels * area, 0, -inf, 0)
