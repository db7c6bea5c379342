"""Run folders and other files to damage, each good before it is, and commands that read them."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tomli_w
from PIL import Image

from fedtiny import config as configs
from fedtiny.cli.main import dispatch
from fedtiny.flower import settings as apps

from ..data.tiny_parquet import png, write_parquet
from ..experiments.own import write_suite
from .tiny import FLAGS, stop, tiny

GRID = [flag for flag in FLAGS if flag not in ("--density", "0.3")]
INPUTS = {  # the same for files that are no run's
    "run FLAGS --rounds 1 --data.name file --data.root FOLDER/own.npz --out OUT/run": 2,
    "run FLAGS --rounds 1 --data.name file --data.root FOLDER/own.csv --model mlp --out OUT/run": 2,
    "run FLAGS --rounds 1 --data.name file --data.root FOLDER/own.parquet --out OUT/run": 2,
    "run FLAGS --rounds 1 --data.name folder --data.root FOLDER/images --out OUT/run": 2,
    "reproduce second --folder FOLDER --scale tiny --results FOLDER/results.json --out OUT/r": 2,
    "reproduce --list --folder FOLDER --scale tiny --out OUT/r": 1,
    "reproduce second --folder FOLDER --scale tiny --table-only --out OUT/r": 1,
    "flower up FOLDER --nodes 2": 1,
    "compare FOLDER/grid.toml --out OUT/c": 1,
}


def ordered(command: str, **paths: Path) -> list[str]:
    """The arguments of a command, with paths and flags in the place of their names."""
    arguments = []
    for word in command.split():
        for name, path in paths.items():
            word = word.replace(name, str(path))
        arguments += {"GRID": GRID, "FLAGS": FLAGS}.get(word, [word])
    return arguments


def quiet(arguments: list[str]) -> tuple[int, str, str]:
    """Call a command: exit code, output and what it said of errors."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        try:
            code = dispatch(arguments)
        except SystemExit as left:
            code = int(left.code or 0)
    return code, out.getvalue(), err.getvalue()


@dataclass
class Workshop:
    """Folders to damage, and a place beside them that nobody may touch."""

    place: Path
    bases: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.elsewhere = self.place / "elsewhere"
        (self.elsewhere / "folder").mkdir(parents=True)
        for name in ("thesis.tex", "folder/notes.txt", "folder/model.c", "folder/0.reply"):
            (self.elsewhere / name).write_text("my work")
        pixels = np.full((8, 8), 90, dtype=np.uint8)
        Image.fromarray(pixels).save(self.place / "image.png")
        self.bases += self._made()
        self.inputs = self._made_inputs()

    def _made(self) -> Iterator[Path]:
        bases = self.place / "bases"
        finished = bases / "finished"
        assert quiet(["run", *FLAGS, "--save-best", "--out", str(finished)])[0] == 0
        (finished / "machines.json").write_text('{"machines": [{"cpu": "a", "cores": 2}]}')
        (finished / "trackers.json").write_text('{"tensorboard": {"key": "a", "rounds": 1}}')
        yield finished
        yield stop(tiny(save_best=True), bases / "stopped", 2)
        begun = shutil.copytree(bases / "stopped", bases / "begun")
        for name in ("checkpoint.safetensors", "metrics.jsonl", "selection.json"):
            (begun / name).unlink()
        yield begun
        real = shutil.copytree(bases / "stopped", bases / "real")
        seat = {"node": 2**63 + 1, "name": "ward", "samples": 23}
        nodes = {"devices": {"0": seat}, "turned_away": {}, "bytes_joining": 9}
        (real / "nodes.json").write_text(json.dumps(nodes))
        yield real
        server = {"optimizer": "fedadam", "average": "ema", "average_start": 0}
        yield stop(tiny(method="fedrts", server=server), bases / "fedrts", 2)
        yield stop(tiny(method="fedsgc", server={"average": "swa"}), bases / "fedsgc", 2)

    def _made_inputs(self) -> Path:
        """Data of one's own, a suite with its results, an app and a grid."""
        folder = write_suite(self.place / "bases" / "inputs")
        order = ["reproduce", "second", "--folder", str(folder), "--scale", "tiny"]
        assert quiet([*order, "--out", str(self.place / "made")])[0] == 0
        shutil.copy(self.place / "made" / "tiny" / "second" / "results.json", folder)
        shutil.rmtree(self.place / "made")
        labels = np.arange(90) % 3
        pixels = np.random.default_rng(0).integers(0, 256, (90, 8, 8, 3), dtype=np.uint8)
        np.savez_compressed(folder / "own.npz", x=pixels, y=labels, device_ids=np.arange(90) % 4)
        rows = [f"{i},{i % 7},{label}" for i, label in enumerate(labels)]
        (folder / "own.csv").write_text("\n".join(["x,y,label", *rows]) + "\n")
        images = [png(image.transpose(2, 0, 1)) for image in pixels]
        write_parquet(folder / "own.parquet", "cifar10", images, labels.tolist(), named=False)
        for number, label in enumerate(labels):
            place = folder / "images" / f"class{label}" / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[number]).save(place)
        apps.write_app(folder, tiny(), apps.FlowerSettings(run=str(folder)))
        grid = {"methods": ["fedavg"], "density": [0.3], "seeds": [0]}
        settings = configs.to_dict(tiny(rounds=1)) | grid
        (folder / "grid.toml").write_text(tomli_w.dumps(settings))
        os.environ["FEDTINY_CACHE"] = str(folder / "cache")
        for command in list(INPUTS)[:4]:
            words = ordered(command, FOLDER=folder, OUT=self.place / "made")
            code, _, err = quiet(words)
            assert code == 0, err
            shutil.rmtree(self.place / "made")
        return folder

    def state(self) -> dict[str, tuple[int, bytes]]:
        """Everything that must stay as it is."""
        found = {}
        for root in (self.elsewhere, self.place / "bases"):
            for path in sorted(root.rglob("*")):
                status = path.lstat()
                data = path.read_bytes() if path.is_file() else b""
                found[str(path)] = (status.st_mtime_ns, data)
        return found
