"""Nodes that are late, fail, forget or never come: the run goes on and says who was missing."""

import json
import time

import pytest
from flwr.app import ConfigRecord, Error, RecordDict

from fedtiny.errors import FedTinyError
from fedtiny.flower import client
from fedtiny.flower.messages import told

from ..runs.tiny import lines
from .federation import Grid, federate, parts, tiny
from .in_process import InProcessGrid

NODES = list(parts(3))
ONE_ROUND = tiny(rounds=2)


def trained(node, round):
    """Trouble for one node in one round of training."""

    def when(grid, asked, message):
        done = sum(kind == "train" for kind in grid.kinds(asked))
        return asked == node and message.metadata.message_type == "train" and done == round

    return when


def test_a_late_node_is_named_and_the_others_make_the_round(tmp_path, capsys):
    straggler = trained(NODES[1], 0)
    grid = Grid(trouble=lambda *at: "silent" if straggler(*at) else None)
    found = lines(federate(grid, ONE_ROUND, tmp_path / "run"))
    assert [line["failed"] for line in found] == [{"1": "too late"}] * 2, "it never says a word"
    assert [line["answered"] for line in found] == [[0, 2]] * 2
    assert "device 1 (laptop-1) is left out of 'train': too late" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Error(5, "gone"), "out of reach"),
        (Error(4, "lost"), "too late"),
        (Error(2, "Traceback\nZeroDivisionError: 1/0"), "its ClientApp failed: ZeroDivisionError"),
    ],
)
def test_an_error_is_told_of_the_node_that_was_asked(error, why, tmp_path):
    failing = trained(NODES[2], 0)
    seen = []

    def trouble(grid, node, message):
        if failing(grid, node, message) and not seen:
            return seen.append(node) or error
        return None

    first, second = lines(federate(Grid(trouble=trouble), ONE_ROUND, tmp_path / "run"))
    assert list(first["failed"]) == ["2"]
    assert first["failed"]["2"].startswith(why)
    assert (second["failed"], second["answered"]) == ({}, [0, 1, 2])


def test_who_failed_gets_the_whole_theta_next_time(tmp_path):
    """Nobody knows what a node holds that did not answer."""
    failing, seen = trained(NODES[0], 0), []

    def trouble(grid, node, message):
        return seen.append(1) or Error(5, "") if failing(grid, node, message) and not seen else None

    config = tiny(rounds=3, pruning={"progressive": False})
    healthy = lines(federate(Grid(), config, tmp_path / "healthy"))
    flaky = lines(federate(Grid(trouble=trouble), config, tmp_path / "flaky"))
    assert flaky[1]["bytes_down"] > healthy[1]["bytes_down"]
    assert flaky[2]["bytes_down"] == healthy[2]["bytes_down"]


def kit_bytes(run):
    return json.loads((run / "nodes.json").read_text())["bytes_joining"]


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", ["fedtiny.theta", "everything"])
def test_a_node_that_lacks_something_asks_for_it(forgotten, tmp_path):
    """As after a restart of the SuperNode: one more exchange, and the same result."""

    def trouble(grid, node, message):
        state = grid.contexts[node].state
        if node == NODES[1] and grid.kinds(node).count("train") == 1:
            for name in [forgotten] if forgotten in state else list(state):
                del state[name]

    config = tiny(rounds=3, pruning={"progressive": False})
    healthy, forgetful = Grid(), Grid(trouble=trouble)
    expected = lines(federate(healthy, config, tmp_path / "healthy"))
    found = lines(federate(forgetful, config, tmp_path / "forgetful"))
    assert [line["failed"] for line in found] == [{}, {}, {}]
    assert [line["accuracy"] for line in found] == [line["accuracy"] for line in expected]
    assert forgetful.kinds(NODES[1]).count("train") == 4
    assert found[1]["bytes_down"] > expected[1]["bytes_down"], "what is sent twice is counted twice"
    assert kit_bytes(tmp_path / "forgetful") == kit_bytes(tmp_path / "healthy") * (
        1 if forgotten == "fedtiny.theta" else 4 / 3
    ), "so is a kit"
    same = [name for name in expected[0] if name != "bytes_down"]
    assert [[line[n] for n in same] for line in found] == [[e[n] for n in same] for e in expected]


def test_a_node_that_will_never_be_content_is_left_out(tmp_path):
    def trouble(grid, node, message):
        if node == NODES[0] and message.metadata.message_type == "train":
            grid.contexts[node].state = RecordDict()
            message.content.pop("kit", None)

    found = lines(federate(Grid(trouble=trouble), tiny(rounds=1), tmp_path / "run"))
    assert found[0]["failed"] == {"0": "kit"}


def test_too_few_nodes_end_with_what_to_do(tmp_path):
    grid = Grid({node: config for node, config in parts(3).items() if node == NODES[0]})
    told = r"1 node came, fewer than the 2 .* start more nodes, then run again$"
    with pytest.raises(FedTinyError, match=told):
        federate(grid, tiny(fleet={"min_replies": 2}), tmp_path / "run")
    federate(Grid(), tiny(rounds=1, fleet={"min_replies": 2}), tmp_path / "run")
    assert len(lines(tmp_path / "run")) == 1


def test_too_few_nodes_in_mid_run_leave_a_run_to_be_resumed(tmp_path):
    def trouble(grid, node, message):
        if message.metadata.message_type == "train":
            grid.contexts.pop(NODES[2], None)
        return Error(5, "gone") if node not in grid.contexts else None

    config = tiny(rounds=2, fleet={"min_replies": 3})
    with pytest.raises(FedTinyError, match=r"run again with flower.resume=true"):
        federate(Grid(trouble=trouble), config, tmp_path / "run")
    federate(Grid(), config, tmp_path / "run", resume=True)
    assert lines(tmp_path / "run")[-1]["answered"] == [0, 1, 2]


def test_a_run_begins_without_those_who_do_not_come(tmp_path):
    nodes = {node: config for node, config in parts(3).items() if node != NODES[1]}
    found = lines(federate(Grid(nodes), ONE_ROUND, tmp_path / "run"))
    assert [line["failed"] for line in found] == [{"1": "out of reach"}] * 2


def test_a_node_that_comes_later_takes_part_from_then_on(tmp_path):
    straggler = parts(3)[NODES[2]]

    def trouble(grid, node, message):
        if grid.kinds(NODES[0]).count("train") == 1 and len(grid.contexts) == 2:
            more = InProcessGrid(client.app, {999: straggler})
            grid.contexts |= more.contexts

    two = {node: config for node, config in parts(3).items() if node != NODES[2]}
    found = lines(federate(Grid(two, trouble), tiny(rounds=3), tmp_path / "run"))
    assert [line["answered"] for line in found] == [[0, 1], [0, 1, 2], [0, 1, 2]]
    noted = json.loads((tmp_path / "run" / "nodes.json").read_text())
    assert noted["devices"]["2"]["node"] == 999


def test_two_nodes_cannot_be_the_same_device(tmp_path, capsys):
    nodes = parts(3) | {5000: parts(3)[NODES[1]]}
    found = lines(federate(Grid(nodes), ONE_ROUND, tmp_path / "run"))
    assert [line["answered"] for line in found] == [[0, 1, 2]] * 2
    assert "device 1 is played by laptop-1 already" in capsys.readouterr().out
    noted = json.loads((tmp_path / "run" / "nodes.json").read_text())
    assert list(noted["turned_away"]) == ["5000"]


def test_a_stranger_that_says_nothing_holds_nobody_up(tmp_path, monkeypatch):
    """It comes when a device has lost its node, so that it could play that one."""

    def trouble(grid, node, message):
        if message.metadata.message_type == "train":
            grid.contexts.pop(NODES[2], None)
            grid.contexts |= InProcessGrid(client.app, {9999: {}}).contexts
        return "silent" if node == 9999 else None

    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("the server waits"))
    config = tiny(rounds=3, fleet={"fraction": 0.5})
    federate(Grid(trouble=trouble), config, tmp_path / "run", wait=60, timeout=60)
    assert len(lines(tmp_path / "run")) == 3


def test_nobody_speaks_to_a_stranger_when_every_device_has_its_node(tmp_path):
    def trouble(grid, node, message):
        if message.metadata.message_type == "train":
            grid.contexts |= InProcessGrid(client.app, {9999: {}}).contexts

    grid = Grid(trouble=trouble)
    found = lines(federate(grid, ONE_ROUND, tmp_path / "run"))
    assert [line["answered"] for line in found] == [[0, 1, 2]] * 2
    assert grid.kinds(9999) == []


def test_a_node_that_is_slow_to_join_is_asked_again(tmp_path, capsys):
    asked = set()

    def trouble(grid, node, message):
        if node == NODES[2] and message.metadata.message_type == "query.join":
            asked.add(message.metadata.message_id)
            return "silent" if len(asked) == 1 else None
        return None

    found = lines(federate(Grid(trouble=trouble), ONE_ROUND, tmp_path / "run"))
    assert f"node {NODES[2]} takes no part: it did not answer in time" in capsys.readouterr().out
    assert [line["answered"] for line in found] == [[0, 1, 2]] * 2
    noted = json.loads((tmp_path / "run" / "nodes.json").read_text())
    assert noted["turned_away"] == {}


def test_a_node_with_another_number_of_parts_is_told_so(tmp_path, capsys):
    nodes = parts(3) | {NODES[0]: {"partition-id": 0, "num-partitions": 4}}
    federate(Grid(nodes), ONE_ROUND, tmp_path / "run")
    assert "partition-id=K num-partitions=3" in capsys.readouterr().out


def test_only_a_fraction_of_the_nodes_is_asked(tmp_path):
    config = tiny(rounds=4, fleet={"fraction": 0.5})
    grid = Grid()
    found = lines(federate(grid, config, tmp_path / "run"))
    assert [len(line["answered"]) for line in found] == [2] * 4
    assert sum(kind == "train" for _, kind in grid.log) == 8


def test_a_fraction_is_drawn_from_the_nodes_that_are_there(tmp_path):
    few = dict(list(parts(6).items())[:2])
    config = tiny(rounds=3, fleet={"devices": 6, "fraction": 0.34})
    found = lines(federate(Grid(few), config, tmp_path / "run"))
    assert [(line["answered"], line["failed"]) for line in found] == [([0, 1], {})] * 3


def test_a_reply_that_cannot_be_read_is_refused(tmp_path):
    def damage(grid, message):
        reply = InProcessGrid.answer(grid, message)
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        if node == NODES[1] and kind == "train":
            reply.content["reply"]["data"].data = reply.content["reply"]["data"].data[:-3]
        return reply

    grid = Grid()
    grid.answer = lambda message: damage(grid, message)
    found = lines(federate(grid, tiny(rounds=1), tmp_path / "run"))
    assert found[0]["answered"] == [0, 2]
    assert found[0]["failed"]["1"].startswith("reply refused: the message was damaged")


def test_a_node_cannot_speak_for_another(tmp_path):
    def impostor(grid, node, message):
        if node == NODES[1] and message.metadata.message_type == "train":
            message.content["order"]["device"] = 0

    found = lines(federate(Grid(trouble=impostor), tiny(rounds=1), tmp_path / "run"))
    assert found[0]["failed"] == {"1": "reply refused: it is signed by device 0"}


def test_a_node_that_was_turned_away_may_come_back(tmp_path):
    """It left with three parts in mind and comes back, under the same id, with the right number."""
    nodes = parts(3) | {NODES[2]: {"partition-id": 2, "num-partitions": 4}}

    def trouble(grid, node, message):
        done = grid.kinds(NODES[0]).count("train")
        if done == 1 and NODES[2] in grid.contexts and not grid.left:
            grid.left = grid.contexts.pop(NODES[2])
        if done == 2 and NODES[2] not in grid.contexts:
            grid.left.node_config["num-partitions"] = 3
            grid.contexts[NODES[2]] = grid.left

    grid = Grid(nodes, trouble)
    grid.left = None
    found = lines(federate(grid, tiny(rounds=4), tmp_path / "run"))
    assert [line["answered"] for line in found] == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("kind", ["train", "query.join"])
def test_words_of_a_node_reach_neither_terminal_nor_files_as_they_are(kind, tmp_path, capsys):
    words = "one\nmore \x1b[2J\x07" + "A" * 100_000
    failed = RecordDict({"answer": ConfigRecord({"status": "failed", "words": words})})

    def trouble(grid, node, message):
        return failed if node == NODES[1] and message.metadata.message_type == kind else None

    path = federate(Grid(trouble=trouble), tiny(rounds=1), tmp_path / "run")
    shown = capsys.readouterr().out
    assert "more ?[2J?AAA" in shown
    assert "\x1b" not in shown
    for text in (shown, *((path / name).read_text() for name in ("metrics.jsonl", "nodes.json"))):
        assert "A" * 300 not in text


def test_words_of_a_node_are_shown_in_one_printable_line():
    assert told("Traceback\n  File\nOops: \x1b[31m" + "x" * 999).startswith("Oops: ?[31mxxx")
    assert len(told("x" * 999)) == 300
