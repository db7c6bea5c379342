"""Where each value of a theta lies in the buffers that the network computes with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtiny.errors import ModelError
from fedtiny.models.analysis import LAYERS
from fedtiny.models.param_spec import ParamSpec, Shape
from fedtiny.sparse.mask import Mask

ALIGNED = 64  # values; tensor cores want weights to begin at multiples of 16 bytes
Slots = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The places of a model's values.

    `weights` (of convolutions and linear layers, biases too) lie in one flat buffer in the
    precision of the computation, pruned ones as zeros. Every other parameter is computed with as
    it is (`own`), batch-norm statistics beside them (`statistics`). What is trained is one
    vector: own parameters, then weights of dense layers, then kept weights of prunable layers.
    """

    param_spec: ParamSpec
    weights: Mapping[str, Shape]
    own: Mapping[str, Shape]
    statistics: Mapping[str, Shape]
    channels_last: bool

    @classmethod
    def of(cls, model: nn.Module, param_spec: ParamSpec, channels_last: bool) -> "Layout":
        """The layout of a model's tensors."""
        layers = {n for n, module in model.named_modules() if isinstance(module, LAYERS)}
        trained = _parameters(model)
        dense = param_spec.dense
        weights = {n: s for n, s in dense.items() if n.rpartition(".")[0] in layers}
        own = {n: s for n, s in dense.items() if n in trained and n not in weights}
        rest = {n: s for n, s in dense.items() if n not in trained}
        return cls(param_spec, {**param_spec.prunable, **weights}, own, rest, channels_last)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each weight begins in the flat buffer."""
        found, start = {}, 0
        for name, shape in self.weights.items():
            found[name] = start
            start += -(-prod(shape) // ALIGNED) * ALIGNED
        return found

    @cached_property
    def slots(self) -> int:
        """Size of the flat buffer; its last place takes what stands for no weight."""
        name, shape = list(self.weights.items())[-1]
        return self.offsets[name] + -(-prod(shape) // ALIGNED) * ALIGNED + ALIGNED

    @property
    def nowhere(self) -> int:
        """The place that no weight uses."""
        return self.slots - 1

    @cached_property
    def own_size(self) -> int:
        """Number of parameters that are computed with as they are."""
        return sum(prod(shape) for shape in self.own.values())

    @cached_property
    def dense_slots(self) -> Slots:
        """Places of the weights of dense layers."""
        dense = [self._places(name, None) for name in self.weights if name in self.param_spec.dense]
        return np.concatenate([*dense, np.empty(0, dtype=np.int64)])

    def kept_slots(self, mask: Mask) -> Slots:
        """Places of the kept weights of prunable layers, in the order of a theta."""
        return np.concatenate(
            [self._places(n, None if mask.is_full(n) else mask.indices(n)) for n in mask]
        )

    def _places(self, name: str, positions: NDArray[np.int32] | None) -> Slots:
        """Places of a weight's values at some positions, or of all of them."""
        shape = self.weights[name]
        flat = np.arange(prod(shape)) if positions is None else positions.astype(np.int64)
        if self._is_turned(shape):
            _, channels, height, width = shape
            area = height * width
            filters, inside = np.divmod(flat, channels * area)
            channel, pixel = np.divmod(inside, area)
            flat = (filters * area + pixel) * channels + channel
        return flat + self.offsets[name]

    def _is_turned(self, shape: Shape) -> bool:
        return self.channels_last and len(shape) == 4

    def view(self, name: str, flat: Tensor) -> Tensor:
        """A weight in its full shape, out of the flat buffer."""
        shape, start = self.weights[name], self.offsets[name]
        part = flat[start : start + prod(shape)]
        if not self._is_turned(shape):
            return part.view(shape)
        filters, channels, height, width = shape
        return part.view(filters, height, width, channels).permute(0, 3, 1, 2)

    def flattened(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of a weight's shape as it lies in the flat buffer."""
        turned = tensor.permute(0, 2, 3, 1) if self._is_turned(self.weights[name]) else tensor
        return turned.reshape(-1)

    def gaps(self) -> Iterator[int]:
        """Unused places behind each weight; behind the last one lies `nowhere`."""
        starts = [*self.offsets.values(), self.slots]
        for number, shape in enumerate(self.weights.values()):
            yield starts[number + 1] - starts[number] - prod(shape)

    @cached_property
    def dense_order(self) -> tuple[Slots, Slots]:
        """Which of a theta's dense values are trained, and which are statistics."""
        sizes = self.param_spec.dense_sizes
        ends = dict(zip(sizes, np.cumsum([*sizes.values()]), strict=True))
        starts = {name: int(end) - sizes[name] for name, end in ends.items()}
        trained = [*self.own, *(name for name in self.weights if name in self.param_spec.dense)]
        return self._run(trained, starts), self._run([*self.statistics], starts)

    def _run(self, names: list[str], starts: Mapping[str, int]) -> Slots:
        runs = [np.arange(starts[n], starts[n] + self.param_spec.dense_sizes[n]) for n in names]
        return np.concatenate([*runs, np.empty(0, dtype=np.int64)]).astype(np.int64)


def _parameters(model: nn.Module) -> set[str]:
    """The names of a model's parameters, each of which must have one."""
    first: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(parameter, name)
        if other != name:
            raise ModelError(
                f"'{other}' and '{name}' are one parameter, which the GPU simulator cannot train; "
                "use --simulator reference"
            )
    return set(first.values())
