"""Every command and all Python of the pages is played: run in a smaller form, or parsed."""

import pytest

from .markdown import PAGES, blocks, command_lines, inline_commands, name, words
from .stage import Stage, make_data, make_photos

NOT_RUN = {
    "fedtiny data get": "needs the network",
    "fedtiny reproduce table1 --scale mini --data": "needs a GPU and the paper's data sets",
    "fedtiny reproduce table1 --scale mini --models": "needs a GPU and the paper's data sets",
    "fedtiny reproduce all": "needs a GPU, and hours",
    "fedtiny reproduce permille percent": "a hundred runs: test_budget_files.py checks each",
    "fedtiny flower up": "starts servers: make federation does",
    "fedtiny inspect runs/flower": "shows the run that the servers made",
    "fedtiny flower init app --nodes 2": "the page has made its app before",
    "flower-superlink": "a server: make federation starts it",
    "flower-supernode": "a server: make federation starts it",
    "docker": "needs Docker: tests/package plays what the compose file does",
    "scp": "copies to another machine",
    "flwr": "needs the servers: make federation has them",
    "tensorboard": "serves until it is stopped",
    "torchrun": "starts several processes: tests/devices/test_distributed.py does",
    "fedtiny resume runs/fedtiny-cifar10": "goes on with what torchrun would have begun",
    "fedtiny run --data.name cifar10 --memory": "needs a full network, and minutes",
    "fedtiny run --method synflow --density 0.1 --width 8 --rounds 40": "takes minutes",
    "fedtiny cost --memory-budget 3MB": "walks the flow of a full network, minutes on two cores",
    "fedtiny run --privacy.epsilon": "needs fedtiny[dp]: tests/runs/test_privacy.py has that",
    "fedtiny run --fleet.devices 4 --device.program": "tests/device/test_run.py has such runs",
    "fedtiny gateway": "serves until it is stopped",
    "fedtiny run --privacy.noise": "needs extras: tests/runs/test_noise_on_devices.py has that",
    "fedtiny run --method erk": "its package is installed first: tests/methods has that",
    "fedtiny compare --methods erk": "its package is installed first: tests/methods has that",
}
OWN = """
import numpy as np
from torch import nn

images = test_images = np.random.default_rng(0).integers(0, 256, (120, 1, 8, 8), dtype=np.uint8)
labels = test_labels = np.arange(120) % 4
my_module = nn.Sequential(
    nn.Conv2d(1, 4, 3),
    nn.BatchNorm2d(4),
    nn.Conv2d(4, 4, 3),
    nn.Flatten(),
    nn.Linear(64, 4),
)
"""
BEFORE = {
    "README.md": OWN,
    "docs/report.md": """
stage.command("fedtiny compare --methods fedtiny")
""",
    "docs/export.md": OWN
    + """
import shutil
import fedtiny

stage.command("fedtiny run")
stage.command("fedtiny run --density 0.01")
shutil.copy("runs/fedtiny-digits-resnet18-d0.05-s0/model.packed", "model.packed")
np.savez("images.npz", x=images, y=np.arange(120) % 10)
data = fedtiny.from_arrays((images, labels), (images, labels))
result = fedtiny.run(fedtiny.Config(density=0.2, rounds=1), data=data, model=my_module)
""",
}
PLAYED = ("console", "python", "toml")
WITH_BLOCKS = [page for page in PAGES if {b.language for b in blocks(page)} & set(PLAYED)]


@pytest.fixture
def stage(tmp_path, monkeypatch):
    return Stage(tmp_path, monkeypatch, NOT_RUN)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name)
def test_what_a_page_tells_to_do_can_be_done(page, stage):
    make_data(stage.folder / "DATA")
    make_photos(stage.folder / "photos")
    exec(BEFORE.get(name(page), ""), {"stage": stage}, stage.names)
    for block in blocks(page):
        stage.play(block)


def test_the_model_of_the_page_on_ones_own_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = next(page for page in PAGES if name(page) == "docs/own_model.md")
    names = {"__name__": "page"}
    exec(next(block.text for block in blocks(page) if block.language == "python"), names)
    assert names["result"].accuracy > 0.8, "chance is 0.25"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_within_sentences_can_be_parsed(page, stage):
    for program, *arguments in inline_commands(page):
        if program != "fedtiny":
            stage.command(" ".join([program, *arguments]))
        elif "COMMAND" not in arguments:
            assert any(map(stage.understood, spoken(arguments))), arguments


def spoken(arguments):
    """A sentence may name a command without what it works on."""
    flags = [word for word in arguments if word.startswith("-")]
    return [arguments, [*arguments, "DIR"]] if flags else [[*arguments, "--help"]]


def test_a_wrong_flag_is_noticed(stage):
    with pytest.raises(AssertionError, match="cannot be parsed"):
        stage.parse(["run", "--densty", "0.1"])


def test_every_reason_not_to_run_a_command_is_needed():
    lines = [
        " ".join(words(line)) + " "
        for page in PAGES
        for block in blocks(page)
        if block.language == "console"
        for line in command_lines(block)
    ]
    unused = [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)]
    assert unused == []
