"""The reference simulator: every device on this machine, behind a wire where bytes are counted."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedtiny.config import Config
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.executors import Executor, Task
from fedtiny.devices.node import Receiver
from fedtiny.devices.secure import SecureFleet, heaviest
from fedtiny.errors import FedTinyError, RunError
from fedtiny.federation import wire
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.reply_validator import Arrived, ReplyValidator, collect
from fedtiny.federation.secure_exchange import SECURE
from fedtiny.federation.transport import ABSENT, STRAGGLER, Outcome, Traffic
from fedtiny.randomness import generator
from fedtiny.sparse.theta import Theta


class Link:
    """Carries a request down and a reply up, and counts their bytes.

    `known` is what the device holds, as far as the server knows: a mask or a theta that it has
    is not sent again. A link that encodes really sends every message as bytes; another hands it
    over as it is.
    """

    def __init__(self, *, encodes: bool) -> None:
        self.encodes = encodes
        self.known = wire.NOTHING_KNOWN
        self.receiver = Receiver()

    def down(self, request: Request) -> tuple[Request, int]:
        """The request as the device receives it, and its bytes."""
        known, self.known = self.known, wire.Known.of(request.theta)
        if not self.encodes:
            return request, wire.request_size(request, known)
        param_spec, data = request.theta.param_spec, wire.encode_request(request, known)
        try:
            return self.receiver.receive(data, param_spec), len(data)
        except wire.MissingVersion:
            complete = wire.encode_request(request, wire.NOTHING_KNOWN)
            return self.receiver.receive(complete, param_spec), len(data) + len(complete)

    def up(self, reply: Reply, request: Request) -> tuple[Reply | bytes, int]:
        """The reply as the server receives it, and its bytes."""
        mask = request.theta.mask
        if not self.encodes:
            return reply, wire.reply_size(reply, mask)
        data = wire.encode_reply(reply, mask)
        return data, len(data)

    def restore(self, known: wire.Known, theta: Theta) -> None:
        """Go on where a run stopped with the server at this theta.

        A device keeps what it holds while the server is away, as far as it is still of use.
        """
        self.known = known
        self.receiver = Receiver(
            theta.mask if known.mask == theta.mask.version else None,
            theta if known.theta == theta.version else None,
        )


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
        self.secure = SecureFleet(config) if config.privacy.secure_aggregation else None

    @property
    def devices(self) -> Sequence[int]:
        return tuple(self.shards)

    def present(self) -> Sequence[int]:
        return self.devices

    def ask(
        self,
        devices: Sequence[int],
        request: Request,
        reducer: str,
        top_weights: Mapping[str, int] | None = None,
    ) -> Outcome:
        """A device out of reach costs nothing; what is sent to one that is late is wasted."""
        troubles = {device: self._trouble(device, request) for device in sorted(devices)}
        tasks, down = [], 0
        for device, trouble in troubles.items():
            if trouble != ABSENT:
                received, size = self.links[device].down(request)
                down += size
                tasks += [] if trouble else [Task(self.shards[device], received)]
        failed = {device: trouble for device, trouble in troubles.items() if trouble}
        validator = ReplyValidator(request, reducer, self.config, top_weights)
        if self.secure:
            ratio = self.config.selection.development_ratio
            most = heaviest(request, map(len, self.shards.values()), ratio)
            answers, sent = self._unsent(tasks), Traffic(down)
            return self.secure.collect(answers, validator, failed, sent, [*troubles], most)
        arrived, samples = self._arrived(tasks, request), sum(map(len, self.shards.values()))
        return collect(arrived, validator, failed, Traffic(down=down), samples)

    def _arrived(self, tasks: Sequence[Task], request: Request) -> Iterator[Arrived]:
        for task, answer in zip(tasks, self.executor.answers(tasks), strict=True):
            device, samples = task.shard.device, len(task.shard)
            if isinstance(answer, FedTinyError):
                yield Arrived(device, samples, answer, size=0)
            else:
                yield Arrived(device, samples, *self.links[device].up(answer, request))

    def _unsent(self, tasks: Sequence[Task]) -> Iterator[Arrived]:
        """Replies that are still on the devices: they are masked before they leave."""
        for task, answer in zip(tasks, self.executor.answers(tasks), strict=True):
            yield Arrived(task.shard.device, len(task.shard), answer, size=0)

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
        known: dict[str, Any] = {
            str(k): [link.known.mask, link.known.theta] for k, link in self.links.items()
        }
        return known | ({SECURE: self.secure.state()} if self.secure else {})

    def restore(self, state: Mapping[str, Any], theta: Theta) -> None:
        if state.get("flower"):
            raise RunError(
                "the devices of this run are real; continue it with flwr run and "
                "--run-config 'flower.resume=true'"
            )
        if self.secure and SECURE in state:
            self.secure.restore(state[SECURE])
        for device, versions in state.items():
            if device != SECURE:
                self.links[int(device)].restore(wire.Known(*versions), theta)

    def close(self) -> None:
        self.executor.close()
