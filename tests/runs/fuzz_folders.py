"""Give damaged run folders, and other files that are read, to every command that reads one.

    python -m tests.runs.fuzz_folders [--mutations 2000] [--seconds S] [--seed 0]

A folder of a finished, a stopped or a real run, or one with data, weights, experiments, an
app and a cache, is damaged once or twice, and a command is called on it in this process. It must
end in time with 0, or with 1 and one sentence, without a traceback, make no model of values that
are not finite, and touch nothing outside of the folder. Prints what came of it as JSON.
"""

import argparse
import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from unittest import mock

import torch
from safetensors.numpy import load

from fedtiny.errors import FedTinyError
from fedtiny.files import read_file
from fedtiny.flower.trial import local
from fedtiny.sparse.theta import is_usable

from .damage import damage
from .workshop import INPUTS, Workshop, ordered, quiet

PATIENCE = 30  # seconds that a command may take
SPARE_MEMORY = 8 << 30
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
    "report FOLDER/.. --out OUT/page.html": 1,
    "cost FOLDER/config.toml --layers": 1,
    "compare FOLDER/config.toml --methods fedavg --density 0.3 --seeds 0 --out OUT/c GRID": 1,
    "flower init OUT/app --config FOLDER/config.toml": 1,
    "run FLAGS --rounds 1 --weights FOLDER/model.safetensors --out OUT/run": 2,
}
REMARKS = ("fedtiny: names of settings", "fedtiny: the cache entry ")
CELL = "fedtiny-d0.3-s0"
SIDES = ("a\udcffb", "a\x1b[2Jb", "a\nb")  # names of folders that may lie beside it


class HangsError(BaseException):
    """A command that does not end."""


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
    mistake = re.search(
        r"^.*\b(?!FedTiny)\w+(Error|Exception|Interrupt|Exit): .*$", out, re.MULTILINE
    )
    if mistake:
        return f"tells of a mistake: {mistake[0]}"
    if code == 0 and arguments[0] in ("run", "resume"):
        path = Path(arguments[1] if arguments[0] == "resume" else arguments[-1])
        if not all(map(is_usable, load(read_file(path / "model.safetensors", 1 << 30)).values())):
            return "made a model of values that cannot be computed with"
    if code not in (0, 1) or told > 1 or (code and not told and "failed: " not in out):
        return f"ended with {code}: {err[-500:]!r}"
    if "\x1b" in out + err or "Traceback" in out + err:
        return f"prints what it should not: {(out + err)[-500:]!r}"
    if len(err.splitlines()) > told + sum(err.count(remark) for remark in REMARKS):
        return f"says too much: {err[-500:]!r}"
    return ""


def trial(workshop: Workshop, draw: random.Random, codes: Counter[int]) -> tuple[str, str, str]:
    """Damage a folder and call a command: the command, the damage, and what is wrong."""
    place = workshop.place / "trial"
    shutil.rmtree(place, ignore_errors=True)
    (place / "out").mkdir(parents=True)
    of_inputs = draw.random() < 0.25
    base = workshop.inputs if of_inputs else draw.choice(workshop.bases)
    commands = INPUTS if of_inputs else COMMANDS
    folder = shutil.copytree(base, place / CELL)
    os.environ["FEDTINY_CACHE"] = str(folder / "cache")
    (place / "elsewhere").symlink_to(workshop.elsewhere)
    told = [damage(folder, draw) for _ in range(draw.choice([1, 1, 1, 2]))]
    if draw.random() < 0.05:
        shutil.copytree(base, place / draw.choice(SIDES))
    command = draw.choices(list(commands), list(commands.values()))[0]
    words = {"IMAGE": workshop.place / "image.png", "OTHER": workshop.bases[0]}
    arguments = ordered(command, **words, FOLDER=folder, OUT=place / "out")
    return command, f"{base.name}: {'; '.join(told)}", complaint(arguments, codes)


def _not_started(*_: object) -> None:
    raise FedTinyError("an app would be started now")


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
        with (
            contextlib.chdir(place),
            warnings.catch_warnings(),
            mock.patch.object(local, "federation", _not_started),
            mock.patch.dict(os.environ),
        ):
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
