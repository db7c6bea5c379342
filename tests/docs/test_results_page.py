"""The page of results says what the committed result files hold."""

import json

import pytest

from fedtiny.reproduce import labels

from .markdown import ROOT

RESULTS = sorted(ROOT.glob("results/*/*.json"))
PAGE = (ROOT / "docs" / "results.md").read_text().splitlines()
MODULES = {
    (False, "vanilla"): "vanilla selection",
    (False, None): "adaptive BN selection",
    (True, "vanilla"): "vanilla selection, progressive pruning",
}


def called(settings: dict) -> str:
    """What the page calls a run."""
    modules = settings.get("pruning.progressive", True), settings.get("selection.kind")
    return MODULES.get(modules, labels.value(settings["method"]))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_measured_accuracy_stands_beside_its_name(path):
    cells = json.loads(path.read_text())["cells"]
    assert cells
    for cell in cells:
        name, accuracy = called(cell["settings"]), f"{cell['numbers']['accuracy']:.4f}"
        beside = [line for line in PAGE if line.startswith((f"| {name} |", f"{name}, dense:"))]
        assert any(accuracy in line for line in beside), cell["name"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_result_has_its_command_and_hardware(path):
    document = json.loads(path.read_text())
    for machine in document["machines"]:
        assert machine["command"].startswith("fedtiny reproduce ")
        assert machine["gpu"]
        assert machine["torch"]
