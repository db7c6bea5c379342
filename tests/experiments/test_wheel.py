"""The experiments and the benchmark of a device travel with an installed package."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_wheel_holds_every_experiment(tmp_path):
    pytest.importorskip("hatchling")
    order = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(order, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(
            tmp_path / "there", [n for n in archive.namelist() if n.startswith("fedtiny/")]
        )
    shipped = {path.name for path in (ROOT / "experiments").glob("*.toml")}
    assert {p.name for p in (tmp_path / "there/fedtiny/_shipped/experiments").iterdir()} == shipped
    there = {p.name for p in (tmp_path / "there/fedtiny/_shipped/benchmarks/device").glob("*.py")}
    assert there == {path.name for path in (ROOT / "benchmarks" / "device").glob("*.py")}
    code = "from fedtiny.experiments.suite import shipped_folder; print(shipped_folder())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "there",
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path / "there")},
    )
    assert run.stdout.strip() == str(tmp_path / "there/fedtiny/_shipped/experiments")
