"""fedtiny bench, on a tiny network."""

import json
import re
import sys

import pytest

from fedtiny import extras
from fedtiny.native import library

SMALLEST = {"--width": 8, "--batch-size": 4, "--rounds": 1, "--threads": 1}
TINY = ("bench", "device", *(part for flag in SMALLEST.items() for part in flag))
KEYS = {
    *("density", "speedup", "memory_ratio", "storage", "recompute", "ms"),
    *("resident_bytes", "parameter_bytes"),
}


@pytest.fixture
def weighed(monkeypatch):
    """Separate processes, weighed without being started."""

    def weigh(task, contender):
        return {"dense": 300, "masked": 400, "native": 50}[contender.backend]

    measure = extras.shipped_module("benchmarks/device", "measure")
    monkeypatch.setattr(measure, "resident_bytes", weigh)


@pytest.mark.usefixtures("weighed")
def test_json_rows_are_of_one_run(fedtiny):
    said = fedtiny(*TINY, "--model", "resnet18", "--density", "0.1", "0.01", "--json")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert [row["density"] for row in found["rows"]] == [0.1] * 3 + [0.01] * 3
    dense = min(row["ms"] for row in found["baselines"] if row["backend"] == "dense")
    for row in found["rows"]:
        assert set(row) >= KEYS
        assert row["speedup"] == pytest.approx(dense / row["ms"])
        assert row["memory_ratio"] == 6.0
    assert [row["backend"] for row in found["baselines"]] == ["dense", "dense", "masked"]


@pytest.mark.usefixtures("weighed")
def test_the_table_fits_a_terminal(fedtiny):
    said = fedtiny(*TINY, "--model", "small", "--density", "0.1")
    assert (said.code, said.err) == (0, "")
    assert "…" not in said.out
    for name in ("dense, channels last", "masked", "native, half, recompute", "50 B", "6.0x"):
        assert name in said.out
    told = " ".join(said.out.split())
    assert "ms are wall time" in told
    for storage in ("fp32 storage", "half storage", "half storage, recompute"):
        speed = rf"density 0.1, {storage}: \S+ times as fast as dense PyTorch \(\S+ to \S+; \S+ in "
        assert re.search(speed + r"processor time\), in 0\.17 of its memory", told)


def test_memory_can_be_left_out(fedtiny):
    said = fedtiny(*TINY, "--model", "small", "--density", "0.1", "--no-memory")
    assert (said.code, said.err) == (0, "")
    assert "native, half, recompute" in said.out


@pytest.mark.parametrize(("load", "cautious"), [(0.1, False), (9.0, True)])
def test_a_busy_machine_is_told_of(fedtiny, monkeypatch, load, cautious):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    said = fedtiny(*TINY, "--model", "small", "--density", "0.1", "--no-memory")
    assert ("Caution: the load average was 9.0 on 2 cores" in said.out) is cautious


def test_in_a_terminal_there_is_a_bar_and_json_stays_clean(fedtiny, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = fedtiny(*TINY, "--model", "small", "--density", "0.1", "--no-memory", "--json")
    assert said.code == 0
    assert "left" in said.err
    assert json.loads(said.out)["rows"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--density 0", "--density must lie in (0, 1], got 0"),
        ("--density 0.1 1.5", "--density must lie in (0, 1], got 1.5"),
        ("--density nan", "--density must lie in (0, 1], got nan"),
        ("--density", "--density needs at least one density"),
        ("--batch-size 1", "--batch-size must be at least 2, got 1"),
        ("--threads 0", "--threads must be at least 1, got 0"),
        ("--rounds 0", "--rounds must be at least 1, got 0"),
        ("--width 0", "--width must be at least 1, got 0"),
        ("--model resnet", "did you mean 'resnet"),
    ],
)
def test_bad_input_is_told_in_one_sentence(fedtiny, flags, sentence):
    said = fedtiny(*TINY, *flags.split())
    assert said.code == 1
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_without_the_native_library(fedtiny, monkeypatch):
    monkeypatch.setenv(library.ENVIRONMENT, "/nowhere.so")
    library.library.cache_clear()
    said = fedtiny(*TINY)
    library.library.cache_clear()
    assert said.code == 1
    assert "installed without its native library" in said.err


def test_without_torch(fedtiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    said = fedtiny(*TINY)
    assert said.code == 1
    assert "torch is not installed; it comes with: pip install 'fedtiny[torch]'" in said.err


def test_an_installation_without_the_benchmarks_says_so(fedtiny, monkeypatch, tmp_path):
    monkeypatch.setattr(extras, "ROOTS", (tmp_path,))
    monkeypatch.delitem(sys.modules, "fedtiny_benchmarks_device", raising=False)
    said = fedtiny(*TINY)
    assert (said.code, said.out) == (1, "")
    assert "the folder 'benchmarks/device' of fedtiny is missing" in said.err
    assert said.err.count("\n") == 1
