"""A lane's engine for a device whose first training was done with others' in one launch."""

from typing import Any

from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Arrays, Engine, Metrics, RngKey, finite
from fedtiny.devices.gpu.sparse.trainer import Trained
from fedtiny.sparse.theta import Theta


class TrainedEngine:
    """Answers the first training with what came of it; the lane does all the rest of an `Engine`.

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

    def train(self, shard: DeviceData, rng_key: RngKey, **options: Any) -> tuple[Metrics, Arrays]:
        if rng_key.part:
            return self._loaded().train(shard, rng_key, **options)
        self._theta = Theta(self.theta().mask, self._trained.vector)
        return {"loss": finite(self._trained.loss, rng_key)}, {}

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._loaded(), verb)

    def _loaded(self) -> Engine:
        if self._theta is not None:
            self._lane.load(self._theta)
            self._theta = None
        return self._lane
