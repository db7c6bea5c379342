"""A node under secure aggregation: its keys, what it keeps between messages, what it answers.

It takes the number of its device from the place of its own key in the list of all nodes, which its
owner has given it. A node that has such a list takes part in no run without secure aggregation.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from fedtiny.config import PrivacyConfig, RunConfig
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Engine
from fedtiny.devices.node import answer
from fedtiny.devices.secure import heaviest
from fedtiny.errors import DivergedError, ReplyError, SecureAggregationError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.private import refuse_open_verbs
from fedtiny.federation.reply_spec import unmoved
from fedtiny.federation.reply_validator import Arrived, ReplyValidator
from fedtiny.federation.secure_exchange import RUN_BYTES, Encoding, terms_of
from fedtiny.federation.transport import MEAN
from fedtiny.flower import messages, signing_keys
from fedtiny.flower.messages import DONE, LACKS, Answer, Question
from fedtiny.flower.node_log import LOG, NodeError
from fedtiny.flower.node_memory import Memory
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.flower.question_account import QuestionAccount
from fedtiny.privacy.secagg.ciphers import Cryptography, SigningKey
from fedtiny.privacy.secagg.device import Directory, SecureDevice
from fedtiny.privacy.secagg.graph import FEWEST
from fedtiny.privacy.secagg.terms import KEYS, REVEAL, SEEDS, SHARES, TERMS, UNMASK, Message

NodeConfig = Mapping[str, Any]
KEY, LIST, NOISE = "secagg-key", "secagg-keys", "secagg-noise"
LEAST = PrivacyConfig()  # what a node asks of a run, unless its owner says otherwise


@dataclass(frozen=True)
class Identity:
    """Who a node is among all nodes, and what it takes part with at least."""

    device: int
    signer: SigningKey
    directory: Directory
    neighbors: int
    threshold: float
    participants: int

    @classmethod
    def of(cls, node: NodeConfig) -> "Identity":
        """As its owner has set it up."""
        if KEY not in node or LIST not in node:
            raise NodeError(
                "this run uses secure aggregation: start nodes with --node-config "
                f'\'{KEY}="PATH" {LIST}="PATH"\''
            )
        signer = signing_keys.read_own(str(node[KEY]))
        directory = signing_keys.read_list(str(node[LIST]))
        device = next((k for k, own in directory.items() if own == signer.public), None)
        if device is None or node.get("partition-id", device) != device:
            raise NodeError(
                f"its {KEY} must stand in its list ({LIST}) on the line of its device, the first "
                "of which is that of device 0"
            )
        neighbors = int(node.get("secagg-neighbors", LEAST.neighbors))
        threshold = float(node.get("secagg-threshold", LEAST.threshold))
        participants = int(node.get("secagg-participants", FEWEST))
        return cls(device, signer, directory, neighbors, threshold, participants)

    def party(self, session: bytes) -> SecureDevice:
        """The node in the exchanges of a run, with a new key."""
        return SecureDevice(
            *(self.device, session, self.signer, self.directory, Cryptography()),
            neighbors=self.neighbors,
            threshold=self.threshold,
            participants=self.participants,
        )


def check_wanted(spec: NodeSpec, node: NodeConfig) -> None:
    """Refuse a run that would show the replies of a node whose owner wants them masked."""
    if LIST in node and not spec.session:
        raise NodeError(f"a node with {LIST} takes part only in runs with secure aggregation")


def join(spec: NodeSpec, memory: Memory, node: NodeConfig) -> SecureDevice:
    """Make a key for a run; a run that was left is not entered again.

    Who joins the same run again has a new key, and still answers no request twice.
    """
    identity, held, session = Identity.of(node), memory.secure(), spec.session.hex()
    privacy = spec.config.privacy
    if privacy.neighbors < identity.neighbors or privacy.threshold < identity.threshold:
        raise NodeError(
            f"{privacy.neighbors} neighbors with a threshold of {privacy.threshold:g} are less "
            f"than the {identity.neighbors} and {identity.threshold:g} that this node wants "
            "(secagg-neighbors, secagg-threshold)"
        )
    check_noise(privacy, _planned_noise(privacy), node)
    party, left = identity.party(spec.session), list(held.get("left", []))
    if len(spec.session) != RUN_BYTES:
        raise SecureAggregationError("the run has no name that keys could be signed for")
    if session in left:
        raise SecureAggregationError("this node has left that run for another one")
    if held.get("session") == session:
        party.restore(held["device"], renewed=True)
    elif held:
        left.append(held["session"])
    memory.keep_secure({"session": session, "left": left, "device": party.state()})
    return party


@contextmanager
def resumed(spec: NodeSpec, memory: Memory, node: NodeConfig) -> Iterator[SecureDevice | None]:
    """The node where it stood after the last message; nothing if it holds no key for this run.

    Whatever comes of a message, what the node has told or refused is remembered.
    """
    held = memory.secure()
    if held.get("session") != spec.session.hex():
        yield None
        return
    party = Identity.of(node).party(spec.session)
    party.restore(held["device"])
    try:
        yield party
    finally:
        memory.keep_secure(held | {"device": party.state()})


def masked(
    question: Question, request: Request, party: SecureDevice, spec: NodeSpec, engine: Engine,
    own: DeviceData, node: NodeConfig,
) -> Message:  # fmt: skip
    """Do the work of a request and mask the reply; bad terms are refused before any work."""
    part, config = question.secure, spec.config
    if part is None:
        raise SecureAggregationError("the request came without terms, and a reply must be masked")
    if request.identified(config.seed).id != request.id:
        raise SecureAggregationError("the request has the id of another one")
    party.meet(Message.from_bytes(part.keys, KEYS))
    asked = replace(request, mechanism=part.mechanism)
    known = terms_of(spec.session, spec.lasting_text, asked, config)
    terms = known.told(Message.from_bytes(part.terms, TERMS))
    party.check(terms, request.round, request.id)
    _check_mechanism(asked, config, node)
    encoding = Encoding.told(asked, terms)
    _check_heaviest(encoding, spec, len(own))
    account, noise = account_of(node), encoding.noise_multiplier
    account.check(terms, noise)
    numbers = encoding.numbers(_reply(request, config, engine, own, noise), config.seed)
    numbers = encoding.noisy(numbers, account.answer(terms, noise, numbers.tobytes()))
    return party.masked(terms, numbers, request.round, request.id)


def _reply(
    request: Request, config: RunConfig, engine: Engine, own: DeviceData, noise: float
) -> Reply:
    """What comes of the work. Under noise it must not be seen whether that went well.

    Else a server could choose a model that diverges on some data, and learn who has such.
    """
    try:
        reply = answer(engine, request, own, config.seed)
        arrived = Arrived(own.device, len(own), reply, size=0)
        return ReplyValidator(request, MEAN, config).accepted(arrived)
    except (DivergedError, ReplyError) as error:
        if not noise:
            raise
        LOG.warning("%s; this node takes part with no step", error)
        return unmoved(request, own.device, len(own))


def account_of(node: NodeConfig) -> QuestionAccount:
    """The node's own account of all questions."""
    return QuestionAccount.of(node, str(node[KEY]))


def _check_mechanism(request: Request, config: RunConfig, node: NodeConfig) -> None:
    """Refuse a question without the noise that the run's settings promise or the node wants."""
    mechanism, privacy = request.mechanism, config.privacy
    check_noise(privacy, mechanism.noise_multiplier if mechanism else 0.0, node)
    if privacy.noise != "devices":
        return
    if (
        mechanism is None
        or not mechanism.is_shared
        or mechanism.noise_multiplier < (privacy.noise_multiplier or 0.0)
    ):
        raise SecureAggregationError("the question has less noise on devices than its run promises")
    refuse_open_verbs(config.method, request.program)


def check_noise(privacy: PrivacyConfig, multiplier: float, node: NodeConfig) -> None:
    """Refuse noise of less than the node's owner wants, and any that devices do not add."""
    least = float(node.get(NOISE, 0.0))
    if least and (privacy.noise != "devices" or not multiplier >= least):
        raise NodeError(
            f"this node wants noise on devices with a multiplier of at least {least:g} ({NOISE})"
        )


def _planned_noise(privacy: PrivacyConfig) -> float:
    """The noise multiplier that is set; one that follows from a budget is told by the questions."""
    return inf if privacy.noise_multiplier is None else privacy.noise_multiplier


def _check_heaviest(encoding: Encoding, spec: NodeSpec, samples: int) -> None:
    """Refuse terms in which a weight may not fit, so that no refusal tells more of the samples."""
    if encoding.request.mechanism:
        return
    ratio = spec.config.selection.development_ratio
    if encoding.scales.heaviest < heaviest(encoding.request, [samples_told(spec, samples)], ratio):
        raise SecureAggregationError("the terms allow less weight than this node has told of")


def reveal(question: Question, memory: Memory, node: NodeConfig) -> Answer:
    """The stage `reveal`: seeds of masks shared with devices that dropped out."""
    return _stage(question, memory, node, REVEAL)


def unmask(question: Question, memory: Memory, node: NodeConfig) -> Answer:
    """The stage `unmask`: shares of the own seeds of survivors."""
    return _stage(question, memory, node, UNMASK)


def _stage(question: Question, memory: Memory, node: NodeConfig, kind: int) -> Answer:
    spec = memory.spec(question.spec_key)
    if spec is None:
        return Answer(LACKS, messages.SPEC)
    with resumed(spec, memory, node) as party:
        if party is None:
            return Answer(LACKS, messages.SPEC)
        asked = Message.from_bytes(question.request, kind)
        terms = party.terms(asked.number)
        if kind == REVEAL:
            told = party.seeds(asked.number, list(asked.entries))
        else:
            told = party.shares(asked.number, asked.entries)
        account_of(node).tell(terms, told.entries, SEEDS if kind == REVEAL else SHARES)
        return Answer(DONE, reply=told.to_bytes())


def samples_told(spec: NodeSpec, samples: int) -> int:
    """What a node says of its number of samples: all that the server does not know is a bound."""
    return bound_of_samples(samples) if spec.own_data else samples


def bound_of_samples(samples: int) -> int:
    """What a node says in place of its number of samples: the next power of two.

    >>> [bound_of_samples(count) for count in (1, 100, 128)]
    [1, 128, 128]
    """
    return 1 << (samples - 1).bit_length()
