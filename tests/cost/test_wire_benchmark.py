"""Rounds as they are counted on the wire: the cost model's bytes, and few beside dense FedAvg's."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from fedtiny.federation.transport import Traffic

PATH = Path(__file__).parents[2] / "benchmarks" / "wire.py"


@pytest.fixture(scope="module")
def wire():
    spec = importlib.util.spec_from_file_location("wire_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def sparse(wire):
    """A dozen rounds of the whole ResNet18, two of which adjust."""
    return wire.rounds_of("fedtiny", 0.01, 12, None)


@pytest.fixture(scope="module")
def dense(wire):
    return wire.rounds_of("fedavg", 1.0, 2, None)


def test_every_kind_of_round_takes_the_bytes_that_the_cost_model_gives(sparse, dense):
    assert [round.counted for round in sparse] == [round.predicted for round in sparse]
    assert [round.counted for round in dense] == [round.predicted for round in dense]
    kinds = ["adjusting", "plain, new mask", *["plain"] * 8]
    assert [round.kind for round in sparse] == [*kinds, *kinds[:2]]


def test_a_round_is_as_cheap_as_it_must_be(wire, sparse, dense):
    plain, again, adjusting = wire.rows_of(sparse, dense[-1].counted)
    assert plain.fits
    assert again.fits
    assert adjusting.fits
    assert max(plain.down_share, plain.up_share) <= 0.015
    assert max(adjusting.down_share, adjusting.up_share) <= 0.02
    assert plain.up < adjusting.up
    assert plain.down < again.down


@pytest.mark.parametrize("slot", ["down", "up"])
def test_a_round_that_is_too_dear_in_either_direction_is_told(wire, slot):
    cheap = wire.Round("plain", Traffic(1, 1), Traffic(1, 1))
    dear = Traffic(**{"down": 1, "up": 1, slot: 20})
    rounds = [wire.Round("plain", dear, dear)]
    rounds += [wire.Round(kind, cheap.counted, cheap.counted) for kind in wire.MOST]
    rows = wire.rows_of(rounds, Traffic(1000, 1000))
    assert [row.fits for row in rows] == [False, True, True]


def test_the_command_prints_a_table_and_fails_where_it_must(wire, monkeypatch, tmp_path, capsys):
    found = {"density": 0.01, "dense": {"down": 100, "up": 100}, "rounds": 3, "as_predicted": 2}
    row = wire.Row("plain", 1, 1, 1, 0.01, 0.01, 0.01, 0.015)
    found["rows"] = [wire.asdict(row) | {"fits": True}]
    monkeypatch.setattr(wire, "compare_rounds", lambda density: found)
    path = tmp_path / "rounds.json"
    monkeypatch.setattr(sys, "argv", ["wire.py", "--json", str(path)])
    with pytest.raises(SystemExit, match="the cost model gives other bytes"):
        wire.main()
    assert json.loads(path.read_text()) == found
    assert "same bytes in 2 of 3 rounds" in capsys.readouterr().out
    found["rows"][0]["fits"] = False
    with pytest.raises(SystemExit, match="dearer"):
        wire.main()
    assert "TOO MUCH" in capsys.readouterr().out
