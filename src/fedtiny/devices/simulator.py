"""The reference simulator: every device in one process, one after the other."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedtiny.config import Config
from fedtiny.devices.engine import Engine
from fedtiny.devices.link import CountingLink, EncodingLink, Link
from fedtiny.devices.node import answer
from fedtiny.devices.shard import Shard
from fedtiny.errors import FedTinyError
from fedtiny.federation.door import ABSENT, LATE, Outcome, Traffic
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.reduce import REDUCERS
from fedtiny.federation.wire import Known
from fedtiny.randomness import generator


class Simulator:
    """A door behind which one engine plays each device in turn.

    There is one model, whatever the number of devices, and a reply is averaged in before the
    next device starts. Failing and late devices are drawn as the config says.
    """

    def __init__(self, engine: Engine, shards: Sequence[Shard], config: Config) -> None:
        self.engine = engine
        self.shards = {shard.device: shard for shard in shards}
        self.config = config
        kind = EncodingLink if config.fleet.wire == "encode" else CountingLink
        self.links: dict[int, Link] = {device: kind() for device in self.shards}

    @property
    def devices(self) -> Sequence[int]:
        return tuple(self.shards)

    def ask(self, devices: Sequence[int], request: Request, reducer: str) -> Outcome:
        replies, failed, traffic = REDUCERS[reducer](), dict[int, str](), Traffic()
        for device in sorted(devices):
            try:
                reply, moved = self._exchange(device, request)
            except _NoReplyError as silence:
                failed[device], moved = str(silence), silence.traffic
            else:
                replies.add(reply)
            traffic += moved
        return replies.outcome(failed, traffic)

    def _exchange(self, device: int, request: Request) -> tuple[Reply, Traffic]:
        link, trouble = self.links[device], self._trouble(device, request)
        if trouble == ABSENT:
            raise _NoReplyError(ABSENT, Traffic())
        received, down = link.down(request)
        if trouble == LATE:
            raise _NoReplyError(LATE, Traffic(down))
        try:
            reply = answer(self.engine, received, self.shards[device], self.config.seed)
        except FedTinyError as error:
            raise _NoReplyError(str(error), Traffic(down)) from error
        delivered, up = link.up(reply, received.theta.mask)
        return delivered, Traffic(down, up)

    def _trouble(self, device: int, request: Request) -> str:
        """Whether the device is simulated to be out of reach or late this time."""
        fleet = self.config.fleet
        draw = generator(
            self.config.seed, f"trouble {request.action}", round=request.round, device=device
        )
        absent, late = draw.random(2)
        if absent < fleet.fail_rate:
            return ABSENT
        return LATE if late < fleet.late_rate else ""

    def state(self) -> dict[str, Any]:
        return {str(k): [link.known.mask, link.known.theta] for k, link in self.links.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        for device, (mask, theta) in state.items():
            self.links[int(device)].known = Known(mask, theta)


class _NoReplyError(Exception):
    def __init__(self, reason: str, traffic: Traffic) -> None:
        super().__init__(reason)
        self.traffic = traffic
