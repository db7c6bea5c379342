"""The native engine: a device that really is sparse, without torch."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedtiny.data import ImageSet
from fedtiny.data.transforms import ArrayTransform
from fedtiny.devices import batches
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.engine import (
    MOMENTUM,
    Adam,
    Arrays,
    Metrics,
    Places,
    RngKey,
    Rule,
    finite,
    rule_of_round,
    under,
)
from fedtiny.errors import FedTinyError, ModelError
from fedtiny.federation.bn_statistics import freezes_bn
from fedtiny.federation.verbs import BnStatistics
from fedtiny.native.library import Options, Rates
from fedtiny.native.model import NativeModel
from fedtiny.sparse.candidates import CandidatePool, CutCandidates
from fedtiny.sparse.mask import Indices, Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

Floats = NDArray[np.float32]
STEP_KEY = 0x9E3779B97F4A7C15  # sets the dropout of one training step apart from the next


class NativeEngine:
    """One network in native code that plays every device in turn."""

    def __init__(self, spec: DeviceSpec) -> None:
        if spec.graph is None:
            raise ModelError("this network has no native form")
        config = spec.config
        self.param_spec = spec.param_spec
        self.transform = ArrayTransform(**asdict(spec.preparation))
        self.model = NativeModel(spec.graph)
        self.batch = config.train.batch_size
        self.config, self.rounds = config.train, config.rounds
        self._remove_dead = config.device.remove_dead
        self._options = Options(
            batch=self.batch,
            threads=config.threads,
            storage=config.device.storage,
            recompute=config.device.recompute,
            remove_dead=config.device.remove_dead,
            budget=config.device_budget,
            optimizer=config.train.optimizer,
            proximal=config.train.proximal_mu > 0,
        )
        self._mask: Mask | None = None
        self._candidates = CutCandidates()

    def load(self, theta: Theta) -> None:
        if self._mask is None or theta.mask != self._mask:
            self._mask = None
            self.model.prepare(self._options, theta.mask.positions)
            self._mask = theta.mask
        for name, place in theta.places.items():
            self.model.set(name, theta.vector[place])

    def _reserve(
        self, *, forward_batch: int = 0, top_count: int = 0, complete: bool = False
    ) -> None:
        """See that there is memory for a larger forward pass or more of the largest gradients.

        The gradients of pruned weights need the `complete` network, with its dead channels.
        """
        options = replace(
            self._options,
            forward_batch=max(self._options.forward_batch or self.batch, forward_batch),
            top_count=max(self._options.top_count, top_count),
            remove_dead=self._remove_dead and not complete,
        )
        if options == self._options:
            return
        theta = self.theta() if self._mask is not None else None
        self._options, self._mask = options, None
        if theta is not None:
            self.load(theta)

    def theta(self) -> Theta:
        assert self._mask is not None
        names = (*self.param_spec.prunable, *self.param_spec.dense)
        return Theta(self._mask, np.concatenate([self.model.get(name) for name in names]))

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
        if extruded is not None:
            raise FedTinyError("native devices cannot extrude weights; use --device-backend torch")
        self._candidates.forget()
        self._reserve(complete=sum_dense_gradients)
        sizes = self.param_spec.sizes if sum_dense_gradients else {}
        sums = {name: np.zeros(size, dtype=np.float32) for name, size in sizes.items()}
        seed, losses = batches.dropout_seed(rng_key), []
        self._start(rng_key, received)
        frozen = self._freezes_bn(rng_key)
        for step, (samples, draws) in enumerate(
            batches.training_batches(shard, rng_key, self.transform, epochs=epochs, most=self.batch)
        ):
            images = self.transform.augment(shard.data.images[samples], draws)
            labels = shard.data.labels[samples]
            key = (seed + step * STEP_KEY) % 2**64
            score = self.model.train(images, labels, seed=key, freeze_norms=frozen, dense=sums)
            losses.append(score.loss / len(labels))
        mean = float(np.mean(losses)) if losses else 0.0
        return {"loss": finite(mean, rng_key)}, {
            name: (total / np.float32(max(len(losses), 1))).reshape(self.param_spec.prunable[name])
            for name, total in sums.items()
        }

    def _start(self, rng_key: RngKey, received: Theta | None) -> None:
        """A fresh optimizer with this round's rate; FedProx holds it to what was received."""
        rule = rule_of_round(self.config, rng_key.round, self.rounds)
        if received is None or not rule.proximal_mu:
            self.model.start(_rates(replace(rule, proximal_mu=0.0)))
            return
        current = self.theta()
        self.load(under(current.mask, received))
        self.model.start(_rates(rule))
        self.load(current)

    def _freezes_bn(self, rng_key: RngKey) -> bool:
        return freezes_bn(self.config, rng_key.round, self.rounds)

    def top_gradients(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        counts: Mapping[str, int],
        epsilon: float = 0.0,
        fisher: bool = False,
    ) -> dict[str, SparseVector]:
        sizes = self.param_spec.sizes
        most = max((min(a, sizes[n]) for n, a in counts.items()), default=0)
        self._reserve(top_count=most, complete=True)
        images, labels, seed = self._gradient_batch(shard, rng_key)
        found = self.model.top_gradients(
            *(images, labels, counts),
            seed=seed,
            epsilon=epsilon,
            freeze_norms=self._freezes_bn(rng_key),
            fisher=fisher,
        )
        return {name: SparseVector(sizes[name], *pair) for name, pair in found.items()}

    def gradients_at(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        positions: Mapping[str, Indices],
        epsilon: float = 0.0,
        fisher: bool = False,
    ) -> Arrays:
        self._reserve(complete=True)
        images, labels, seed = self._gradient_batch(shard, rng_key)
        return self.model.gradients_at(
            *(images, labels, positions),
            seed=seed,
            epsilon=epsilon,
            freeze_norms=self._freezes_bn(rng_key),
            fisher=fisher,
        )

    def _gradient_batch(
        self, shard: DeviceData, rng_key: RngKey
    ) -> tuple[Floats, NDArray[np.int64], int]:
        """The images and labels on which gradients of pruned weights are measured, and a seed."""
        (samples, draws), seed = batches.gradient_batch(
            shard, rng_key, self.transform, most=self.batch
        )
        images = self.transform.augment(shard.data.images[samples], draws)
        return images, shard.data.labels[samples], seed

    def bn_statistics(self, shard: DeviceData, pool: CandidatePool, how: BnStatistics) -> Arrays:
        inputs = self.transform.normalise(shard.data.images[shard.development])
        parts = np.array_split(inputs, batches.measuring_parts(len(inputs), how.batch_size))
        self._reserve(forward_batch=max(len(part) for part in parts))
        rows = []
        for candidate in self._candidates.of(pool):
            self.load(candidate)
            exact = how.second_moment == "square"
            rows.append(self._moments(parts) if exact else self._means(parts, how.passes))
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def _means(self, parts: list[Floats], passes: int) -> dict[str, Floats]:
        """Statistics from reset ones: the mean over batches, or a running mean over passes."""
        found = {
            f"{norm}.{kind}": np.full(self.param_spec.dense[f"{norm}.running_mean"], first)
            for norm in self.param_spec.norms
            for kind, first in (("running_mean", 0.0), ("running_var", 1.0))
        }
        for number, part in enumerate(parts * passes, start=1):
            weight = 1 / number if passes == 1 else MOMENTUM
            self.model.forward(part, own_statistics=True)
            for norm in self.param_spec.norms:
                mean, var = self.model.batch_statistics(norm, corrected=True)
                for kind, value in (("running_mean", mean), ("running_var", var)):
                    found[f"{norm}.{kind}"] += weight * (value - found[f"{norm}.{kind}"])
        return {name: values.astype(np.float32) for name, values in found.items()}

    def _moments(self, parts: list[Floats]) -> dict[str, Floats]:
        """E[x] and E[x^2] of what each batch-norm layer sees over all samples."""
        samples = sum(len(part) for part in parts)
        found: dict[str, NDArray[np.float64]] = {}
        for part in parts:
            self.model.forward(part, own_statistics=True)
            for norm in self.param_spec.norms:
                mean, var = self.model.batch_statistics(norm)
                for kind, value in (("running_mean", mean), ("running_square", var + mean**2)):
                    key = f"{norm}.{kind}"
                    found[key] = found.get(key, 0.0) + value * (len(part) / samples)
        return {name: values.astype(np.float32) for name, values in found.items()}

    def losses(self, shard: DeviceData, pool: CandidatePool, statistics: Arrays) -> Floats:
        found = []
        for c, candidate in enumerate(self._candidates.of(pool)):
            self.load(candidate.with_dense({name: rows[c] for name, rows in statistics.items()}))
            found.append(self._measure(shard.data, shard.development)["loss"])
        return np.array(found, dtype=np.float32)

    def evaluate(self, shard: DeviceData) -> Metrics:
        return self._measure(shard.data, shard.indices)

    def _measure(self, data: ImageSet, indices: NDArray[np.int64]) -> Metrics:
        """Mean loss and accuracy on some images."""
        loss, correct = 0.0, 0
        size = max(self._options.forward_batch or 0, self.batch)
        for start in range(0, len(indices), size):
            samples = indices[start : start + size]
            images = self.transform.normalise(data.images[samples])
            score = self.model.forward(images, data.labels[samples])
            loss, correct = loss + score.loss, correct + score.correct
        return {"loss": loss / len(indices), "accuracy": correct / len(indices)}


def _rates(rule: Rule) -> Rates:
    decay = rule.weight_decay
    rates = partial(
        Rates,
        rule.lr,
        decay=decay,
        rest_decay=decay if rule.decay_norms else 0.0,
        proximal=rule.proximal_mu,
    )
    if isinstance(rule, Adam):
        return rates(betas=rule.betas, epsilon=rule.eps)
    return rates(momentum=rule.momentum)
