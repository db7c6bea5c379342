"""What one device is asked to do: everything that a cost is worked out from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from fedtiny.config import Config, ResolvedConfig, resolve
from fedtiny.cost.habits import Habits, habits
from fedtiny.cost.network import (
    CIFAR10_CLASSES,
    CIFAR10_SHAPE,
    Network,
    describe,
    least_small,
    named,
)
from fedtiny.models import Traced
from fedtiny.models.param_spec import Shape
from fedtiny.randomness import generator
from fedtiny.sparse.densities import uniform, uniform_noise
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.schedule import Schedule

if TYPE_CHECKING:
    from torch import nn

PAPER_SAMPLES = 5_000

Swaps = Mapping[str, int]
"""The layers that are adjusted, with the number of weights that are swapped: a_t^l."""


class Given(TypedDict, total=False):
    """What a config does not say. Left out: CIFAR-10's images and classes, 5,000 samples."""

    shape: Shape
    classes: int
    samples: int
    model: "nn.Module"
    """A network of one's own, in place of the one that the config names."""
    graph: Traced
    """What tracing the network gave, so that it is not traced again."""


@dataclass(frozen=True, eq=False)
class Workload:
    """A method that trains a network at a density on a device with so many samples.

    `network` is what devices train, `large` what it is compared with; they differ for the small
    model alone. `counts` are the kept weights by layer.
    """

    config: ResolvedConfig
    habits: Habits
    network: Network
    large: Network
    counts: Mapping[str, int]
    samples: int

    @classmethod
    def of(cls, config: Config, **given: Unpack[Given]) -> "Workload":
        """What a config asks of a device, at the same density in every layer."""
        resolved = resolve(config)
        return cls._with(resolved, _large(resolved, given), given.get("samples", PAPER_SAMPLES))

    @classmethod
    def _with(cls, config: ResolvedConfig, large: Network, samples: int) -> "Workload":
        own = habits(config.method)
        network = _small(config, large) if own.trains == "small" else large
        return cls(config, own, network, large, _counts(config, own, network), samples)

    def at(self, density: float) -> "Workload":
        """The same work with another target density."""
        return self._with(replace(self.config, density=density), self.large, self.samples)

    def under(self, mask: Mask) -> "Workload":
        """The same work with the mask that a run has come to."""
        return replace(self, counts=mask.counts)

    @property
    def kept(self) -> int:
        """Number of kept prunable weights."""
        return sum(self.counts.values())

    @property
    def least_kept(self) -> int:
        """The fewest weights of the large network that can be asked for."""
        param_spec = self.large.param_spec
        if self.habits.trains != "small" or self.network is self.large:
            return len(param_spec.prunable)
        share = least_small(self.large) / self.large.profile.parameters
        return min(param_spec.prunable_count, ceil(share * param_spec.prunable_count) + 1)

    @property
    def trained(self) -> int:
        """Number of values that training changes: kept weights, biases, batch-norm scales."""
        return self.kept + self.network.dense_parameters

    @property
    def indexed(self) -> int:
        """Number of kept weights that need a position: those of layers that are not full."""
        sizes = self.network.param_spec.sizes
        return sum(kept for layer, kept in self.counts.items() if kept < sizes[layer])

    @property
    def images(self) -> int:
        """Images that a device trains on in a round, each epoch anew."""
        return self.samples * self.config.train.local_epochs

    @property
    def batch(self) -> int:
        """Images of a mini-batch."""
        return min(self.config.train.batch_size, self.samples)

    @property
    def development(self) -> int:
        """Images that measure candidates."""
        share = round(self.config.selection.development_ratio * self.samples)
        return min(self.samples, max(2, share))

    @property
    def public(self) -> int:
        """Images of the server's public one-shot set D_s."""
        return self.config.data.n_shots * self.network.classes

    @property
    def selects(self) -> bool:
        """Whether devices compare candidates before training."""
        return self.habits.selects and self.config.selection.kind != "none"

    @cached_property
    def pool(self) -> NDArray[np.int32]:
        """Kept weights by candidate and layer, as the run will draw them."""
        draw = generator(self.config.seed, "candidates")
        param_spec, density = self.network.param_spec, self.config.density
        return uniform_noise(param_spec, density, self.config.pool_size, draw)

    @cached_property
    def adjustments(self) -> dict[int, Swaps]:
        """The rounds that adjust the mask, with what is swapped in each."""
        every = range(0, self._schedule.r_stop + 1, self._schedule.delta_r)
        swaps = {round: self.swaps(round) for round in every}
        return {round: found for round, found in swaps.items() if found}

    def swaps(self, round: int) -> Swaps:
        """What is swapped at the end of a round; nothing in a plain round."""
        if not self._adjusts or not self._schedule.adjusts(round):
            return {}
        sizes = self.network.param_spec.sizes
        numbers = {
            layer: self._schedule.pruning_number(
                round, self.counts[layer], sizes[layer] - self.counts[layer]
            )
            for layer in self._schedule.layers(self.network.param_spec, round)
        }
        return {layer: number for layer, number in numbers.items() if number}

    @property
    def _adjusts(self) -> bool:
        progressive = self.config.pruning.progressive or self.habits.adjusts_by != "top_a"
        return self.habits.adjusts_by != "nothing" and progressive

    @property
    def _schedule(self) -> Schedule:
        by_group = self.habits.adjusts_by == "top_a"
        return Schedule.of(self.config.pruning, granularity=None if by_group else "entire")


def _large(config: Config, given: Given) -> Network:
    shape, classes = given.get("shape", CIFAR10_SHAPE), given.get("classes", CIFAR10_CLASSES)
    own, graph = given.get("model"), given.get("graph")
    if own is None:
        return named(config, shape, classes, graph)
    return describe(own, shape, classes, graph=graph)


def _small(config: Config, large: Network) -> Network:
    """The small dense network with the parameters that pruning would leave of the large one."""
    if config.model == "small":
        return large
    budget = max(1, int(config.density * large.profile.parameters))
    small = replace(config, model="small", parameters=budget)
    return named(small, large.shape, large.classes)


def _counts(config: Config, own: Habits, network: Network) -> Mapping[str, int]:
    if own.trains != "sparse":
        return network.param_spec.sizes
    kept = uniform(network.param_spec, config.density).tolist()
    return dict(zip(network.param_spec.prunable, kept, strict=True))
