"""The reference simulator: every device on this machine."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedtiny.config import Config
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.executors import Executor, Task
from fedtiny.devices.link import Link
from fedtiny.errors import FedTinyError, RunError
from fedtiny.federation.messages import Request
from fedtiny.federation.reply_validator import Arrived, ReplyValidator, collect
from fedtiny.federation.transport import ABSENT, STRAGGLER, Outcome, Traffic
from fedtiny.federation.wire import Known
from fedtiny.randomness import generator
from fedtiny.sparse.theta import Theta


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
        encodes = config.fleet.wire == "encode"
        self.links = {device: Link(encodes=encodes) for device in self.shards}

    @property
    def devices(self) -> Sequence[int]:
        return tuple(self.shards)

    def present(self) -> Sequence[int]:
        return self.devices

    def ask(self, devices: Sequence[int], request: Request, reducer: str) -> Outcome:
        """A device out of reach costs nothing; what is sent to one that is late is wasted."""
        troubles = {device: self._trouble(device, request) for device in sorted(devices)}
        tasks, down = [], 0
        for device, trouble in troubles.items():
            if trouble != ABSENT:
                received, size = self.links[device].down(request)
                down += size
                tasks += [] if trouble else [Task(self.shards[device], received)]
        failed = {device: trouble for device, trouble in troubles.items() if trouble}
        validator = ReplyValidator(request, reducer, self.config)
        return collect(self._arrived(tasks, request), validator, failed, Traffic(down=down))

    def _arrived(self, tasks: Sequence[Task], request: Request) -> Iterator[Arrived]:
        for task, answer in zip(tasks, self.executor.answers(tasks), strict=True):
            device, samples = task.shard.device, len(task.shard)
            if isinstance(answer, FedTinyError):
                yield Arrived(device, samples, answer, size=0)
            else:
                yield Arrived(device, samples, *self.links[device].up(answer, request))

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
