"""A device belongs to a node's key, and nothing of a node's files leaves it."""

import json
import stat

import pytest

from fedtiny.errors import DataError, FedTinyError
from fedtiny.flower import client
from fedtiny.flower.exchange import Spool

from ..runs.tiny import lines
from .federation import Grid, federate, parts, tiny
from .in_process import InProcessGrid

NODES = list(parts(3))
THIEF = 9999


def with_a_thief(grid, node, message):
    """From round 1 on node 1 is away, and another one claims its device; in round 3 it is back."""
    if node != NODES[2] or message.metadata.message_type != "train":
        return
    done = grid.kinds(NODES[0]).count("train")
    if done == 1:
        grid.away = grid.contexts.pop(NODES[1])
        claim = {**parts(3)[NODES[1]], "name": "thief"}
        grid.contexts |= InProcessGrid(client.app, {THIEF: claim}).contexts
    if done == 3:
        grid.contexts[NODES[1]] = grid.away


def seats(path):
    found = json.loads((path / "nodes.json").read_text())["devices"]
    return [own["node"] for own in found.values()]


def test_a_seat_is_not_stolen_while_its_owner_is_away(tmp_path, capsys):
    path = federate(Grid(trouble=with_a_thief), tiny(rounds=5), tmp_path / "run")
    answered = [line["answered"] for line in lines(path)]
    assert answered == [[0, 1, 2], [0, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert seats(path) == NODES
    said = capsys.readouterr().out
    assert "thief takes no part: device 1 belongs to laptop-1, which is away" in said
    assert "is given to" not in said


def test_a_seat_that_must_be_given_away_is_told(tmp_path, capsys):
    config = tiny(rounds=3, fleet={"min_replies": 3})
    path = federate(Grid(trouble=with_a_thief), config, tmp_path / "run")
    assert [line["answered"] for line in lines(path)][-1] == [0, 1, 2]
    assert seats(path) == [NODES[0], THIEF, NODES[2]]
    told = f"device 1 of laptop-1 (node {NODES[1]}), which is away, is given to thief (node {THIEF}"
    assert told in capsys.readouterr().out


def test_seats_to_reassign_are_given_to_the_next_and_the_log_says_so(tmp_path, capsys):
    grid = Grid(trouble=with_a_thief)
    path = federate(grid, tiny(rounds=3), tmp_path / "run", reassign=True)
    assert [line["answered"] for line in lines(path)] == [[0, 1, 2]] * 3
    assert seats(path) == [NODES[0], THIEF, NODES[2]]
    assert "device 1 of laptop-1" in capsys.readouterr().out


def killed_in(round):
    def trouble(grid, node, message):
        if grid.kinds(node).count("train") == round:
            raise KeyboardInterrupt

    return trouble


def test_a_seat_is_kept_over_a_restart_of_the_server(tmp_path, capsys):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        federate(Grid(trouble=killed_in(1)), tiny(rounds=2), path)
    strangers = {node: told for node, told in parts(3).items() if node != NODES[1]}
    strangers[THIEF] = {**parts(3)[NODES[1]], "name": "thief"}
    federate(Grid(strangers), tiny(rounds=2), path, resume=True)
    assert lines(path)[-1]["answered"] == [0, 2]
    assert seats(path) == NODES


def test_a_whole_fleet_of_new_keys_takes_over_at_once(tmp_path, capsys):
    """As after a new SuperLink, which numbers all nodes anew."""
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        federate(Grid(trouble=killed_in(1)), tiny(rounds=2), path)
    anew = {node + 1: told for node, told in parts(3).items()}
    federate(Grid(anew), tiny(rounds=2), path, resume=True, wait=60)
    assert lines(path)[-1]["answered"] == [0, 1, 2]
    assert seats(path) == list(anew)
    assert capsys.readouterr().out.count("is given to") == 3


SECRET = "/home/anna/patients/mri_0312.png"


@pytest.mark.parametrize(
    ("error", "category", "joins"),
    [
        (DataError(f"{SECRET} cannot be read"), "data: ", True),
        (FedTinyError(f"{SECRET} cannot be used"), "device: ", True),
        (FileNotFoundError(2, "No such file", SECRET), "system: ", False),
        (MemoryError(SECRET), "memory: ", True),
        (ZeroDivisionError(SECRET), "unexpected: ", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_no_path_leaves_a_node(tmp_path, capsys, caplog, monkeypatch, error, category, joins):
    really, calls = client.shard_of, []

    def failing(spec, device, node):
        if node["name"] == "laptop-1":
            calls.append(node)
            if joins or len(calls) > 1:
                raise error
        return really(spec, device, node)

    monkeypatch.setattr(client, "shard_of", failing)
    grid = Grid()
    sent = []
    answer = grid.answer
    grid.answer = lambda message: sent.append(answer(message)) or sent[-1]
    path = federate(grid, tiny(rounds=1), tmp_path / "run")
    words = [str(record) for reply in sent for record in reply.content.config_records.values()]
    files = [file.read_bytes() for file in path.iterdir() if file.is_file()]
    assert any(category in word for word in words)
    for part in ("anna", "mri_0312"):
        assert part not in "".join(words) + capsys.readouterr().out
        assert not any(part.encode() in data for data in files)
        assert part in caplog.text, "the node's own log has it"


def test_replies_are_spooled_where_nobody_else_looks(tmp_path):
    with Spool.within(tmp_path / ".spool") as spool:
        spool.put(0, b"reply")
        folder, file = tmp_path / ".spool", tmp_path / ".spool" / "0.reply"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert list(spool.in_order()) == [(0, b"reply")]
    assert not folder.exists()


def test_a_spool_is_not_kept_in_somebody_else_s_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "0.reply").write_text("my work")
    (tmp_path / ".spool").symlink_to(tmp_path / "mine")
    with (
        pytest.raises(FedTinyError, match="cannot keep replies"),
        Spool.within(tmp_path / ".spool"),
    ):
        raise AssertionError("it is kept there")
    assert (tmp_path / "mine" / "0.reply").read_text() == "my work"
