"""The ClientApp: a node that answers questions on its own data, with what its context remembers."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtiny.data import ImageSet
from fedtiny.devices.device_data import DeviceData, shard
from fedtiny.devices.node import Receiver, answer
from fedtiny.devices.place_names import place_of
from fedtiny.devices.remote_devices import RemoteDevice
from fedtiny.errors import FedTinyError
from fedtiny.federation import wire
from fedtiny.federation.messages import Reply, Request
from fedtiny.flower import messages
from fedtiny.flower.messages import DONE, FAILED, LACKS, Answer, Arrival, NodeSpec, Question, key_of
from fedtiny.flower.node_log import NodeError, told_to_server
from fedtiny.paths import user_path
from fedtiny.runs.inputs import load_data
from fedtiny.runs.own_samples import own_samples
from fedtiny.runs.split import Split, share_out
from fedtiny.sparse.theta import Theta

NodeConfig = Mapping[str, Any]
GATEWAY = "gateway"  # HOST:PORT in the config of a node that stands for a device without Python
SPEC, THETA = "fedtiny.spec", "fedtiny.theta"  # in the state of a context
app = ClientApp()


def shard_of(spec: NodeSpec, device: int, node: NodeConfig) -> DeviceData:
    """The device's data; its development set is the same for every message of a run."""
    if spec.own_data:
        if "data" not in node:
            raise NodeError(
                "this run takes nodes with data of their own: start them with "
                "--node-config 'data=\"PATH\"'"
            )
        images = _own_set(spec, user_path(str(node["data"]), "data"))
        own = np.arange(len(images))
    else:
        part = _part(spec, node)
        images, split = _shared_set(spec, str(node.get("data-root", "")))
        own = split.devices.devices[part]
    return shard(device, images, own, spec.config.selection.development_ratio, spec.config.seed)


def claim(node: NodeConfig) -> int | None:
    """The device that a node wants to be, if it says so."""
    number = node.get("partition-id")
    return number if type(number) is int and number >= 0 else None


def _part(spec: NodeSpec, node: NodeConfig) -> int:
    """Which part of the named set is the node's."""
    part, devices = claim(node), spec.config.fleet.devices
    parts = node.get("num-partitions", devices)
    if part is None or parts != devices or part >= devices:
        raise NodeError(
            f"this run shares {spec.config.data.name} among {devices} nodes: start each with "
            f"--node-config 'partition-id=K num-partitions={devices}', K from 0 to {devices - 1}"
        )
    return part


@lru_cache(maxsize=1)  # a process of many nodes, as in a simulation, loads once
def _shared_set(spec: NodeSpec, root: str) -> tuple[ImageSet, Split]:
    config = spec.config
    if root:
        config = replace(config, data=replace(config.data, root=root))
    data = load_data(config)
    return data.train, share_out(data, config)


@lru_cache(maxsize=1)
def _own_set(spec: NodeSpec, path: Path) -> ImageSet:
    """The node's own samples, of the shape of the run's."""
    layout = spec.device.preparation.layout
    return own_samples(path, spec.config, spec.shape, spec.classes, layout)


class Memory:
    """A node's spec and the theta that it was sent last, kept in the state of its context.

    In a deployment every message starts a fresh process; only Flower's `context.state` outlives it.
    """

    def __init__(self, state: RecordDict) -> None:
        self._state = state

    def keep_spec(self, text: str) -> None:
        """Remember another run; what was held for the one before is of no use."""
        if self._read(SPEC) != text.encode():
            self._state.pop(THETA, None)
            self._state[SPEC] = messages.blob(text.encode())

    def spec(self, key: str) -> NodeSpec | None:
        """The spec of that name, if it is held."""
        text = self._read(SPEC).decode()
        return NodeSpec.from_text(text) if text and key_of(text) == key else None

    def receiver(self, spec: NodeSpec) -> Receiver:
        """The device's end of the link, where it was left."""
        data = self._read(THETA)
        if not data:
            return Receiver()
        theta = wire.decode_request(data, spec.device.param_spec).theta
        return Receiver(theta.mask, theta)

    def keep_theta(self, theta: Theta) -> None:
        """Remember a theta, as a request that carries nothing else."""
        holder = Request("held", "held", 0, (), theta)
        self._state[THETA] = messages.blob(wire.encode_request(holder, wire.NOTHING_KNOWN))

    def _read(self, name: str) -> bytes:
        record = self._state.array_records.get(name)
        return record["data"].data if record is not None else b""


def arrive(question: Question, memory: Memory, node: NodeConfig) -> Arrival:
    """Take the spec of a run and say who is here; data that does not fit is told at once."""
    memory.keep_spec(question.spec)
    spec = NodeSpec.from_text(question.spec)
    if GATEWAY in node:
        with closing(device_of(spec, claim(node), node)) as device:
            own = claim(node) if claim(node) is not None else device.hello.device
            return Arrival(str(node["name"]), device.hello.samples, own)
    held = shard_of(spec, claim(node) or 0, node)
    return Arrival(str(node["name"]), len(held), claim(node))


def respond(question: Question, memory: Memory, node: NodeConfig) -> Answer:
    """Do the work of a request; which verbs it takes, the request itself says."""
    if question.spec:
        memory.keep_spec(question.spec)
    spec = memory.spec(question.spec_key)
    if spec is None:
        return Answer(LACKS, messages.SPEC)
    receiver = memory.receiver(spec)
    held = receiver.theta
    request = receiver.receive(question.request, spec.device.param_spec)
    memory.keep_theta(request.theta)
    if GATEWAY in node:
        reply = _answer_of_device(spec, question.device, node, request, held)
    else:
        own = shard_of(spec, question.device, node)
        reply = answer(_engine(spec), request, own, spec.config.seed)
    return Answer(DONE, reply=wire.encode_reply(reply, request.theta.mask))


def device_of(spec: NodeSpec, number: int | None, node: NodeConfig) -> RemoteDevice:
    """The device without Python for which this node stands, told of the run."""
    if spec.device.graph is None:
        raise NodeError(
            "the devices of this run compute in PyTorch, which those behind a gateway do not have: "
            'run it with device_backend="native"'
        )
    place = place_of(f"gateway://{node[GATEWAY]}")
    device = RemoteDevice(number, place, spec.config.device.timeout)
    try:
        device.check(spec.shape, len(spec.classes))
        device.equip(spec.device)
    except BaseException:
        device.close()
        raise
    return device


def _answer_of_device(
    spec: NodeSpec, number: int, node: NodeConfig, request: Request, held: Theta | None
) -> Reply:
    """What the device answers; it may hold the theta of the message before."""
    with closing(device_of(spec, number, node)) as device:
        device.known = wire.Known.of(held) if held else wire.NOTHING_KNOWN
        found = device.answer(request)
    if isinstance(found, FedTinyError):
        raise found
    return found


_engine = lru_cache(maxsize=1)(NodeSpec.engine)  # a process of many nodes has one network


def _handler(
    act: Callable[[Question, Memory, NodeConfig], Answer | Arrival],
) -> Callable[[Message, Context], Message]:
    """Let a node act on a message; a trouble is an answer too, but for what would tell of the node.

    Flower itself would send the text of an error, with the paths in it.
    """

    def handle(message: Message, context: Context) -> Message:
        node = {"name": f"node {context.node_id}", **context.node_config}
        try:
            found = act(Question.read(message.content), Memory(context.state), node)
        except wire.MissingVersion:
            found = Answer(LACKS, messages.THETA)
        except Exception as error:
            found = Answer(FAILED, told_to_server(error), name=str(node["name"]))
        return Message(found.records(), reply_to=message)

    return handle


app.query("join")(_handler(arrive))
for phase in (app.train(), app.evaluate(), *map(app.query, messages.QUERIES)):
    phase(_handler(respond))
