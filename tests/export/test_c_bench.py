"""The benchmark of exported C measures what it says."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .c_program import needs_compiler

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "export.py"


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_benchmark_at_a_narrow_width(tmp_path):
    kept = tmp_path / "found.json"
    order = [sys.executable, SCRIPT, "--width", "8", "--rounds", "1", "--json", kept]
    told = subprocess.check_output(order, text=True)
    found = json.loads(kept.read_text())
    assert found["differences"]["onnxruntime"] < 1e-4
    assert found["differences"]["c_fp32"] < 1e-4
    assert found["differences"]["c_int8"] < 0.2
    small, large = found["c_int8"], found["c_fp32"]
    assert small["table_bytes"] < small["flash_bytes"] < large["flash_bytes"]
    assert small["ram_bytes"] < small["resident_bytes"]
    assert found["bytes"]["packed int8"] < found["bytes"]["onnx sparse"] < found["bytes"]["dense"]
    assert "times as fast as onnxruntime" in told


@pytest.fixture
def benchmark():
    spec = importlib.util.spec_from_file_location("export_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(*, width=64, density=0.01, flash=284_000, resident=1_600_000, speedup=10.0, file=600):
    """What the benchmark finds, as far as it is judged."""
    return {
        **{"model": "resnet18", "width": width, "density": density},
        "c_int8": {"flash_bytes": flash, "resident_bytes": resident},
        "speedup_over_onnxruntime": {"c_int8": speedup},
        "bytes": {"dense": 44_700, "packed fp32": file},
    }


@pytest.mark.parametrize(
    ("worse", "words"),
    [
        ({"flash": 300_001}, "of flash, not 300 kB"),
        ({"resident": 2_500_001}, "resident, not 2.5 MB"),
        ({"speedup": 4.9}, "4.9 times onnxruntime's speed, not 5"),
        ({"file": 1_200}, "2.68% of dense, not 2.5%"),
    ],
)
def test_a_missed_target_makes_the_benchmark_fail(benchmark, monkeypatch, worse, words):
    monkeypatch.setattr(sys, "argv", ["export.py"])
    monkeypatch.setattr(benchmark, "tell", lambda found: None)
    monkeypatch.setattr(benchmark, "measure", lambda *_: measured(**worse))
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert str(ended.value).startswith("the export misses its targets: ")
    assert words in str(ended.value)


@pytest.mark.parametrize("found", [measured(), measured(width=8, speedup=1.0, file=9_999)])
def test_met_targets_and_narrow_networks_pass(benchmark, monkeypatch, found):
    monkeypatch.setattr(sys, "argv", ["export.py"])
    monkeypatch.setattr(benchmark, "tell", lambda found: None)
    monkeypatch.setattr(benchmark, "measure", lambda *_: found)
    assert benchmark.main() is None
