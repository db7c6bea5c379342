"""One lane's engine: the verbs of a device on static buffers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from fedtiny.config import ResolvedTrain
from fedtiny.data import ImageSet
from fedtiny.devices import batches
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import (
    MOMENTUM,
    Arrays,
    Extrusion,
    Metrics,
    Places,
    RngKey,
    finite,
    optimizer,
    rule_of_round,
)
from fedtiny.devices.gpu.image_store import COLUMNS, Images, ImageStore
from fedtiny.devices.gpu.kernels import CapturedGraph, on_stream, rounding
from fedtiny.devices.gpu.network import Network, Placed, fetched
from fedtiny.devices.gpu.stand_ins import only_keyed_draws
from fedtiny.devices.gpu.step import Kind, Loss, Step
from fedtiny.devices.lr_schedule import highest_rate
from fedtiny.devices.torch_engine import EVALUATION_BATCH
from fedtiny.devices.torch_gradients import feed_gradients, tops_of
from fedtiny.devices.torch_layers import (
    frozen_statistics,
    in_training,
    least_epsilon,
    measured_moments,
    measuring,
)
from fedtiny.devices.torch_takers import SLAB, DeviceTop, GradientsAt, Taker
from fedtiny.federation.bn_statistics import freezes_bn
from fedtiny.federation.verbs import BnStatistics
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.mask import Indices
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector


@dataclass
class Shared:
    """What all lanes of a GPU have in common."""

    image_store: ImageStore
    config: ResolvedTrain
    compiled_losses: Mapping[bool, Loss] = field(default_factory=dict)
    """By whether batch norm is frozen."""
    rounds: int = 1
    """Of the run, which the learning rate may follow."""
    placing: Lock = field(default_factory=Lock)
    theta: tuple[Theta, Placed] | None = None
    pool: tuple[CandidatePool, list[Placed]] | None = None

    def placed(self, theta: Theta, network: Network) -> Placed:
        """A theta brought to the GPU, once for all lanes; a known mask's places are kept."""
        with self.placing:
            if self.theta is None or self.theta[0] is not theta:
                like = self.theta[1] if self.theta else None
                self.theta = (theta, network.place(theta, like))
            return self.theta[1]

    def candidates(self, pool: CandidatePool, network: Network) -> list[Placed]:
        """Every candidate of a pool, cut and brought to the GPU once for all lanes."""
        with self.placing:
            if self.pool is None or not pool.is_same(self.pool[0]):
                self.pool = (pool, [network.place(candidate) for candidate in pool])
            return self.pool[1]


class GpuEngine:
    """A network, and the steps that it has learned to replay."""

    def __init__(
        self, network: Network, shared: Shared, stream: torch.cuda.Stream | None, graphs: bool
    ) -> None:
        self.network = network
        self.shared = shared
        self.stream = stream
        self._exact: Network | None = None
        self.graphs = graphs and stream is not None
        self.batch = shared.config.batch_size
        self._steps: dict[tuple[Kind, Images], Step] = {}

    def load(self, theta: Theta) -> None:
        self._put(self.shared.placed(theta, self.network))

    def _put(self, placed: Placed) -> None:
        if self.network.reserve(len(placed.slots)):
            self._steps.clear()  # they were made for other buffers
        self.network.put(placed)

    def theta(self) -> Theta:
        return self.network.theta()

    def warm_up(self, theta: Theta, data: ImageSet, *, trains: bool = True) -> None:
        """Make ready what the first measurement needs and, if it `trains`, the first training."""
        self.load(theta)
        images = self.shared.image_store[data]
        self._check_draws(images)
        if trains:
            self._step(Kind(self.batch), self.network, images)
        self._in_fp32()

    @torch.no_grad()
    def _check_draws(self, images: Images) -> None:
        device, dtype = self.network.device, self.network.dtype
        inputs, _ = images.plain(torch.zeros(2, dtype=torch.int64, device=device))
        module = self.network.module
        with frozen_statistics(module), self.network.computing(), only_keyed_draws(device):
            module.train()(inputs.to(dtype))

    def _step(self, kind: Kind, network: Network, images: Images) -> Step:
        """The step of this kind; it is made where it is not at hand, and recorded if that pays."""
        if (kind, images) not in self._steps:
            rule = optimizer(self.shared.config)
            usual = kind.batch == self.batch  # others are rare, and each step holds an optimizer
            if not usual:
                self._steps = {k: s for k, s in self._steps.items() if k[0].batch == self.batch}
            own = network is self.network
            losses = self.shared.compiled_losses if usual and own else {}
            step = Step(
                *(kind, network, rule, images, losses.get(kind.freeze_bn)),
                None if own else self._copy_in(tf32=True),
            )
            if self.graphs and self.stream is not None and usual:
                before = network.theta()
                step.record(self.stream)
                network.put(network.place(before))  # the warm-ups have spoiled its values
            self._steps[kind, images] = step
        return self._steps[kind, images]

    def _recorded(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A measurement that is done again and again, with one launch each where that can be.

        What it gives must be fetched before the recording is let go.
        """
        tf32 = self._copy_in(tf32=True)
        if not self.graphs or self.stream is None:
            return rounding(tf32)(work)
        return CapturedGraph(work, self.stream, 1, tf32)

    def _copy_in(self, *, tf32: bool) -> bool | None:
        """How the fp32 copy rounds (long work is worth TF32); a lane in fp32 has no copy."""
        return tf32 if self.network.dtype != torch.float32 else None

    def train(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        epochs: int,
        sum_dense_gradients: bool = False,
        received: Theta | None = None,
        extruded: Places | None = None,
    ) -> tuple[Metrics, Arrays]:
        self.shared.pool = None  # selection is over
        size = batches.batch_size(shard, self.batch)
        network = self._in_fp32() if sum_dense_gradients else self.network
        config, rounds = self.shared.config, self.shared.rounds
        rule = rule_of_round(config, rng_key.round, rounds)
        kind = Kind(size, sum_dense_gradients, extruded is not None, rule.freeze_bn)
        step = self._step(kind, network, self.shared.image_store[shard.data])
        step.reset(batches.dropout_seed(rng_key), rule.lr, received)
        if step.extruded is not None and extruded is not None:
            steps = batches.training_steps(shard, epochs=epochs, most=self.batch)
            places = network.places(network.mask.count)[network.fixed :]
            chosen = torch.from_numpy(extruded.astype(np.int64)).to(network.device)
            highest = highest_rate(config, rng_key.round, rounds)
            step.extruded.reset(Extrusion(steps, highest), places[chosen])
        planned = self._plan(shard, rng_key, epochs, size)
        step.run(planned)
        if network is not self.network:
            self.network.follow(network)
        loss = float(step.loss) / max(1, len(planned))
        return {"loss": finite(loss, rng_key)}, self._sums(step, len(planned))

    def _plan(self, shard: DeviceData, rng_key: RngKey, epochs: int, size: int) -> Tensor:
        """Every batch of a local training: samples and what is done to each image."""
        images = self.shared.image_store[shard.data]
        parts = [
            images.plan(samples, draws)
            for samples, draws in batches.training_epochs(
                shard, rng_key, images.preparation, epochs=epochs, most=self.batch
            )
        ]
        planned = np.concatenate([*parts, np.empty((0, COLUMNS), dtype=np.int32)])
        return torch.from_numpy(planned.reshape(-1, size, COLUMNS))

    def _sums(self, step: Step, steps: int) -> Arrays:
        if not len(step.sums):
            return {}
        layout, mean = self.network.layout, step.sums / max(1, steps)
        return {
            name: fetched(layout.view(name, mean).contiguous()).numpy()
            for name in layout.param_spec.prunable
        }

    def top_gradients(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        counts: Mapping[str, int],
        epsilon: float = 0.0,
        fisher: bool = False,
    ) -> dict[str, SparseVector]:
        top = partial(DeviceTop, device=self.network.device)
        tops = tops_of(self.network.mask, counts, top)
        self._feed_gradients(shard, rng_key, tops, epsilon, fisher=fisher)
        return {name: top.result() for name, top in tops.items()}

    def gradients_at(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        positions: Mapping[str, Indices],
        epsilon: float = 0.0,
        fisher: bool = False,
    ) -> Arrays:
        found = {name: GradientsAt(own, SLAB) for name, own in positions.items()}
        self._feed_gradients(shard, rng_key, found, epsilon, fisher=fisher)
        return {name: own.result() for name, own in found.items()}

    def _feed_gradients(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        takers: Mapping[str, Taker],
        epsilon: float,
        *,
        fisher: bool = False,
    ) -> None:
        images = self.shared.image_store[shard.data]
        (samples, draws), seed = batches.gradient_batch(
            shard, rng_key, images.preparation, most=self.batch
        )
        network = self._in_fp32()
        plan = torch.from_numpy(images.plan(samples, draws)).to(network.device)
        network.set_keys(seed)
        exactly = rounding(self._copy_in(tf32=False))  # whatever other lanes do
        with exactly, network.computing() as module, least_epsilon(module, epsilon):
            inputs, labels = images.cut(plan)
            freeze_bn = freezes_bn(self.shared.config, rng_key.round, self.shared.rounds)
            in_training(module, freeze_bn=freeze_bn)
            feed_gradients(module, inputs, labels, takers, fisher=fisher)

    @property
    def exact(self) -> Network:
        """The network that measures, in fp32 (selection and gradient sums with TF32).

        In bf16 answers tie and cost points of accuracy. And batch norm multiplies the gradient
        of an empty filter by up to 300, so that what ranks highest would mostly be rounding.
        """
        own = self.network
        if own.dtype == torch.float32:
            return own
        if self._exact is None:
            self._exact = Network(own.module, own.layout, own.device, torch.float32)
        self._exact.reserve_like(own)
        return self._exact

    def _in_fp32(self) -> Network:
        """The network as it is now, in fp32."""
        exact = self.exact
        if exact is not self.network:
            exact.follow(self.network)
        return exact

    @torch.no_grad()
    def bn_statistics(self, shard: DeviceData, pool: CandidatePool, how: BnStatistics) -> Arrays:
        inputs, _ = self._plain(shard, shard.development)
        parts = inputs.tensor_split(batches.measuring_parts(len(inputs), how.batch_size))
        if how.second_moment == "square":
            return self._moments(pool, parts)
        momentum = None if how.passes == 1 else MOMENTUM
        names, network = [*self.network.layout.param_spec.statistics], self.exact

        def measure() -> Tensor:
            with measuring(network.module, momentum):
                for part in parts * how.passes:
                    network.module(part)
            return network.measured(names)

        measured = self._recorded(measure)
        rows = torch.stack([measured().clone() for _ in self._each(pool)]).cpu().numpy()
        ends = np.cumsum([self.network.statistics[name].numel() for name in names])
        return dict(zip(names, np.split(rows, ends[:-1], axis=1), strict=True)) if names else {}

    def _moments(self, pool: CandidatePool, parts: Sequence[Tensor]) -> Arrays:
        with rounding(self._copy_in(tf32=False)):
            rows = [measured_moments(self.exact.module, parts) for _ in self._each(pool)]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    @torch.no_grad()
    def losses(
        self, shard: DeviceData, pool: CandidatePool, statistics: Arrays
    ) -> NDArray[np.float32]:
        inputs, labels = self._plain(shard, shard.development)
        none = np.empty((len(pool), 0), dtype=np.float32)
        joined = np.concatenate([none, *statistics.values()], axis=1)
        values = torch.from_numpy(joined).to(self.network.device)
        network = self.exact
        loss = self._recorded(lambda: _measure(network, inputs, labels)[0] / len(labels))
        found = []
        for number in self._each(pool):
            network.measure(values[number], [*statistics])
            found.append(loss().clone())
        return torch.stack(found).cpu().numpy().astype(np.float32)

    def _each(self, pool: CandidatePool) -> Iterator[int]:
        """Compute with one candidate after the other."""
        for number, placed in enumerate(self.shared.candidates(pool, self.network)):
            self.exact.put(placed)
            yield number

    @torch.no_grad()
    def evaluate(self, shard: DeviceData) -> Metrics:
        network = self._in_fp32()
        sums = torch.zeros(2, dtype=torch.float64, device=network.device)
        with rounding(self._copy_in(tf32=False)):
            for start in range(0, len(shard), EVALUATION_BATCH):
                part = shard.indices[start : start + EVALUATION_BATCH]
                sums += torch.stack(_measure(network, *self._plain(shard, part)))
        loss, correct = sums.tolist()
        return {"loss": loss / len(shard), "accuracy": correct / len(shard)}

    def _plain(self, shard: DeviceData, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        samples = torch.from_numpy(indices).to(self.network.device)
        return self.shared.image_store[shard.data].plain(samples)

    def on_its_stream(self) -> AbstractContextManager[None]:
        """Everything within is put on the lane's own stream, and done when it is left."""
        return on_stream(self.network.device, self.stream)


def _measure(network: Network, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss and number of right answers."""
    logits = network.module.eval()(inputs)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    return loss.double(), (logits.argmax(1) == labels).sum().double()
