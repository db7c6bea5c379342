"""Each attack of the benchmark, for a few rounds: who lies is named, and the run goes on."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[2] / "benchmarks" / "attacks.py"


@pytest.fixture(scope="module")
def attacks():
    spec = importlib.util.spec_from_file_location("attacks", PLACE)
    module = sys.modules["attacks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["attacks"]


def config(attacks, defence="default"):
    found = attacks.settings(0, 3, attacks.DEFENCES[defence], "Dirichlet(0.5)")
    return replace(found, width=8, data=replace(found.data, limit_train=400, limit_test=100))


@pytest.fixture(scope="module")
def honest(attacks):
    return attacks.played(config(attacks))


def test_where_all_are_honest_bounds_change_no_bit(attacks, honest):
    assert honest["versions"] == attacks.played(config(attacks, "none"))["versions"]
    assert honest["others_named"] == []


@pytest.mark.parametrize(
    "attack", ["x100", "x-10", "x-5", "3e38", "statistics", "losses", "gradients", "backdoor"]
)
def test_who_attacks_is_named_and_the_model_is_about_as_good(attack, attacks, honest):
    found = attacks.played(config(attacks), attacks.ATTACKS[attack], [1])
    assert found["named"]
    assert found["accuracy"] > honest["accuracy"] - 0.1
    assert found["placed"] < 0.15


def test_without_bounds_the_run_ends_or_is_spoiled(attacks):
    found = attacks.played(config(attacks, "none"), attacks.ATTACKS["3e38"], [1])
    assert found == {"ended": 1}


@pytest.mark.parametrize("attack", ["x-5", "x-3"])
def test_a_device_with_much_of_the_data_does_no_more_than_to_be_absent(attack, attacks):
    found = attacks.played(config(attacks), attacks.ATTACKS[attack], attacks.LARGEST)
    absent = attacks.played(config(attacks), attacks.ATTACKS["absent"], attacks.LARGEST)
    assert found["named"]
    assert found["others_named"] == []
    assert found["accuracy"] > absent["accuracy"] - 0.02


def test_what_other_code_gave_is_measured_again_or_a_dash(attacks, tmp_path):
    stored = tmp_path / "attacks.json"
    results = attacks.Results(stored)
    present = {"accuracy": 0.9, "named": True}
    results.of("x100", lambda: present)
    assert attacks.Results(stored).of("x100", lambda: 1 / 0) == present | {"code": results.code}
    stored.write_text(stored.read_text().replace(results.code, "0" * 12))
    old = attacks.Results(stored, stored_only=True).of("x100", lambda: 1 / 0)
    assert old == {}
    assert attacks._cell("x100", [present, old]) == "-"
    assert attacks._cell("x100", [present, present]) == "0.900*"
    again = attacks.Results(stored).of("x100", lambda: {"accuracy": 0.8})
    assert again == {"accuracy": 0.8, "code": results.code}


def test_the_digest_is_of_the_defenses_and_the_attacks(attacks, tmp_path, monkeypatch):
    package = tmp_path / "fedtiny"
    for name in attacks.DECIDING:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("one = 1\n")
    monkeypatch.setattr(attacks.fedtiny, "__file__", str(package / "__init__.py"))
    before = attacks.code_digest()
    (package / attacks.DECIDING[0]).write_text("one = 2\n")
    assert attacks.code_digest() != before


def test_processes_that_share_the_work_are_merged(attacks, tmp_path):
    for part in ("0", "1"):
        results = attacks.Results(tmp_path / part, only=f"seed {part}$")
        found = [results.of(f"x3, seed {seed}", lambda: {"accuracy": 0.9}) for seed in range(2)]
        assert [bool(run) for run in found] == [part == "0", part == "1"]
    merged = attacks.Results(tmp_path / "all", stored_only=True)
    merged.merge([tmp_path / "0", tmp_path / "1"])
    assert all(merged.of(f"x3, seed {seed}", lambda: 1 / 0) for seed in range(2))
