"""A hostile node changes nothing: the model is, bit for bit, what it is without the node."""

import json

import pytest
from flwr.app import Error

from fedtiny.federation import wire
from fedtiny.flower import client as device_side

from ..devices.test_hostile import GRADIENT_LIES, HOSTILE, LIES, REFUSED
from ..runs.tiny import lines
from .federation import Grid, federate, parts, tiny

NODE = list(parts(3))[HOSTILE]
CONFIG = tiny(rounds=2, pruning={"delta_r": 1, "r_stop": 3})
CHANGES = {
    "cut short": lambda data: data[:-5],
    "garbled": lambda data: data[:20] + bytes(len(data) - 20),
    "next to nothing": lambda _: b"?",
    "far too long": lambda data: data + bytes(10**6),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The model of the run in which the node is out of reach in the first round instead."""
    gone = []

    def trouble(grid, node, message):
        if node == NODE and message.metadata.message_type == "train" and not gone:
            return gone.append(node) or Error(5, "gone")
        return None

    path = federate(Grid(trouble=trouble), CONFIG, tmp_path_factory.mktemp("without") / "run")
    assert lines(path)[0]["failed"] == {str(HOSTILE): "out of reach"}
    return (path / "model.safetensors").read_bytes()


def betrayed(monkeypatch, tmp_path, lie, change=lambda data: data):
    """The run in which the node lies in the first round."""
    real = wire.encode_reply

    def encode_reply(reply, mask):
        if reply.device == HOSTILE and reply.theta is not None and not said:
            said.append(reply)
            return change(real(lie(reply), mask))
        return real(reply, mask)

    said = []
    monkeypatch.setattr(wire, "encode_reply", encode_reply)
    path = federate(Grid(), CONFIG, tmp_path / "run")
    assert said
    return path


def assert_it_changed_nothing(path, without):
    first, second = lines(path)
    assert first["failed"][str(HOSTILE)].startswith(REFUSED)
    assert first["answered"] == [0, 2]
    assert second["failed"] == {}
    assert (path / "model.safetensors").read_bytes() == without


@pytest.mark.slow
@pytest.mark.parametrize("lie", {**LIES, **GRADIENT_LIES})
def test_a_lie_changes_nothing(lie, without, monkeypatch, tmp_path):
    path = betrayed(monkeypatch, tmp_path, {**LIES, **GRADIENT_LIES}[lie])
    assert_it_changed_nothing(path, without)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_bytes_that_are_no_reply_change_nothing(change, without, monkeypatch, tmp_path):
    path = betrayed(monkeypatch, tmp_path, lambda reply: reply, CHANGES[change])
    assert_it_changed_nothing(path, without)


def test_a_node_of_the_version_before_is_refused_in_one_sentence(monkeypatch, tmp_path):
    path = betrayed(monkeypatch, tmp_path, lambda reply: reply, lambda d: d[:4] + b"\x01" + d[5:])
    assert lines(path)[0]["failed"][str(HOSTILE)] == (
        "reply refused: the message has format 1; this fedtiny speaks 3: install the same fedtiny "
        "on both sides"
    )


def replaying(config, monkeypatch, tmp_path, again):
    """The run in which the node sends its first reply of a kind once more, when `again` says."""
    real, old = wire.encode_reply, []

    def encode_reply(reply, mask):
        data = real(reply, mask)
        if reply.device != HOSTILE or not again(reply):
            return data
        old.append(data)
        return old[0]

    monkeypatch.setattr(wire, "encode_reply", encode_reply)
    path = federate(Grid(), config, tmp_path / "run")
    assert len(old) == 2
    return path


def test_the_reply_of_an_earlier_round_is_refused(monkeypatch, tmp_path):
    config = tiny(rounds=2, pruning={"progressive": False})
    path = replaying(config, monkeypatch, tmp_path, lambda reply: reply.theta is not None)
    first, second = lines(path)
    assert first["failed"] == {}
    assert second["failed"] == {
        str(HOSTILE): "reply refused: it answers round 1, and this is round 2"
    }
    assert second["answered"] == [0, 2]


def test_the_reply_to_another_request_of_the_round_is_refused(monkeypatch, tmp_path):
    config = tiny(rounds=1, selection={"pool": "magnitude,erk", "pool_size": 4})
    path = replaying(config, monkeypatch, tmp_path, lambda reply: "losses" in reply.arrays)
    selection = json.loads((path / "selection.json").read_text())
    assert selection["failed"] == {
        str(HOSTILE): "reply refused: it answers another request than this one of round 1"
    }
    assert lines(path)[0]["failed"] == {}


@pytest.mark.parametrize("samples", [10**6, 2**39])
def test_a_node_with_another_number_of_images_than_its_part_has_is_turned_away(
    samples, monkeypatch, tmp_path, capsys
):
    real = device_side.Arrival
    monkeypatch.setattr(
        device_side, "Arrival", lambda name, own, k: real(name, samples if k == HOSTILE else own, k)
    )
    path = federate(Grid(), CONFIG, tmp_path / "run")
    assert [line["answered"] for line in lines(path)] == [[0, 2]] * 2
    assert f"laptop-{HOSTILE} takes no part: it says that it has {samples} samples" in (
        capsys.readouterr().out
    )
