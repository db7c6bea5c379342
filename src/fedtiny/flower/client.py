"""The ClientApp: a node that answers questions on its own data, with what its context remembers."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtiny.data import ImageSet
from fedtiny.devices.device_data import DeviceData, shard
from fedtiny.devices.node import answer
from fedtiny.federation import wire
from fedtiny.federation.messages import Request
from fedtiny.flower import gateway_device, messages, secure_client
from fedtiny.flower.messages import DONE, FAILED, LACKS, Answer, Arrival, Question
from fedtiny.flower.node_log import NodeError, told_to_server
from fedtiny.flower.node_memory import Memory
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.paths import user_path
from fedtiny.runs.inputs import load_data
from fedtiny.runs.own_samples import own_samples
from fedtiny.runs.split import Split, share_out

NodeConfig = Mapping[str, Any]
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
        if "data" in node:
            raise NodeError(
                "this node has data of its own, and takes part only in runs with "
                "flower.data = 'own'"
            )
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


def arrive(question: Question, memory: Memory, node: NodeConfig) -> Arrival:
    """Take the spec of a run and say who is here; data that does not fit is told at once."""
    spec = NodeSpec.from_text(question.spec)
    secure_client.check_wanted(spec, node)
    memory.keep_spec(question.spec)
    if gateway_device.is_behind(node):
        with closing(gateway_device.connected(spec, claim(node), node)) as device:
            number = claim(node) if claim(node) is not None else device.hello.device
            return Arrival(str(node["name"]), device.hello.samples, number)
    if not spec.session:
        own = shard_of(spec, claim(node) or 0, node)
        return Arrival(str(node["name"]), len(own), claim(node))
    party = secure_client.join(spec, memory, node)
    samples, key = len(shard_of(spec, party.device, node)), party.key().entries[party.device]
    told = secure_client.samples_told(spec, samples)
    return Arrival(str(node["name"]), told, party.device, key)


def respond(question: Question, memory: Memory, node: NodeConfig) -> Answer:
    """Do the work of a request; which verbs it takes, the request itself says."""
    if question.spec:
        memory.keep_spec(question.spec)
    spec = memory.spec(question.spec_key)
    if spec is None:
        return Answer(LACKS, messages.SPEC)
    secure_client.check_wanted(spec, node)
    receiver = memory.receiver(spec)
    held = receiver.theta
    request = receiver.receive(question.request, spec.device.param_spec)
    memory.keep_theta(request.theta)
    if gateway_device.is_behind(node):
        reply = gateway_device.answer(spec, question.device, node, request, held)
        return Answer(DONE, reply=wire.encode_reply(reply, request.theta.mask))
    if spec.session:
        return _respond_masked(question, request, spec, memory, node)
    own = shard_of(spec, question.device, node)
    reply = answer(_engine(spec), request, own, spec.config.seed)
    return Answer(DONE, reply=wire.encode_reply(reply, request.theta.mask))


def _respond_masked(
    question: Question, request: Request, spec: NodeSpec, memory: Memory, node: NodeConfig
) -> Answer:
    """The same under secure aggregation; a node that has lost its key must join again."""
    with secure_client.resumed(spec, memory, node) as party:
        if party is None:
            return Answer(LACKS, messages.SPEC)
        own = shard_of(spec, party.device, node)
        reply = secure_client.masked(question, request, party, spec, _engine(spec), own, node)
        return Answer(DONE, reply=reply.to_bytes())


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
app.query("reveal")(_handler(secure_client.reveal))
app.query("unmask")(_handler(secure_client.unmask))
for phase in (app.train(), app.evaluate(), *map(app.query, messages.QUERIES)):
    phase(_handler(respond))
