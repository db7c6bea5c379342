"""A checkpoint gives the server back as it was, or says that it cannot."""

import json

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fedtiny.errors import RunError
from fedtiny.runs import checkpoint
from fedtiny.runs.assembly import assemble
from fedtiny.runs.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint
from fedtiny.runs.folder import RunFolder

from .tiny import TINY


@pytest.fixture
def folder(stopped):
    return RunFolder(stopped)


@pytest.fixture(scope="session")
def fresh():
    """A server that a checkpoint can be loaded into, again and again."""
    return assemble(TINY).server


def state(server):
    return {
        "theta": server.theta.vector.tobytes(),
        "mask": server.theta.mask.version,
        "round": server.round,
        "coarse_pruned": server.coarse_pruned,
        "memory": server.memory,
        "arrays": {name: array.tolist() for name, array in server.arrays.items()},
        "door": server.transport.state(),
    }


def test_a_checkpoint_gives_everything_back(folder, tmp_path):
    server, other = assemble(TINY).server, assemble(TINY).server
    load_checkpoint(folder, server)
    assert (server.round, server.coarse_pruned) == (2, True)
    assert server.theta.mask.density <= 0.3
    server.memory["note"] = {"rounds": [1, 2]}
    server.arrays["initial"] = server.theta.vector[:5].copy()
    copy = RunFolder.create(tmp_path / "copy")
    save_checkpoint(copy, server)
    load_checkpoint(copy, other)
    assert state(other) == state(server)


def test_what_is_loaded_is_saved_to_the_same_bytes(folder, fresh, tmp_path):
    load_checkpoint(folder, fresh)
    copy = RunFolder.create(tmp_path / "copy")
    save_checkpoint(copy, fresh, read_checkpoint(folder).state["record"])
    assert copy.checkpoint.read_bytes() == folder.checkpoint.read_bytes()


def test_a_checkpoint_is_smaller_than_the_model(folder, finished):
    model = finished.path / "model.safetensors"
    header = int.from_bytes(folder.checkpoint.read_bytes()[:8], "little")
    values = load_file(folder.checkpoint)["theta"].nbytes
    assert folder.checkpoint.stat().st_size - header < model.stat().st_size
    assert values < sum(array.nbytes for array in load_file(model).values())


def refused(folder, server, data):
    """Whether damaged bytes are refused in one sentence, and the server is left alone."""
    folder.checkpoint.write_bytes(data)
    before = state(server)
    try:
        load_checkpoint(folder, server)
    except RunError as error:
        return "\n" not in str(error) and state(server) == before
    except Exception:
        return False
    return False


def test_a_checkpoint_cut_anywhere_is_refused(folder, fresh):
    data = folder.checkpoint.read_bytes()
    cuts = [*range(20), *range(20, len(data), 97), len(data) - 1]
    assert [cut for cut in cuts if not refused(folder, fresh, data[:cut])] == []


def test_a_damaged_checkpoint_says_what_to_do(folder, fresh):
    folder.checkpoint.write_bytes(folder.checkpoint.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"is damaged; put back a copy of it, or .* fedtiny run "):
        load_checkpoint(folder, fresh)
    moved = RunFolder(folder.path.rename(folder.path.with_name("my run")))
    with pytest.raises(RunError, match=r"fedtiny run '.*/my run/config\.toml'"):
        load_checkpoint(moved, fresh)


def test_a_flipped_bit_in_the_values_is_noticed(folder, fresh):
    data = folder.checkpoint.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    places = range(start, len(data), 41)
    assert [at for at in places if not refused(folder, fresh, flipped(data, at))] == []


def test_a_flipped_bit_in_the_header_is_noticed(folder, fresh):
    data = folder.checkpoint.read_bytes()
    places = range(8 + int.from_bytes(data[:8], "little"))
    assert [at for at in places if not refused(folder, fresh, flipped(data, at))] == []


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_something_else_in_place_of_a_checkpoint_is_refused(folder, fresh, finished):
    model = (finished.path / "model.safetensors").read_bytes()
    assert refused(folder, fresh, model)
    assert refused(folder, fresh, b"PK\x03\x04" + bytes(1000))


NO_STATE = ["", "[]", "{}", '{"state": "{}"}', '{"digest": "0"}', '{"state": "{}", "digest": "0"}']


@pytest.mark.parametrize("metadata", [{}, *({"fedtiny": text} for text in NO_STATE)])
def test_a_checkpoint_without_its_state_is_refused(folder, fresh, metadata):
    save_file(load_file(folder.checkpoint), folder.checkpoint, metadata)
    assert refused(folder, fresh, folder.checkpoint.read_bytes())


def test_a_state_that_was_edited_is_refused(folder, fresh):
    with safe_open(folder.checkpoint, "numpy") as file:
        sealed = json.loads(file.metadata()["fedtiny"])
    state = json.loads(sealed["state"])
    assert state["round"] == 2
    edited = json.dumps({**sealed, "state": json.dumps({**state, "round": 1})})
    save_file(load_file(folder.checkpoint), folder.checkpoint, {"fedtiny": edited})
    assert refused(folder, fresh, folder.checkpoint.read_bytes())


def test_a_checkpoint_of_a_later_format_is_refused(folder, fresh, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(checkpoint, "FORMAT", 9)
        save_checkpoint(folder, fresh)
    with pytest.raises(RunError, match="has format 9; this version reads 1"):
        load_checkpoint(folder, fresh)
