"""Give damaged run folders to every command that reads one.

    python -m tests.runs.fuzz_folders [--mutations 2000] [--seconds S] [--seed 0]

A folder of a finished, a stopped, an old or a real run is damaged once or twice, and a command is
called on it in this process. It must end in time with 0, or with 1 and one sentence, without a
traceback, and touch nothing outside of the folder. Prints what came of it as JSON.
"""

import argparse
import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedtiny.cli.main import dispatch

from .damage import damage
from .tiny import FLAGS, stop, tiny

PATIENCE = 30  # seconds that a command may take
SPARE_MEMORY = 8 << 30
FIXTURES = Path(__file__).parents[1] / "fixtures" / "run_folder_0_1"
COMMANDS = {  # how often each is called; FOLDER is the damaged one
    "resume FOLDER": 6,
    "resume FOLDER --no-report": 1,
    "inspect FOLDER": 5,
    "report FOLDER": 3,
    "report FOLDER OTHER --out OUT/page.html": 2,
    "export FOLDER": 2,
    "export FOLDER --values int8": 1,
    "export FOLDER --format torch": 2,
    "export FOLDER --format onnx --no-fold": 1,
    "export FOLDER --format c": 2,
    "export FOLDER --best": 1,
    "predict FOLDER IMAGE": 2,
    "predict FOLDER/model.packed IMAGE": 2,
    "inspect FOLDER/model.packed": 1,
    "cost FOLDER/config.toml": 1,
    "run FOLDER/config.toml --rounds 1 --out OUT/run": 1,
    "compare --methods fedtiny --density 0.3 --seeds 0 --out FOLDER/.. GRID": 3,
}
GRID = [flag for flag in FLAGS if flag not in ("--density", "0.3")]
CELL = "fedtiny-d0.3-s0"


class HangsError(Exception):
    """A command that does not end."""


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
        for old in ("finished", "native", "lotteryfl"):
            yield shutil.copytree(FIXTURES / old, bases / f"old {old}")

    def state(self) -> dict[str, tuple[int, bytes]]:
        """Everything that must stay as it is."""
        found = {}
        for root in (self.elsewhere, self.place / "bases"):
            for path in sorted(root.rglob("*")):
                status = path.lstat()
                data = path.read_bytes() if path.is_file() else b""
                found[str(path)] = (status.st_mtime_ns, data)
        return found


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


def _ring(*_: object) -> None:
    raise HangsError


def complaint(arguments: list[str], codes: Counter[int]) -> str:
    """What is wrong with how a command ended, or nothing."""
    signal.signal(signal.SIGALRM, _ring)
    signal.alarm(PATIENCE)
    try:
        code, out, err = quiet(arguments)
    except HangsError:
        return "hangs"
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    codes[code] += 1
    told = err.count("fedtiny: error: ")
    if code not in (0, 1) or told > 1 or (code and not told and "failed: " not in out):
        return f"ended with {code}: {err[-500:]!r}"
    if "\x1b" in out + err or "Traceback" in out + err:
        return f"prints what it should not: {(out + err)[-500:]!r}"
    if len(err.splitlines()) > told + err.count("fedtiny: names of settings"):
        return f"says too much: {err[-500:]!r}"
    return ""


def trial(workshop: Workshop, draw: random.Random, codes: Counter[int]) -> tuple[str, str, str]:
    """Damage a folder and call a command: the command, the damage, and what is wrong."""
    place = workshop.place / "trial"
    shutil.rmtree(place, ignore_errors=True)
    (place / "out").mkdir(parents=True)
    base = draw.choice(workshop.bases)
    folder = shutil.copytree(base, place / CELL)
    (place / "elsewhere").symlink_to(workshop.elsewhere)
    told = [damage(folder, draw) for _ in range(draw.choice([1, 1, 1, 2]))]
    command = draw.choices(list(COMMANDS), list(COMMANDS.values()))[0]
    words = {"IMAGE": workshop.place / "image.png", "OTHER": workshop.bases[0]}
    words |= {"FOLDER": folder, "OUT": place / "out"}
    arguments = []
    for word in command.split():
        for name, path in words.items():
            word = word.replace(name, str(path))
        arguments += GRID if word == "GRID" else [word]
    return command, f"{base.name}: {'; '.join(told)}", complaint(arguments, codes)


def confine() -> None:
    """Little more memory than now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + SPARE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def run(mutations: int, seed: int, seconds: float | None = None, place: Path | None = None) -> dict:
    """So many trials, or as many as there is time for; what came of them."""
    draw, counts, codes, wrong = random.Random(seed), Counter(), Counter(), []
    place = place or Path(tempfile.mkdtemp(prefix="fedtiny-fuzz-"))
    started = time.monotonic()
    try:
        with contextlib.chdir(place), warnings.catch_warnings():
            warnings.simplefilter("error")
            workshop = Workshop(place)
            before = workshop.state()
            while (
                sum(counts.values()) < mutations
                if seconds is None
                else (time.monotonic() < started + seconds)
            ):
                command, told, trouble = trial(workshop, draw, codes)
                if workshop.state() != before:
                    trouble = "touched what is not its own"
                    before = workshop.state()
                counts[command.split()[0]] += 1
                if trouble:
                    wrong.append({"command": command, "damage": told, "trouble": trouble})
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {"trials": sum(counts.values()), "commands": counts, "codes": codes, "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "200"
    confine()
    found = run(arguments.mutations, arguments.seed, arguments.seconds)
    wrong = found.pop("wrong")
    for one in wrong:
        print(f"\n{one['command']}\n{one['damage']}\n{one['trouble']}", file=sys.stderr)
    print(json.dumps({**found, "wrong": len(wrong)}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
