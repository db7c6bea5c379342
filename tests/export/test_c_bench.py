"""The benchmark of exported C measures what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .c_program import needs_compiler

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "export.py"


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
