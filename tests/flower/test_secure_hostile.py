"""A hostile server, and a hostile node, in Flower's own messages: what each of them gets."""

import copy
import json
from dataclasses import replace

import pytest
from flwr.app import Message as FlowerMessage

from fedtiny.federation import wire
from fedtiny.federation.verbs import Evaluate
from fedtiny.flower import client, signing_keys
from fedtiny.flower.messages import DONE, FAILED, Answer, Question
from fedtiny.flower.node_memory import Memory
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.privacy.secagg import ciphers
from fedtiny.privacy.secagg.device import statement
from fedtiny.privacy.secagg.terms import KEYS, MASKED, REVEAL, SEEDS, SHARES, TERMS, UNMASK, Message

from ..runs.tiny import lines, train
from .federation import Grid, federate, parts
from .secure import secure_grid, secure_tiny
from .test_secure import NO_SELECTION, ROUNDS, differing, late_in_the_second_round

NODES = list(parts(5))
VICTIM = NODES[0]


class Tapped:
    """A moment of a run: what a node is asked, and the state in which it is asked."""

    def __init__(self, grid, message):
        self.message = message
        self.question = Question.read(message.content)
        self.contexts = copy.deepcopy(grid.contexts)

    def context(self, node=VICTIM):
        return copy.deepcopy(self.contexts[node])


@pytest.fixture(scope="module")
def tapped(tmp_path_factory):
    """Every message to a node of a run of two rounds, with its state before; and the answers."""
    folder, found = tmp_path_factory.mktemp("tapped"), {}

    class Tap(Grid):
        def answer(self, message):
            kind, node = message.metadata.message_type, message.metadata.dst_node_id
            if node == VICTIM:
                number = self.kinds(node).count(kind) - 1
                found[kind, number] = Tapped(self, message)
            return super().answer(message)

    federate(secure_grid(folder, kind=Tap), secure_tiny(**ROUNDS), folder / "run")
    return found


def told(context, question, kind):
    """What a node answers to a question in this state, of which it keeps what it keeps."""
    sent = FlowerMessage(question.records(), VICTIM, kind, ttl=60)
    sent.metadata.__dict__["_message_id"] = sent.object_id
    return Answer.read(client.app(sent, context).content, with_reply=True)


def refusal(context, question, kind="train"):
    answer = told(context, question, kind)
    assert answer.status == FAILED
    assert not answer.reply
    return answer.text


def memory_of(moment):
    return Memory(moment.context().state)


def spec_of(moment):
    return memory_of(moment).spec(moment.question.spec_key)


def changed_terms(question, **changes):
    """The question with other terms."""
    before = Message.from_bytes(question.secure.terms, TERMS)
    return replace(
        question, secure=replace(question.secure, terms=replace(before, **changes).to_bytes())
    )


def changed_request(moment, **changes):
    """The question with another request, all of it there."""
    spec = spec_of(moment)
    receiver = memory_of(moment).receiver(spec)
    request = receiver.receive(moment.question.request, spec.device.param_spec)
    changes = {name: own(request) if callable(own) else own for name, own in changes.items()}
    data = wire.encode_request(replace(request, **changes), wire.NOTHING_KNOWN)
    return replace(moment.question, request=data)


def test_an_honest_question_is_answered(tapped):
    """So that what follows is refused for what was changed, and for nothing else."""
    for kind, number in (("train", 1), ("query.unmask", 1)):
        moment = tapped[kind, number]
        assert told(moment.context(), moment.question, kind).status == DONE
    assert told(tapped["train", 1].context(), changed_request(tapped["train", 1]), "train").reply


def test_a_forged_key_is_refused(tapped):
    moment = tapped["train", 1]
    keys = Message.from_bytes(moment.question.secure.keys, KEYS)
    mine, session = ciphers.ExchangeKey(), spec_of(moment).session
    forged = mine.public + ciphers.SigningKey().signed(statement(session, 3, mine.public))
    entries = {**keys.entries, 3: forged}
    part = replace(moment.question.secure, keys=replace(keys, entries=entries).to_bytes())
    said = refusal(moment.context(), replace(moment.question, secure=part))
    assert said == "the key of device 3 is not signed by its node"


def test_a_key_of_the_run_before_it_was_resumed_is_refused(tapped, tmp_path):
    """Another session: the same nodes, other signatures."""
    moment = tapped["train", 1]
    others = {}

    class Tap(Grid):
        def answer(self, message):
            if message.metadata.message_type == "train":
                others.setdefault("keys", Question.read(message.content).secure.keys)
            return super().answer(message)

    config = secure_tiny(rounds=1, **NO_SELECTION)
    nodes = {node: own.node_config for node, own in moment.contexts.items()}
    federate(Tap(nodes), config, tmp_path / "run")
    part = replace(moment.question.secure, keys=others["keys"])
    said = refusal(moment.context(), replace(moment.question, secure=part))
    assert said == "the key of device 1 is not signed by its node"


def test_a_replayed_question_is_refused_across_processes(tapped):
    moment = tapped["train", 1]
    context = moment.context()
    assert told(context, moment.question, "train").status == DONE
    full = changed_request(moment)
    assert refusal(context, full) == "exchange 2 is over: this device was in 2"
    later = changed_terms(full, number=9)
    assert refusal(context, later) == "this device has answered the same request before"


def test_who_joins_again_still_answers_no_request_twice(tapped):
    moment, joined = tapped["train", 1], tapped["query.join", 0]
    context = moment.context()
    assert told(context, moment.question, "train").status == DONE
    before = memory_of(moment).secure()["device"]["key"]
    sent = FlowerMessage(joined.question.records(), VICTIM, "query.join", ttl=60)
    client.app(sent, context)
    assert json.loads(context.state["fedtiny.secagg"]["data"].data)["device"]["key"] != before
    again = changed_terms(changed_request(moment), number=9)
    assert refusal(context, again) == "this device has answered the same request before"


def test_a_run_that_was_left_is_not_entered_again(tapped):
    """Else what was answered in it could be asked once more."""
    joined, context = tapped["query.join", 0], tapped["train", 1].context()
    spec = NodeSpec.from_text(joined.question.spec)
    other = replace(spec, session=bytes(16))

    def join(own):
        question = Question(own.key, 0, b"", own.text)
        sent = FlowerMessage(question.records(), VICTIM, "query.join", ttl=60)
        return Answer.read(client.app(sent, context).content, with_reply=False)

    assert join(other).status == DONE
    assert join(spec).text == "this node has left that run for another one"


def test_a_wrong_round_or_request_is_refused(tapped):
    first, second = tapped["train", 0], tapped["train", 1]
    old = replace(second.question, secure=first.question.secure)
    assert refusal(second.context(), old) == "exchange 1 is over: this device was in 1"
    for changes in ({"round": 5}, {"id": lambda own: own.id + 1}):
        said = refusal(second.context(), changed_request(second, **changes))
        assert said == "the request has the id of another one"


@pytest.mark.parametrize(
    ("participants", "said"),
    [
        ((0, 1), "2 devices take part, and a sum of fewer than 3 hides nobody"),
        ((0,), "1 devices take part, and a sum of fewer than 3 hides nobody"),
        ((1, 2, 3), "this device is not among the participants"),
        ((0, 1, 2, 77), "device 77 is not in the list of nodes"),
        ((0, 2, 1), "the participants are not in order, or one is there twice"),
        ((0, 1, 2), "the scales of an exchange are not those of its request"),
    ],
)
def test_terms_that_isolate_a_device_are_refused(participants, said, tapped):
    moment = tapped["train", 1]
    question = changed_terms(moment.question, entries=dict.fromkeys(participants, b""))
    assert refusal(moment.context(), question) == said


@pytest.mark.parametrize("change", [{"neighbors": 4}, {"threshold": 0.5}])
def test_a_run_that_hides_less_than_a_node_wants_is_refused(change, tapped):
    """When it joins, and if the spec comes with a question."""
    joined, moment = tapped["query.join", 0], tapped["train", 1]
    spec = NodeSpec.from_text(joined.question.spec)
    privacy = replace(spec.config.privacy, **change)
    config = replace(spec.config, privacy=privacy)
    weaker = replace(spec, device=replace(spec.device, config=config))
    question = Question(weaker.key, 0, b"", weaker.text)
    sent = FlowerMessage(question.records(), VICTIM, "query.join", ttl=60)
    found = Answer.read(client.app(sent, moment.context()).content, with_reply=False)
    assert "that this node wants (secagg-neighbors, secagg-threshold)" in found.text
    asked = replace(changed_request(moment), spec=weaker.text, spec_key=weaker.key)
    assert "that this device takes part with" in refusal(moment.context(), asked)


def test_nothing_is_answered_unmasked(tapped):
    moment = tapped["train", 1]
    bare = replace(moment.question, secure=None)
    said = "the request came without terms, and a reply must be masked"
    assert refusal(moment.context(), bare) == said
    spec = NodeSpec.from_text(tapped["query.join", 0].question.spec)
    plain = replace(spec, session=b"")
    asked = replace(changed_request(moment), spec=plain.text, spec_key=plain.key, secure=None)
    said = "a node with secagg-keys takes part only in runs with secure aggregation"
    assert refusal(moment.context(), asked) == said
    joining = Question(plain.key, 0, b"", plain.text)
    sent = FlowerMessage(joining.records(), VICTIM, "query.join", ttl=60)
    found = Answer.read(client.app(sent, moment.context()).content, with_reply=False)
    assert (found.status, found.text) == (FAILED, said)


def test_accuracy_on_a_devices_own_data_is_not_told(tapped):
    moment, spec = tapped["train", 1], spec_of(tapped["train", 1])

    def id_of(own):
        return replace(own, program=(Evaluate(),)).identified(spec.config.seed).id

    asked = changed_request(moment, program=(Evaluate(),), id=id_of)
    assert refusal(moment.context(), asked, "evaluate").startswith("settings: ")


def test_the_seed_and_the_share_of_one_peer_are_never_told_both(tapped):
    moment = tapped["query.unmask", 1]
    context, question = moment.context(), moment.question
    asked = Message.from_bytes(question.request, UNMASK)
    dropped = Message(REVEAL, asked.number, 0, {3: b""})
    reveal = replace(question, request=dropped.to_bytes())
    answer = told(context, reveal, "query.reveal")
    assert set(Message.from_bytes(answer.reply, SEEDS).entries) == {3}
    said = "of device 3 the shared seed was told: its share is not told too"
    assert refusal(context, question, "query.unmask") == said
    without = {peer: own for peer, own in asked.entries.items() if peer != 3}
    rest = replace(question, request=replace(asked, entries=without).to_bytes())
    answer = told(context, rest, "query.unmask")
    assert set(Message.from_bytes(answer.reply, SHARES).entries) == {1, 2, 4}
    for again, kind in ((rest, "query.unmask"), (reveal, "query.reveal")):
        assert refusal(context, again, kind) == "this device is not in exchange 2, or is done"


def test_stages_of_another_exchange_and_a_crowd_of_dropouts_are_refused(tapped):
    moment = tapped["query.unmask", 1]
    question, asked = moment.question, Message.from_bytes(moment.question.request, UNMASK)

    def said(stage, **changes):
        told = replace(question, request=replace(asked, **changes).to_bytes())
        return refusal(moment.context(), told, stage)

    reveal = {"kind": REVEAL, "entries": {3: b"", 4: b""}}
    assert said("query.reveal", **reveal) == (
        "2 of the neighbors of device 0 are left, and 3 are needed"
    )
    assert said("query.unmask", number=1) == "this device is not in exchange 1, or is done"
    assert said("query.reveal") == "a message of secure aggregation is not what it claims"
    few = {peer: asked.entries[peer] for peer in (1, 2)}
    assert said("query.unmask", entries=few).startswith("2 of the neighbors of device 0 are left")
    wrong = {**asked.entries, 3: bytes(60)}
    assert said("query.unmask", entries=wrong) == "a share was changed on its way"


def test_a_stage_before_any_question_is_refused(tapped):
    context = tapped["train", 0].context()
    question = tapped["query.unmask", 0].question
    said = refusal(context, question, "query.unmask")
    assert said == "this device is not in exchange 1, or is done"


HOSTILE = 3


def garbled(data):
    return data[:40] + bytes(20) + data[60:]


def renamed(data):
    return replace(Message.from_bytes(data, MASKED), device=2).to_bytes()


def older(data):
    return replace(Message.from_bytes(data, MASKED), number=1).to_bytes()


def short(data):
    message = Message.from_bytes(data, MASKED)
    return replace(message, body=bytes(message.body)[:-4]).to_bytes()


def selfish(data):
    """It keeps the share of a neighbor to itself."""
    message = Message.from_bytes(data, MASKED)
    return replace(message, entries=dict(list(message.entries.items())[1:])).to_bytes()


def lying_grid(tmp_path, stage, lie):
    """Nodes of which one changes what it answers to a stage of the second round."""
    node = NODES[HOSTILE]

    class Lying(Grid):
        def answer(self, message):
            reply = super().answer(message)
            if message.metadata.dst_node_id != node or message.metadata.message_type != stage:
                return reply
            if self.kinds(node).count("train") < 2:
                return reply
            answer = Answer.read(reply.content)
            lied = replace(answer, reply=lie(answer.reply))
            return FlowerMessage(lied.records(), reply_to=message)

    return secure_grid(tmp_path, kind=Lying)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (renamed, "it is signed by device 2"),
        (older, "a masked vector is of another exchange"),
        (short, "the vector of device 3 has another length"),
        (selfish, "device 3 has not sent a share to each neighbor"),
        (lambda data: b"?", "a message of secure aggregation is too short"),
    ],
)
def test_a_masked_vector_that_is_none_leaves_its_device_out(lie, said, tmp_path, monkeypatch):
    config = secure_tiny(**ROUNDS)
    path = federate(lying_grid(tmp_path, "train", lie), config, tmp_path / "run")
    record = lines(path)[1]
    assert record["answered"] == [0, 1, 2, 4]
    assert record["failed"] == {str(HOSTILE): f"reply refused: {said}"}
    late_in_the_second_round(monkeypatch, {HOSTILE})
    simulated = train(config, tmp_path / "simulated").path
    assert "model" not in differing(simulated, path)


@pytest.mark.slow
def test_a_wrong_share_never_gives_a_wrong_sum(tmp_path, capsys):
    def wrong(data):
        message = Message.from_bytes(data, SHARES)
        return replace(message, entries={k: bytes(32) for k in message.entries}).to_bytes()

    path = federate(
        lying_grid(tmp_path, "query.unmask", wrong), secure_tiny(**ROUNDS), tmp_path / "run"
    )
    assert lines(path)[1]["answered"] == []
    assert "is wrong: there is no sum" in capsys.readouterr().out


def test_keys_that_were_made_are_private_and_all_different(tmp_path):
    signing_keys.make(tmp_path, 3)
    for number in range(3):
        path = signing_keys.own_key(tmp_path, number)
        assert path.stat().st_mode & 0o777 == 0o600
        own = signing_keys.read_own(str(path))
        assert signing_keys.read_list(str(tmp_path / "secagg-keys"))[number] == own.public
