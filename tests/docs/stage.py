"""A folder in which the commands and the Python of one page are played, in order."""

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import tyro

from fedtiny import config
from fedtiny.cli.main import dispatch
from fedtiny.config import presets

from ..data import tiny_parquet
from .markdown import ROOT, Block, command_lines, words

BROUGHT = ("benchmarks", "examples", "experiments", "results", "tests")
RUN = "runs/fedtiny-digits-resnet18-d0.05-s0"
SMALL = {
    "width": 4,
    "rounds": 2,
    "train": {"local_epochs": 1, "batch_size": 32},
    "selection": {"pool_size": 2},
    "pruning": {"delta_r": 1, "r_stop": 10},
}
SMALLER = {
    "run": "--rounds 2 --width 4 --workers 1 --fleet.devices 4 --train.local-epochs 1 "
    "--train.pretrain-epochs 1 --selection.pool-size 2 --data.limit-train 300 "
    "--data.limit-test 60 --pruning.iterations 1",
    "reproduce": "--minutes 0.01 --workers 1",
}
SMALLER["compare"] = f"{SMALLER['run']} --seeds 0 --density 0.05"
SHELL = ("export", "mkdir", "printf")
PLAIN = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "FLWR_TELEMETRY_ENABLED": "0"}


class Parsed(Exception):  # noqa: N818
    """A command line was understood; what it asks for is not done."""


class Stage:
    """Plays what is quick, in a smaller form, and has the rest parsed by the program itself."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, not_run: dict[str, str]):
        self.folder, self.monkeypatch, self.not_run = folder, monkeypatch, not_run
        self.names: dict[str, object] = {"__name__": "page"}
        monkeypatch.chdir(folder)
        monkeypatch.setenv("FEDTINY_DATA", str(folder / "no data"))
        monkeypatch.setenv("FEDTINY_CACHE", str(folder / "cache"))
        for name in BROUGHT:
            if (ROOT / name).exists():
                (folder / name).symlink_to(ROOT / name)
        (folder / "run.toml").write_text("density = 0.1\n")

    def play(self, block: Block) -> None:
        """One block of a page."""
        if block.language == "console":
            for line in command_lines(block):
                self.command(line)
        elif block.language == "python":
            self._execute(block)
        elif block.language == "toml":
            self._keep_config(block.text)

    def _execute(self, block: Block) -> None:
        """With presets for quick runs: what the Python itself sets is left as it is."""
        with self.monkeypatch.context() as patch:
            patch.setitem(presets.PRESETS, "digits", SMALL)
            patch.setattr(presets, "PAPER", {**SMALL, "width": None})
            code = compile(block.text, f"{block.page.name}, line {block.line}", "exec")
            exec(code, self.names)

    def command(self, line: str) -> None:
        """One line of a console block, which may hold several commands."""
        for command in _joined_by_and(words(line)):
            program, *arguments = [word for word in command if not re.match(r"[A-Z_]+=", word)]
            if program not in SHELL:
                getattr(self, program.replace("-", "_"), self._another)(arguments, program)

    def fedtiny(self, arguments: list[str], program: str = "fedtiny") -> None:
        """Run it in a smaller form, or have it parsed where a reason is given."""
        if self.reason(["fedtiny", *arguments]):
            return self.parse(arguments)
        arguments = [self._meant(word) for word in arguments]
        extra = SMALLER.get(arguments[0], "").split()
        if arguments[0] == "reproduce" and {"--list", "--results"} & set(arguments):
            extra = []
        code = _code_of([*arguments, *extra])
        assert code == 0, f"fedtiny {' '.join(arguments)} ended with {code}"
        return None

    def reason(self, command: list[str]) -> str:
        """Why a command is not run, or nothing."""
        line = " ".join(command) + " "
        return next((why for start, why in self.not_run.items() if line.startswith(start)), "")

    def parse(self, arguments: list[str]) -> None:
        """Let the command read its flags, and stop it there."""
        assert self.understood(arguments), f"fedtiny {' '.join(arguments)} cannot be parsed"

    def understood(self, arguments: list[str]) -> bool:
        """Whether a command takes these flags."""
        arguments = [self._meant(word) for word in arguments]
        with self.monkeypatch.context() as patch:
            patch.setattr(tyro, "cli", _stopping(tyro.cli))
            whole = tyro.extras.subcommand_cli_from_dict
            patch.setattr(tyro.extras, "subcommand_cli_from_dict", _stopping(whole))
            try:
                return _code_of(arguments) == 0
            except Parsed:
                return True

    def python(self, arguments: list[str], program: str) -> None:
        """A benchmark's flags are parsed by itself; a module must be there."""
        if arguments[0] == "-m":
            module = f"{arguments[1].replace('.', '/')}.py"
            assert (ROOT / module).is_file() or (ROOT / "src" / module).is_file()
            return
        with self.monkeypatch.context() as patch:
            patch.setattr(sys, "argv", arguments)
            parse_args = argparse.ArgumentParser.parse_args
            patch.setattr(argparse.ArgumentParser, "parse_args", _stopping(parse_args))
            with pytest.raises(Parsed):
                runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")

    def make(self, arguments: list[str], program: str) -> None:
        """The Makefile has the target."""
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.M)

    def pip(self, arguments: list[str], program: str) -> None:
        """Folders are there, and so are extras."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for wanted in [word for word in arguments[1:] if not word.startswith("-")]:
            extras = re.fullmatch(r"(?:fedtiny|\.)\[(.*)\]", wanted)
            if extras:
                assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
            elif wanted.startswith("./"):
                assert (ROOT / wanted / "pyproject.toml").is_file()

    def pytest(self, arguments: list[str], program: str) -> None:
        """The tests are there."""
        assert (ROOT / arguments[0]).exists()

    def cd(self, arguments: list[str], program: str) -> None:
        """Go there for the rest of the page."""
        self.monkeypatch.chdir(self._meant(arguments[0]))

    def cc(self, arguments: list[str], program: str) -> None:
        """Compile for real, where there is a compiler."""
        if shutil.which("cc"):
            subprocess.run(["cc", *arguments], check=True)

    def torchrun(self, arguments: list[str], program: str) -> None:
        """It has the flags before the module, and fedtiny those behind it."""
        at = arguments.index("-m")
        assert arguments[at + 1] == "fedtiny"
        self._another(arguments[:at], program)
        self.parse([word.replace("CONFIG.toml", "run.toml") for word in arguments[at + 2 :]])

    def _another(self, arguments: list[str], program: str) -> None:
        """A program of somebody else's is not run, for a reason given; but it has these flags."""
        assert self.reason([program, *arguments]), f"nothing is known of the program {program}"
        flags = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        if flags and (found := shutil.which(program, path=Path(sys.executable).parent)):
            names = [word for word in arguments if re.fullmatch("[a-z]+", word)][:1]
            told = _help(found, *(names if program == "flwr" else []))
            assert [flag for flag in flags if flag not in told] == []

    def _meant(self, word: str) -> str:
        """What stands for a path of the reader's."""
        meant = {"DATA": str(self.folder / "DATA"), "DIR": str(self.folder / RUN), "N": "2"}
        return meant.get(word, word)

    def _keep_config(self, text: str) -> None:
        values = tomllib.loads(text)
        if set(values) <= set(vars(config.Config())):
            (self.folder / "run.toml").write_text(text)


def make_data(root: Path) -> None:
    """CIFAR-10 of noise."""
    for split, count in (("train", 400), ("test", 80)):
        images = [tiny_parquet.png(image) for image in tiny_parquet.random_images(count)]
        path = root / "cifar10" / f"{split}-00000-of-00001.parquet"
        tiny_parquet.write_parquet(path, "cifar10", images, [i % 10 for i in range(count)])


def make_photos(root: Path) -> None:
    """A folder of small images for each of two classes, and two images beside it."""
    for name in ("image.png", "other.jpg"):
        (root.parent / name).write_bytes(tiny_parquet.png(tiny_parquet.random_images(1, size=8)[0]))
    for number, image in enumerate(tiny_parquet.random_images(120, size=8)):
        path = root / ("cat", "dog")[number % 2] / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tiny_parquet.png(image))


@cache
def _help(*command: str) -> str:
    order = [*command, "--help"]
    return subprocess.run(order, capture_output=True, text=True, env=PLAIN, check=True).stdout


def _joined_by_and(command: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in [*command, "&&"]:
        if word == "&&":
            yield part
            part = []
        else:
            part.append(word)


def _stopping(parse):
    """A parser that ends the command once it has understood all of it."""

    def parsing(*given, **named):
        found = parse(*given, **named)
        if named.get("return_unknown_args"):
            return found
        raise Parsed

    return parsing


def _code_of(arguments: list[str]) -> int:
    try:
        return dispatch(arguments)
    except SystemExit as left:
        return int(left.code or 0)
