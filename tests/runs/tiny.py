"""Runs of a quarter of a second, and what to compare of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import fedtiny
from fedtiny.config import (
    Config,
    DataConfig,
    FleetConfig,
    PruningConfig,
    SelectionConfig,
    TrainConfig,
)
from fedtiny.data import DataSet
from fedtiny.federation import rounds
from fedtiny.runs.reporter import Silent
from fedtiny.sparse.adjust import mask_changes

TINY = Config(
    model="small",
    width=2,
    density=0.3,
    rounds=3,
    workers=1,
    threads=1,
    data=DataConfig(limit_train=120, limit_test=40),
    fleet=FleetConfig(devices=3),
    train=TrainConfig(local_epochs=1),
    selection=SelectionConfig(pool_size=2),
    pruning=PruningConfig(r_stop=10),
)
TRAINING = {
    "cosine": {"train": {"lr_schedule": "cosine", "lr_warmup": 1}},
    "steps": {"train": {"lr_schedule": "steps", "decay_norms": False, "weight_decay": 0.1}},
    "fedprox": {"train": {"proximal_mu": 0.5, "batch_size": 8}},
    "fedavgm": {"server": {"optimizer": "fedavgm"}},
    "fedadam": {"server": {"optimizer": "fedadam", "average": "ema", "average_start": 1}},
    "fedyogi": {"server": {"optimizer": "fedyogi", "average": "swa", "average_start": 0}},
    "swa": {"server": {"average": "swa", "average_start": 1}, "selection": {"variance": "pooled"}},
    "best": {"save_best": True},
}
"""Settings of how a run trains, one or a few of each kind."""
FLAGS = [
    *("--model", "small", "--width", "2", "--density", "0.3", "--rounds", "3"),
    *("--workers", "1", "--threads", "1", "--fleet.devices", "3", "--train.local-epochs", "1"),
    *("--data.limit-train", "120", "--data.limit-test", "40", "--selection.pool-size", "2"),
    *("--pruning.r-stop", "10"),
]
FILES = {
    "config.toml",
    "versions.json",
    "about.json",
    "partition.safetensors",
    "selection.json",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "model.safetensors",
    "result.json",
    "evaluation.json",
}
FILES_OF_COMMAND = FILES | {"model.packed", "report.html"}


def tiny(**changes) -> Config:
    """The tiny config with changes; those of a section are given as a dict."""
    sections = {k: replace(getattr(TINY, k), **v) for k, v in changes.items() if type(v) is dict}
    return replace(TINY, **{**changes, **sections})


def train(config: Config, out: Path, **given) -> fedtiny.Result:
    """Run without a word."""
    return fedtiny.run(config, out=out, reporter=Silent(), **given)


def own_data(count: int = 120, shift: int = 0, test: int = 40, **named) -> DataSet:
    """Noise in four classes; labels may be shifted."""
    images = np.random.default_rng(0).integers(0, 256, (count, 8, 8), dtype=np.uint8)
    labels = (np.arange(count) + shift) % 4
    return fedtiny.from_arrays((images, labels), (images[:test], labels[:test]), **named)


class StopAfter(Silent):
    """Ctrl-C, so many rounds into a run."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round_done(self, record) -> None:
        if record["round_number"] == self.rounds:
            raise KeyboardInterrupt


def stop(config: Config, out: Path, rounds: int, **given) -> Path:
    """A run that was stopped after so many rounds."""
    try:
        fedtiny.run(config, out=out, reporter=StopAfter(rounds), **given)
    except KeyboardInterrupt:
        return out
    raise AssertionError("the run was over before it could be stopped")


HOLD = """
import sys
from pathlib import Path
from fedtiny.runs.folder import RunFolder

with RunFolder(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


class Mortal:
    """A `fedtiny` that can be killed at will."""

    def __init__(self):
        script = Path(__file__).with_name("mortal.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        )

    def __call__(self, *arguments, **trap):
        self.process.stdin.write(json.dumps({"arguments": arguments, **trap}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def to_the_end(self, *arguments):
        ended = self(*arguments)
        assert ended["code"] == 0, ended["output"]
        return ended

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@contextmanager
def locked_elsewhere(path: Path) -> Iterator[None]:
    """Another process works on the run meanwhile."""
    order = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(order, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        yield


def lines(path: Path) -> list[dict]:
    """The metrics of a run, but for the time they took."""
    return [
        {name: value for name, value in json.loads(line).items() if name != "seconds"}
        for line in (path / "metrics.jsonl").read_text().splitlines()
    ]


def essence(path: Path) -> dict:
    """Everything of a finished run that must not depend on whether it was stopped on its way."""
    checkpoint = load_file(path / "checkpoint.safetensors")
    result = json.loads((path / "result.json").read_text())
    best = path / "best.safetensors"
    return {
        "model": (path / "model.safetensors").read_bytes(),
        "best": best.read_bytes() if best.exists() else None,
        "checkpoint": {name: array.tobytes() for name, array in checkpoint.items()},
        "metrics": lines(path),
        "selection": json.loads((path / "selection.json").read_text()),
        "result": {name: value for name, value in result.items() if name != "seconds"},
        "config": (path / "config.toml").read_text(),
        "partition": (path / "partition.safetensors").read_bytes(),
    }


def differences(one: Path, other: Path) -> list[str]:
    """In what two finished runs differ."""
    ours, theirs = essence(one), essence(other)
    return [name for name in ours if ours[name] != theirs[name]]


def assert_one_sentence(code, err, *parts):
    """A command ended with an error of one line that says all of this."""
    assert code == 1
    assert err.startswith("fedtiny: error: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


def swaps_of(monkeypatch) -> list[set[tuple[str, str, int]]]:
    """The positions that each round to come grows and drops, by layer."""
    found: list[set[tuple[str, str, int]]] = []

    def recorded(before, after):
        changes = mask_changes(before, after)
        found.append({
            (layer, kind, int(place))
            for layer, change in changes.items()
            for kind in ("grown", "dropped") for place in getattr(change, kind)
        })  # fmt: skip
        return changes

    monkeypatch.setattr(rounds, "mask_changes", recorded)
    return found


def first_of(swaps: list[set[tuple[str, str, int]]]) -> set[tuple[str, str, int]]:
    """The first adjustment of a run, of which all are then forgotten."""
    first = next(filter(None, swaps))
    swaps.clear()
    return first
