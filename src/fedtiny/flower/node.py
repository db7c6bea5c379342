"""One node: it answers a question on its own data, with what its context remembers."""

from functools import lru_cache

from fedtiny.devices.engine import Engine
from fedtiny.devices.node import answer
from fedtiny.errors import FedTinyError
from fedtiny.federation.wire import MissingVersion, encode_reply
from fedtiny.flower.images import NodeConfig, claim, shard_of
from fedtiny.flower.kit import Kit
from fedtiny.flower.memory import Memory
from fedtiny.flower.messages import DONE, FAILED, KIT, LACKS, THETA, Answer, Arrival, Question


def arrive(question: Question, memory: Memory, node: NodeConfig, node_id: int) -> Answer | Arrival:
    """Take the kit of a run and say who is here; data that does not fit is told at once."""
    try:
        memory.keep_kit(question.kit)
        own = shard_of(Kit.from_text(question.kit), claim(node) or 0, node)
        return Arrival(str(node.get("name", f"node {node_id}")), len(own), claim(node))
    except FedTinyError as error:
        return Answer(FAILED, str(error))


def respond(question: Question, memory: Memory, node: NodeConfig) -> Answer:
    """Do what a request asks; a trouble that a user can understand is an answer too."""
    try:
        return _respond(question, memory, node)
    except MissingVersion:
        return Answer(LACKS, THETA)
    except FedTinyError as error:
        return Answer(FAILED, str(error))


def _respond(question: Question, memory: Memory, node: NodeConfig) -> Answer:
    if question.kit:
        memory.keep_kit(question.kit)
    kit = memory.kit(question.kit_key)
    if kit is None:
        return Answer(LACKS, KIT)
    receiver = memory.receiver(kit)
    request = receiver.receive(question.request, kit.param_spec)
    memory.keep_theta(request.theta)
    own = shard_of(kit, question.device, node)
    reply = answer(_engine(kit), request, own, kit.config.seed)
    return Answer(DONE, reply=encode_reply(reply, request.theta.mask))


@lru_cache(maxsize=1)  # a process of many nodes, as in a simulation, has one network
def _engine(kit: Kit) -> Engine:
    return kit.engine()
