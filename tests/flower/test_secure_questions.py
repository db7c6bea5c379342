"""A server that asks nodes of one exchange different things, or for less than was settled."""

import copy
import struct
from dataclasses import replace

import numpy as np
import pytest

from fedtiny.devices.device_data import development_count
from fedtiny.errors import DivergedError, FedTinyError
from fedtiny.federation import wire
from fedtiny.federation.messages import Request
from fedtiny.federation.verbs import TopGradients
from fedtiny.flower import secure_client
from fedtiny.flower.messages import Answer, Question
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.privacy.secagg.server import SecureSum
from fedtiny.privacy.secagg.terms import TERMS, Message
from fedtiny.sparse.theta import Theta

from ..runs.tiny import lines
from .federation import Grid, federate, parts
from .secure import secure_grid, secure_tiny, with_keys
from .test_own_data import own_config, write_folder

VICTIM, *OTHERS = parts(5)
NOISE = {"noise": "devices", "noise_multiplier": 0.5, "clip": 0.5, "sampling": "fixed"}
ONE_ROUND = {"rounds": 1, "selection": {"kind": "none"}}


def changed_spec(question, seen, **sections):
    """The question with another spec of the same session, or with the name of that spec."""
    if question.spec:
        spec = NodeSpec.from_text(question.spec)
        changes = {
            name: replace(getattr(spec.config, name), **own) for name, own in sections.items()
        }
        config = replace(spec.config, **changes)
        seen["spec"] = replace(spec, device=replace(spec.device, config=config))
        question = replace(question, spec=seen["spec"].text)
    return replace(question, spec_key=seen["spec"].key)


def changed_grid(folder, change, nodes, **settings):
    """Nodes of which some are asked what `change` makes of a question; and what all answered."""
    answers = []

    class Changed(Grid):
        def answer(self, message):
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            if node in nodes:
                message.content = change(Question.read(message.content), kind).records()
            reply = super().answer(message)
            if kind == "train":
                answers.append((node, Answer.read(reply.content)))
            return reply

    return secure_grid(folder, kind=Changed, **settings), answers


def nobody_answers(grid, config, folder):
    with pytest.raises(FedTinyError, match="no device answered 'train'") as caught:
        federate(grid, config, folder)
    return str(caught.value)


def without_training(seen):
    """Others train at a rate of nothing, so that the sum would be the victim's update."""
    return lambda question, kind: changed_spec(question, seen, train={"lr": 1e-30})


def of_another_theta(seen):
    """Others get a theta of which the id of the request says nothing."""

    def change(question, kind):
        if question.spec:
            seen["spec"] = NodeSpec.from_text(question.spec)
        if kind != "train":
            return question
        request = wire.decode_request(question.request, seen["spec"].device.param_spec)
        theta = Theta(request.theta.mask, request.theta.vector * np.float32(1e-3))
        data = wire.encode_request(replace(request, theta=theta), wire.NOTHING_KNOWN)
        return replace(question, request=data)

    return change


@pytest.mark.parametrize("attack", [without_training, of_another_theta])
def test_nodes_that_were_asked_different_things_have_no_sum(attack, tmp_path, monkeypatch):
    """All take part, and none of their masks cancels with the victim's."""
    if attack is of_another_theta:  # as if two requests were found that have the same 64 bits
        monkeypatch.setattr(Request, "identified", lambda own, seed: replace(own, id=own.round + 7))
    sums, result = [], SecureSum.result
    monkeypatch.setattr(SecureSum, "result", lambda *told: sums.append(result(*told)) or sums[-1])
    grid, answers = changed_grid(tmp_path, attack({}), OTHERS)
    path = federate(grid, secure_tiny(**ONE_ROUND), tmp_path / "run")
    assert [answer.status for _, answer in answers] == ["done"] * 5
    assert sums == []
    assert lines(path)[0]["answered"] == []
    assert set(lines(path)[0]["failed"].values()) == {"too few devices for a secure sum"}


def less_noise(**changes):
    """The mechanism of a question with other noise, or without any."""

    def change(question, kind):
        if kind != "train":
            return question
        part = question.secure
        mechanism = replace(part.mechanism, **changes) if changes else None
        return replace(question, secure=replace(part, mechanism=mechanism))

    return change


@pytest.mark.parametrize(
    "changes",
    [{}, {"noise_multiplier": 0.0}, {"noise_multiplier": 1e-30}, {"shared_by": None}],
)
def test_a_question_without_the_noise_of_its_run_is_refused(changes, tmp_path):
    pytest.importorskip("dp_accounting")
    grid, answers = changed_grid(tmp_path, less_noise(**changes), [VICTIM, *OTHERS])
    nobody_answers(grid, secure_tiny(privacy=NOISE, **ONE_ROUND), tmp_path / "run")
    said = "the question has less noise on devices than its run promises"
    assert [(answer.text, answer.reply) for _, answer in answers] == [(said, b"")] * 5


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_bounds_that_are_not_those_of_the_clip_are_refused(factor, tmp_path):
    """Narrower ones make every value as large as the clip, and the noise stays as it is."""
    pytest.importorskip("dp_accounting")

    def change(question, kind):
        if kind != "train":
            return question
        told = Message.from_bytes(question.secure.terms, TERMS)
        bounds = factor * np.frombuffer(told.body, "<f8", offset=12)
        terms = replace(told, body=bytes(told.body[:12]) + bounds.tobytes()).to_bytes()
        return replace(question, secure=replace(question.secure, terms=terms))

    grid, answers = changed_grid(tmp_path, change, [VICTIM, *OTHERS])
    nobody_answers(grid, secure_tiny(privacy=NOISE, **ONE_ROUND), tmp_path / "run")
    said = "the scales of an exchange are not those of its request"
    assert [(answer.text, answer.reply) for _, answer in answers] == [(said, b"")] * 5


@pytest.mark.parametrize("privacy", [NOISE, {}])
def test_under_noise_nobody_sees_who_diverged(privacy, tmp_path, monkeypatch):
    """Else a server could choose a model that diverges on some data, and learn who has such."""
    pytest.importorskip("dp_accounting")
    done = secure_client.answer

    def diverges(engine, request, own, seed):
        if own.device == 3:
            raise DivergedError("training diverged")
        return done(engine, request, own, seed)

    monkeypatch.setattr(secure_client, "answer", diverges)
    config = secure_tiny(privacy=privacy, **ONE_ROUND)
    path = federate(secure_grid(tmp_path), config, tmp_path / "run")
    assert lines(path)[0]["answered"] == ([0, 1, 2, 3, 4] if privacy else [0, 1, 2, 4])


def test_nothing_is_asked_beside_noise_on_devices(tmp_path):
    """A table of gradients has no noise: a run of noise on devices has none."""
    pytest.importorskip("dp_accounting")
    seen = {}

    def change(question, kind):
        if question.spec:
            seen["spec"] = NodeSpec.from_text(question.spec)
        if kind != "train":
            return question
        spec = seen["spec"]
        request = wire.decode_request(question.request, spec.device.param_spec)
        layer = next(iter(request.theta.mask))
        program = (*request.program, TopGradients({layer: 2}))
        asked = replace(request, program=program).identified(spec.config.seed)
        return replace(question, request=wire.encode_request(asked, wire.NOTHING_KNOWN))

    grid, answers = changed_grid(tmp_path, change, [VICTIM, *OTHERS])
    nobody_answers(grid, secure_tiny(privacy=NOISE, **ONE_ROUND), tmp_path / "run")
    assert [answer.text.partition(":")[0] for _, answer in answers] == ["settings"] * 5


@pytest.mark.parametrize(
    ("privacy", "least", "joins"),
    [
        (NOISE, 0.5, True),
        (NOISE, 0.6, False),
        (NOISE | {"noise": "server"}, 0.5, False),
        ({}, 0.5, False),
    ],
)
def test_an_owner_may_want_noise_of_every_run(privacy, least, joins, tmp_path, capsys):
    pytest.importorskip("dp_accounting")
    grid = secure_grid(tmp_path, **{"secagg-noise": least})
    config = secure_tiny(privacy=privacy, **ONE_ROUND)
    if joins:
        path = federate(grid, config, tmp_path / "run")
        assert lines(path)[0]["answered"] == [0, 1, 2, 3, 4]
        return
    with pytest.raises(FedTinyError, match="0 nodes came"):
        federate(grid, config, tmp_path / "run")
    said = f"wants noise on devices with a multiplier of at least {least} (secagg-noise)"
    assert said in capsys.readouterr().out


def test_noise_out_of_a_budget_is_held_against_what_an_owner_wants(tmp_path):
    """The multiplier is not in the settings: questions tell it."""
    pytest.importorskip("dp_accounting")
    budget = {"noise": "devices", "epsilon": 1e6, "delta": 1e-2, "clip": 0.5, "sampling": "fixed"}
    grid, answers = changed_grid(tmp_path, lambda own, kind: own, [], **{"secagg-noise": 5.0})
    nobody_answers(grid, secure_tiny(privacy=budget, **ONE_ROUND), tmp_path / "run")
    assert {answer.text for _, answer in answers} == {
        "this node wants noise on devices with a multiplier of at least 5 (secagg-noise)"
    }


def test_no_refusal_tells_how_many_samples_a_node_has(tmp_path, monkeypatch):
    """Whatever weight the terms allow: what is refused follows from the power of two alone."""
    monkeypatch.setenv("FEDTINY_CACHE", str(tmp_path / "cache"))
    config = own_config(tmp_path, 4, rounds=1, selection={"development_ratio": 0.1})
    counts, asked, found = (24, 27, 30, 33), (1, 2, 3, 5, 6, 23, 24, 27, 31, 32, 63), {}

    class Searching(Grid):
        """Asks every node with less and less room for its weight, each time as if anew."""

        def answer(self, message):
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            question, whole = Question.read(message.content), message.content
            if question.secure is None:
                return super().answer(message)
            told = Message.from_bytes(question.secure.terms, TERMS)
            for most in asked:
                body = struct.pack("<Q", most) + bytes(told.body)[8:]
                terms = replace(told, body=body).to_bytes()
                secure = replace(question.secure, terms=terms)
                message.content = replace(question, secure=secure).records()
                state = copy.deepcopy(self.contexts[node].state)
                answer = Answer.read(super().answer(message).content)
                self.contexts[node].state = state
                found[kind, node, most] = answer.text
            message.content = whole
            return super().answer(message)

    folders = [write_folder(tmp_path / str(k), count, k) for k, count in enumerate(counts)]
    nodes = {100 + k: {"name": f"ward-{k}", "data": str(own)} for k, own in enumerate(folders)}
    grid = Searching(with_keys(nodes, tmp_path / "keys"))
    secure = replace(config, privacy=replace(config.privacy, secure_aggregation=True))
    path = federate(grid, secure, tmp_path / "run", data="own")
    said = "the terms allow less weight than this node has told of"
    bounds = {
        (kind, node): bound if kind == "train" else development_count(bound, 0.1)
        for node, bound in zip(nodes, (32, 32, 32, 64), strict=True)
        for kind in ("train", "query.bn_statistics", "query.losses")
    }
    assert found == {
        (*of, most): said if most < bound else "" for of, bound in bounds.items() for most in asked
    }
    assert lines(path)[0]["answered"] == [0, 1, 2, 3]


def test_nodes_that_want_more_participants_take_no_part(tmp_path):
    grid = secure_grid(tmp_path, **{"secagg-participants": 6})
    said = nobody_answers(grid, secure_tiny(**ONE_ROUND), tmp_path / "run")
    assert "5 devices take part, and this one takes part with 6 or more" in said
