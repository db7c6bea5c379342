"""A server that asks nodes of one exchange different things, or for less than was settled."""

from dataclasses import replace

import numpy as np
import pytest

from fedtiny.federation import wire
from fedtiny.federation.messages import Request
from fedtiny.flower.messages import Answer, Question
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.privacy.secagg.server import SecureSum
from fedtiny.sparse.theta import Theta

from ..runs.tiny import lines
from .federation import Grid, federate, parts
from .secure import secure_grid, secure_tiny

VICTIM, *OTHERS = parts(5)
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


def changed_grid(folder, change, nodes):
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

    return secure_grid(folder, kind=Changed), answers


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
