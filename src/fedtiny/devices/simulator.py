"""The reference simulator: every device on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtiny.config import Config
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.executors import Executor, Task
from fedtiny.devices.link import CountingLink, EncodingLink, Link
from fedtiny.errors import FedTinyError, ReplyError, RunError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.reply_validator import ReplyValidator
from fedtiny.federation.robust import reducer_for
from fedtiny.federation.transport import ABSENT, STRAGGLER, Outcome, Traffic
from fedtiny.federation.wire import Known
from fedtiny.randomness import generator
from fedtiny.sparse.theta import Theta


@dataclass(frozen=True)
class Delivery:
    """What became of a request on its way to a device: received, or some trouble."""

    device: int
    size: int
    received: Request | None
    trouble: str = ""


class Simulator:
    """A transport behind which an executor plays the devices.

    There is one model for each process of the executor, whatever the number of devices, and a reply
    is examined and averaged in, in device order, as soon as it comes. Failing and late devices
    are drawn as the config says.
    """

    def __init__(self, executor: Executor, shards: Sequence[DeviceData], config: Config) -> None:
        self.executor = executor
        self.shards = {shard.device: shard for shard in shards}
        self.config = config
        kind = EncodingLink if config.fleet.wire == "encode" else CountingLink
        self.links: dict[int, Link] = {device: kind() for device in self.shards}

    @property
    def devices(self) -> Sequence[int]:
        return tuple(self.shards)

    def present(self) -> Sequence[int]:
        return self.devices

    def ask(self, devices: Sequence[int], request: Request, reducer: str) -> Outcome:
        deliveries = [self._deliver(device, request) for device in sorted(devices)]
        failed = {sent.device: sent.trouble for sent in deliveries if sent.trouble}
        tasks = [
            Task(self.shards[sent.device], sent.received)
            for sent in deliveries
            if sent.received is not None
        ]
        validator = ReplyValidator(request, reducer, self.config)
        replies, up = reducer_for(reducer, self.config.robustness, request.theta), 0
        for task, answer in zip(tasks, self.executor.answers(tasks), strict=True):
            received, size = self._receive(task.shard, answer, validator)
            up += size
            if isinstance(received, FedTinyError):
                failed[task.shard.device] = str(received)
            else:
                replies.add(received)
        traffic = Traffic(down=sum(sent.size for sent in deliveries), up=up)
        return replies.outcome(dict(sorted(failed.items())), traffic)

    def _deliver(self, device: int, request: Request) -> Delivery:
        """Send a request; one that is out of reach costs nothing, one that is late is wasted."""
        trouble = self._trouble(device, request)
        if trouble == ABSENT:
            return Delivery(device, 0, None, trouble)
        received, size = self.links[device].down(request)
        return Delivery(device, size, None if trouble else received, trouble)

    def _receive(
        self, shard: DeviceData, answer: Reply | FedTinyError, validator: ReplyValidator
    ) -> tuple[Reply | FedTinyError, int]:
        """A reply that counts, or why it does not; with its bytes."""
        if isinstance(answer, FedTinyError):
            return answer, 0
        received, size = self.links[shard.device].up(answer, validator)
        if isinstance(received, ReplyError):
            return received, size
        try:
            validator.check(received, shard.device, len(shard))
        except ReplyError as refusal:
            return refusal, size
        return received, size

    def _trouble(self, device: int, request: Request) -> str:
        """Whether the device is simulated to be out of reach or late this time."""
        fleet = self.config.fleet
        draw = generator(
            self.config.seed, f"trouble {request.action}", round=request.round, device=device
        )
        absent, straggler = draw.random(2)
        if absent < fleet.fail_rate:
            return ABSENT
        return STRAGGLER if straggler < fleet.straggler_rate else ""

    def state(self) -> dict[str, Any]:
        return {str(k): [link.known.mask, link.known.theta] for k, link in self.links.items()}

    def restore(self, state: Mapping[str, Any], theta: Theta) -> None:
        if state.get("flower"):
            raise RunError(
                "the devices of this run are real; continue it with flwr run and "
                "--run-config 'flower.resume=true'"
            )
        for device, versions in state.items():
            self.links[int(device)].restore(Known(*versions), theta)

    def close(self) -> None:
        self.executor.close()
