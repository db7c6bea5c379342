"""Messages by the handful, replies on disk: a server never holds them all."""

import gc
import weakref

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtiny.federation import held_replies
from fedtiny.federation.messages import Reply
from fedtiny.federation.reply_validator import ReplyValidator
from fedtiny.flower import exchange
from fedtiny.flower.exchange import AT_ONCE, Exchange, Spool

from .federation import Grid, federate, parts, tiny
from .in_process import InProcessGrid

NODES = range(1, 41)


class Counting(InProcessGrid):
    """Echoes, and counts how much is asked for at once."""

    def __init__(self, silent=(), unreachable=()):
        app = ClientApp()
        app.train()(lambda message, context: Message(message.content, reply_to=message))
        super().__init__(app, {node: {} for node in NODES})
        self.silent, self.unreachable, self.most = set(silent), set(unreachable), 0

    def push_messages(self, messages):
        self.most = max(self.most, len(messages))
        reached = [m for m in messages if m.metadata.dst_node_id not in self.unreachable]
        ids = iter(super().push_messages(reached))
        return [next(ids) if message in reached else None for message in messages]

    def pull_messages(self, message_ids):
        self.most = max(self.most, len(message_ids))
        heard = [i for i in message_ids if self.sent[i].metadata.dst_node_id not in self.silent]
        return super().pull_messages(heard)


def contents():
    return {node: RecordDict({"own": ConfigRecord({"node": node})}) for node in NODES}


def test_messages_go_and_come_by_the_handful():
    grid = Counting()
    asked = Exchange(grid, timeout=5)
    assert asked.send("train", contents()) == set()
    found = {node: reply.content["own"]["node"] for node, reply in asked.replies()}
    assert found == {node: node for node in NODES}
    assert grid.most == AT_ONCE < len(NODES)
    assert asked.awaited == set()


def test_who_is_silent_is_awaited_until_the_time_is_up(monkeypatch):
    monkeypatch.setattr(exchange, "PAUSE", 0.01)
    asked = Exchange(Counting(silent=[7, 9]), timeout=0.1)
    asked.send("train", contents())
    assert {node for node, _ in asked.replies()} == set(NODES) - {7, 9}
    assert asked.awaited == {7, 9}


def test_who_cannot_be_reached_is_told_at_once():
    asked = Exchange(Counting(unreachable=[3]), timeout=5)
    assert asked.send("train", contents()) == {3}
    assert {node for node, _ in asked.replies()} == set(NODES) - {3}


def test_replies_come_back_in_the_order_of_devices_and_leave_nothing(tmp_path):
    place = tmp_path / "spool"
    place.mkdir()
    (place / "99.reply").write_bytes(b"of a server that was killed")
    with Spool.within(place) as spool:
        for device in (10, 2, 33, 1):
            spool.put(device, str(device).encode())
        found = list(spool.in_order())
    assert found == [(1, b"1"), (2, b"2"), (10, b"10"), (33, b"33")]
    assert not place.exists()


def break_off(place):
    with Spool.within(place) as spool:
        spool.put(1, b"x")
        raise ConnectionError("away")


def test_a_spool_is_gone_even_where_the_work_fails(tmp_path):
    with pytest.raises(ConnectionError, match="away"):
        break_off(tmp_path / "spool")
    assert not (tmp_path / "spool").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["without bounds", "in a file"])
def test_the_server_has_one_reply_in_memory_at_a_time(how, tmp_path, monkeypatch):
    alive, most = weakref.WeakSet(), 0

    class Watched(Reply):
        __hash__ = object.__hash__

    def decoded(*arguments):
        nonlocal most
        gc.collect()
        reply = Watched(**vars(real(*arguments)))
        alive.add(reply)
        most = max(most, len(alive))
        return reply

    real = ReplyValidator.decoded
    monkeypatch.setattr(ReplyValidator, "decoded", decoded)
    monkeypatch.setattr(held_replies, "in_memory", lambda: 0)
    settings = {"robustness": {"bound": 0.0}} if how == "without bounds" else {}
    config = tiny(rounds=1, fleet={"devices": 5}, data={"limit_train": 200}, **settings)
    federate(Grid(parts(5)), config, tmp_path / "run")
    assert most <= 2, "one that is being averaged in, and the next"
