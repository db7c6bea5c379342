"""A release tells one version everywhere, and what is hosted runs what is here."""

import re
import tomllib
from pathlib import Path

import fedtiny

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def found(pattern, name):
    return re.findall(pattern, (ROOT / name).read_text(), flags=re.MULTILINE)


def test_every_place_tells_the_same_version():
    newest, *_ = found(r"^## \[(\d[^]]*)\] - (\d{4}-\d\d-\d\d)$", "CHANGELOG.md")
    cited = found(r"^(?:version|date-released): (.+)$", "CITATION.cff")
    assert PROJECT["project"]["version"] == fedtiny.__version__ == newest[0] == cited[0]
    assert newest[1] == cited[1]


def test_the_changelog_keeps_its_form():
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(found(r"^### (.+)$", "CHANGELOG.md")) <= kinds
    versions = found(r"^## (.+)$", "CHANGELOG.md")
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - [\d-]{10}", name) for name in versions[1:])


def test_what_is_hosted_calls_targets_that_exist():
    targets = set(found(r"^([a-z]+):", "Makefile"))
    hosted = found(r"run: make (\w+)", ".github/workflows/ci.yml")
    here = found(r"^make (\w+)", ".ci/run")
    assert {"lint", "slow", "docs", "federation"} <= set(hosted) <= targets
    assert set(here) == {"test", "slow", "docs", "federation"}
