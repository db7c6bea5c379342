"""The page of results is made of the committed result files, line by line."""

import json

import pytest

from fedtiny.reproduce import table
from fedtiny.reproduce.job import Job
from fedtiny.reproduce.suite import Suite

from .markdown import ROOT

EXPERIMENTS = ("table1", "ablation")
FILES = {name: ROOT / "results" / "mini" / f"{name}.json" for name in EXPERIMENTS}
PAGE = (ROOT / "docs" / "results.md").read_text()


def rows(text):
    return [line for line in text.splitlines() if line.startswith("| ResNet18")]


def test_every_file_is_shown():
    assert sorted((ROOT / "results").rglob("*.json")) == sorted(FILES.values())


def test_the_tables_are_those_that_the_command_makes(tmp_path):
    suite = Suite.load()
    job = Job(
        suite,
        suite.scale("mini"),
        suite.find(EXPERIMENTS),
        tmp_path,
        results=tuple(FILES.values()),
    )
    made = [row for e in job.experiments for row in rows(table.markdown(job.outcome(e)))]
    assert any("0." in row for row in made)
    assert rows(PAGE) == made


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_result_has_its_command_hardware_and_settings(name):
    document = json.loads(FILES[name].read_text())
    for machine in document["machines"]:
        assert machine["command"].startswith("fedtiny reproduce ")
        assert machine["gpu"] == ["NVIDIA H200"]
        assert machine["torch"]
    for cell in document["cells"]:
        assert {"rounds", "fleet.alpha", "train.optimizer"} <= cell["settings"].keys()


def test_single_seeds_are_told_as_measured():
    cells = json.loads(FILES["table1"].read_text())["cells"]
    for name in ("fedtiny-cifar10-resnet18-d0.001", "fl_pqsu-cifar10-resnet18-d0.001", "fedavg"):
        own = [cell for cell in cells if cell["name"].startswith(f"{name}-")]
        first, second = (f"{cell['numbers']['accuracy']:.4f}" for cell in own)
        assert f"{first} and {second}" in PAGE.replace("\n", " ")
