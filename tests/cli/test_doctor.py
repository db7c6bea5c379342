"""What `fedtiny doctor` finds, and what it advises."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from fedtiny.cli import doctor
from fedtiny.native import compile as native_compile
from fedtiny.native import library


@pytest.fixture
def found(fedtiny):
    """Run it; the exit code, and what it found by name."""

    def look():
        said = fedtiny("doctor", "--json")
        told = json.loads(said.out)
        assert told["works"] == (said.code == 0)
        return said.code, {finding["name"]: finding for finding in told["findings"]}

    return look


def test_it_tells_what_works_and_what_to_do(fedtiny):
    said = fedtiny("doctor")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].startswith("ok      fedtiny ")
    assert any(line.startswith("ok      PyTorch ") for line in lines)
    assert any(line.startswith("missing cifar10 ") for line in lines), "there is no data here"
    assert any(line.strip().startswith("-> fedtiny data get cifar10, or set") for line in lines)
    assert max(map(len, lines[2:-1])) <= 80, "it fits a terminal, but for paths"
    assert "fedtiny can train here; see above: " in said.out


def test_it_looks_at_everything(found):
    code, findings = found()
    asked = {"fedtiny", "Python", "packages", "cores", "memory", "disk", "PyTorch", "GPU"}
    asked |= {"C++ compiler", "native library", "Flower", "digits", "cifar10", "mlflow"}
    assert code == 0
    assert asked <= findings.keys()
    assert {name for name, one in findings.items() if one["core"]} == {
        *("fedtiny", "Python", "packages", "PyTorch")
    }
    assert all(one["advice"] for one in findings.values() if one["name"] in ("cifar10", "svhn"))


def test_every_extra_that_it_names_is_one():
    named = {extra for _, extra in doctor.EXTRAS.values()}
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert named <= project["optional-dependencies"].keys()
    assert (doctor.EXTRAS["Pillow"][1], "pandas" in doctor.EXTRAS) == ("images", True)


def test_without_torch_nothing_can_be_trained(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, findings = found()
    assert code == 1
    assert findings["PyTorch"]["state"] == "missing"
    assert "pip install 'fedtiny[torch]'" in findings["PyTorch"]["advice"]
    assert findings["native library"]["state"] != "broken", "the rest is looked at"


def test_a_check_that_breaks_is_told(found, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("illegal instruction\nand more")

    monkeypatch.setattr(doctor.models, "build", broken)
    code, findings = found()
    assert (code, findings["torch"]["state"]) == (1, "broken")
    assert findings["torch"]["found"] == "RuntimeError: illegal instruction"


def test_without_a_compiler_it_says_how_to_get_one(found, monkeypatch):
    monkeypatch.setattr(native_compile, "compiler", lambda: None)
    monkeypatch.setattr(library, "path", lambda: None)
    code, findings = found()
    assert code == 0, "devices are then played by PyTorch"
    assert findings["C++ compiler"]["state"] == "missing"
    assert "g++" in findings["C++ compiler"]["advice"]
    assert "python -m fedtiny.native.compile" in findings["native library"]["advice"]


def test_a_native_library_of_another_version_is_broken(found, monkeypatch, tmp_path):
    (tmp_path / "old.so").write_bytes(b"not a library")
    monkeypatch.setenv(library.ENVIRONMENT, str(tmp_path / "old.so"))
    library.library.cache_clear()
    code, findings = found()
    library.library.cache_clear()
    assert code == 0
    assert findings["native library"]["state"] == "broken"
    assert "build it again" in findings["native library"]["advice"]
