"""A lane's engine for a device whose first training was done with others' in one launch."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Arrays, Engine, Metrics, RngKey, finite
from fedtiny.devices.gpu.sparse.trainer import Trained
from fedtiny.federation.verbs import BnStatistics
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector


class TrainedEngine:
    """Answers the first training with what came of it; the lane does the rest.

    The lane gets a theta only when a verb computes with it.
    """

    def __init__(self, lane: Engine, trained: Trained) -> None:
        self._lane = lane
        self._trained = trained
        self._theta: Theta | None = None
        """What the lane does not hold yet."""

    def load(self, theta: Theta) -> None:
        self._theta = theta

    def theta(self) -> Theta:
        return self._lane.theta() if self._theta is None else self._theta

    def _loaded(self) -> Engine:
        if self._theta is not None:
            self._lane.load(self._theta)
            self._theta = None
        return self._lane

    def train(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        epochs: int,
        sum_dense_gradients: bool = False,
        received: Theta | None = None,
    ) -> tuple[Metrics, Arrays]:
        if rng_key.part:
            return self._loaded().train(
                shard,
                rng_key,
                epochs=epochs,
                sum_dense_gradients=sum_dense_gradients,
                received=received,
            )
        self._theta = Theta(self.theta().mask, self._trained.vector)
        return {"loss": finite(self._trained.loss, rng_key)}, {}

    def top_gradients(
        self, shard: DeviceData, rng_key: RngKey, *, counts: Mapping[str, int], epsilon: float = 0.0
    ) -> dict[str, SparseVector]:
        return self._loaded().top_gradients(shard, rng_key, counts=counts, epsilon=epsilon)

    def bn_statistics(self, shard: DeviceData, pool: CandidatePool, how: BnStatistics) -> Arrays:
        return self._loaded().bn_statistics(shard, pool, how)

    def losses(
        self, shard: DeviceData, pool: CandidatePool, statistics: Arrays
    ) -> NDArray[np.float32]:
        return self._loaded().losses(shard, pool, statistics)

    def evaluate(self, shard: DeviceData) -> Metrics:
        return self._loaded().evaluate(shard)
