"""A server that dies in the middle of a run goes on to the same end."""

import pytest

from fedtiny.cli.main import dispatch
from fedtiny.errors import RunError
from fedtiny.report.run import read
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.runner import resume

from ..runs.tiny import essence
from .federation import Grid, federate, parts, tiny

NODES = list(parts(3))
BYTES = ("bytes_down", "bytes_up")


class KilledError(Exception):
    """The server is gone."""


def kill_in_round(round):
    """A trouble that ends the server in the middle of a round, when one node has answered."""

    def trouble(grid, node, message):
        if node == NODES[1] and grid.kinds(node).count("train") == round:
            raise KilledError

    return trouble


def without_bytes(found):
    """To Flower a resumed run is a new one, so masks are sent once more; nothing else differs."""
    lines = [{k: v for k, v in line.items() if k not in BYTES} for line in found["metrics"]]
    result = {k: v for k, v in found["result"].items() if k not in BYTES}
    return {**found, "metrics": lines, "result": result}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedtiny", "feddst"])
def test_killed_in_mid_round_it_ends_as_if_nothing_had_happened(method, tmp_path):
    config = tiny(method=method, rounds=4)
    whole = federate(Grid(), config, tmp_path / "whole")
    path = tmp_path / "killed"
    with pytest.raises(KilledError):
        federate(Grid(trouble=kill_in_round(2)), config, path)
    assert not (path / "result.json").exists()
    federate(Grid(), config, path, resume=True)
    assert without_bytes(essence(path)) == without_bytes(essence(whole))


def test_killed_before_the_first_checkpoint_it_starts_over(tmp_path):
    config = tiny(rounds=2)
    whole = federate(Grid(), config, tmp_path / "whole")

    def at_selection(grid, node, message):
        if message.metadata.message_type == "query.losses":
            raise KilledError

    with pytest.raises(KilledError):
        federate(Grid(trouble=at_selection), config, tmp_path / "killed")
    federate(Grid(), config, tmp_path / "killed", resume=True)
    assert essence(tmp_path / "killed") == essence(whole)


def before_anything_is_asked(monkeypatch, path):
    """A run that ends while the server trains by itself."""

    def killed(assembly):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Assembly, "pretrain", killed)
        with pytest.raises(KilledError):
            federate(Grid(), tiny(rounds=1), path)
    return path


def test_killed_before_anything_is_asked_it_is_not_continued_in_the_simulator(
    tmp_path, monkeypatch
):
    path = before_anything_is_asked(monkeypatch, tmp_path / "run")
    with pytest.raises(RunError, match=r"devices of this run are real.* flower.resume=true'"):
        resume(path)
    federate(Grid(), tiny(rounds=1), path, resume=True)
    assert (path / "result.json").exists()


def test_the_way_on_is_flowers(tmp_path, monkeypatch, capsys):
    path = before_anything_is_asked(monkeypatch, tmp_path / "run")
    stopped = capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert dispatch(["inspect", "run"]) == 0
    way_on = f"flwr run APP --run-config 'flower.run=\"{path}\" flower.resume=true'"
    for said in (stopped, capsys.readouterr().out, *read(RunFolder(path)).missing[:1]):
        assert way_on in said
        assert "fedtiny resume" not in said


def test_without_resume_a_run_is_never_touched(tmp_path):
    path = federate(Grid(), tiny(rounds=1), tmp_path / "run")
    before = essence(path)
    with pytest.raises(RunError, match="is not empty"):
        federate(Grid(), tiny(rounds=1), path)
    assert essence(path) == before


def test_a_run_of_real_devices_is_not_continued_in_the_simulator(tmp_path):
    path = federate(Grid(), tiny(rounds=1), tmp_path / "run")
    with pytest.raises(RunError, match="the devices of this run are real"):
        resume(path)
