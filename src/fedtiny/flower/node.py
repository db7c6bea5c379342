"""One node: it answers a question on its own data, with what its context remembers."""

from functools import lru_cache

from fedtiny.devices.engine import Engine
from fedtiny.devices.node import answer
from fedtiny.errors import FedTinyError
from fedtiny.federation.wire import MissingVersion, encode_reply
from fedtiny.flower.images import NodeConfig, claim, shard_of
from fedtiny.flower.memory import Memory
from fedtiny.flower.messages import DONE, FAILED, LACKS, SPEC, THETA, Answer, Arrival, Question
from fedtiny.flower.node_spec import NodeSpec


def arrive(question: Question, memory: Memory, node: NodeConfig, node_id: int) -> Answer | Arrival:
    """Take the spec of a run and say who is here; data that does not fit is told at once."""
    try:
        memory.keep_spec(question.spec)
        own = shard_of(NodeSpec.from_text(question.spec), claim(node) or 0, node)
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
    if question.spec:
        memory.keep_spec(question.spec)
    spec = memory.spec(question.spec_key)
    if spec is None:
        return Answer(LACKS, SPEC)
    receiver = memory.receiver(spec)
    request = receiver.receive(question.request, spec.device.param_spec)
    memory.keep_theta(request.theta)
    own = shard_of(spec, question.device, node)
    reply = answer(_engine(spec), request, own, spec.config.seed)
    return Answer(DONE, reply=encode_reply(reply, request.theta.mask))


@lru_cache(maxsize=1)  # a process of many nodes, as in a simulation, has one network
def _engine(spec: NodeSpec) -> Engine:
    return spec.engine()
