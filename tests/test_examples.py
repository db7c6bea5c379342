"""Every config that is shipped can be read."""

import tomllib
from pathlib import Path

import pytest

from fedtiny import config
from fedtiny.experiments import compare

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.toml"))
COMPARISONS = [path for path in EXAMPLES if "methods" in tomllib.loads(path.read_text())]
CONFIGS = [path for path in EXAMPLES if path not in COMPARISONS]


def test_there_are_examples_of_both_kinds():
    assert len(CONFIGS) >= 2
    assert len(COMPARISONS) >= 1


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_config_can_be_read(path):
    settings = config.resolve(config.load(path))
    assert settings.rounds is not None
    assert settings.method == "fedtiny"


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.name)
def test_a_comparison_can_be_read(path):
    cells = compare.load(path).cells()
    assert len(cells) == 2 + 2 * 4 * 2
