"""A release tells one version everywhere, and what is hosted runs what is here."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import fedtiny

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def found(pattern, name):
    return re.findall(pattern, (ROOT / name).read_text(), flags=re.MULTILINE)


def test_every_place_tells_the_same_version():
    newest, *_ = found(r"^## \[(\d[^]]*)\] - (\d{4}-\d\d-\d\d)$", "CHANGELOG.md")
    cited = found(r"^(?:version|date-released): (.+)$", "CITATION.cff")
    assert newest == tuple(cited)
    here = fedtiny.__version__
    assert PROJECT["project"]["version"] == here
    if here != newest[0]:  # between releases
        assert re.fullmatch(r"\d+\.\d+\.\d+\.dev0", here)
        after, before = (tuple(map(int, name.split(".")[:3])) for name in (here, newest[0]))
        assert after > before


def test_the_changelog_keeps_its_form():
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(found(r"^### (.+)$", "CHANGELOG.md")) <= kinds
    versions = found(r"^## (.+)$", "CHANGELOG.md")
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - [\d-]{10}", name) for name in versions[1:])


def test_what_is_hosted_calls_targets_that_exist():
    targets = set(found(r"^([a-z]+):", "Makefile"))
    hosted = found(r"run: make (\w+)", ".github/workflows/ci.yml")
    lines = " ".join(found(r"^make ([a-z0-9 -]+)", ".ci/run"))
    here = {word for word in lines.split() if word.isalpha()}
    assert {"lint", "slow", "docs", "federation"} <= set(hosted) <= targets
    assert found(r"run: make (\w+)", ".github/workflows/wheels.yml") == ["package"]
    assert here == {"setup", "test", "slow", "docs", "federation"} <= targets


def test_every_python_that_is_named_is_tried():
    named = [
        line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if ":: 3." in line
    ]
    for workflow in ("ci.yml", "wheels.yml"):
        (tried,) = found(r"python: \[(.*)\]$", f".github/workflows/{workflow}")
        assert tried.replace('"', "").split(", ") == named
    (line,) = found(r"^\t\$\(BIN\)/(fedtiny run .*)$", "Makefile")
    assert found(r"run: (fedtiny .*)$", ".github/workflows/wheels.yml") == [line]


def test_the_long_description_stands_alone():
    pytest.importorskip("hatchling", reason="hatchling comes with: pip install 'fedtiny[package]'")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    readme = (ROOT / "README.md").read_text()
    text = hooks.alone(readme)
    assert CODE.findall(text) == CODE.findall(readme)
    outside = CODE.sub("", text)
    led_to = re.findall(
        r"\]\(([^)]*)\)|(?:src|href|srcset)=\"([^\"]*)\"|^\[[^]]*\]: (\S+)", outside, re.M
    )
    assert [place for place in map("".join, led_to) if not place.startswith("https://")] == []
    shown = (
        "![plot](a.svg)\n\nRead [the `code`](src/a.py), [more](#more), [Flower](https://flower.ai)."
    )
    assert hooks.alone(shown) == "Read the `code`, more, [Flower](https://flower.ai)."
