"""The command `fedtiny`. Each command lives in a file of its own and is imported when called."""

import importlib
import io
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from fedtiny.errors import ConfigError, FedTinyError, did_you_mean, naming_flags, printable
from fedtiny.paths import check_text
from fedtiny.process import Stopped, launch, stop_on_signals, wants_traceback

COMMANDS = {  # each is the function `command` of the module of its name
    "run": "train: fedtiny run [CONFIG.toml] [--density 0.05 ...] [--out DIR]",
    "resume": "continue a run that was stopped: fedtiny resume DIR",
    "inspect": "show what a run did: fedtiny inspect DIR",
    "export": (
        "write the model for use elsewhere: fedtiny export DIR "
        "--format packed|onnx|torch|c|cmake|platformio|zephyr"
    ),
    "predict": "classify images with a packed model: fedtiny predict MODEL image.png ...",
    "report": (
        "what runs did, as one HTML page with figures: fedtiny report DIR... [--out PAGE.html]"
    ),
    "compare": (
        "methods side by side: fedtiny compare --methods all --density 0.05 0.01 --seeds 0 1"
    ),
    "reproduce": (
        "the paper's tables and figures: fedtiny reproduce --list; fedtiny reproduce table1"
    ),
    "cost": "what training costs, without training: fedtiny cost --model vgg11",
    "bench": (
        "time and memory of a device's training step: fedtiny bench device --density 0.05 0.01"
    ),
    "flower": (
        "real devices over Flower: fedtiny flower init DIR; fedtiny flower up DIR --nodes 3 --tls"
    ),
    "gateway": ("a device without Python as a node of Flower: fedtiny gateway tcp://0.0.0.0:7000"),
    "doctor": "what works here, and what to do about the rest: fedtiny doctor [--json]",
    "list": "what can be named: fedtiny list methods|models|datasets|operations",
    "data": (
        "fetch a data set: fedtiny data get NAME; write that of devices: fedtiny data devices"
    ),
}
HELP = {"-h", "--help"}
DISTRIBUTED = ("run", "resume")  # commands that torchrun may start as several processes
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"  # PyTorch's own words
GO_ON = ("compare", "reproduce")  # commands that take up where they were stopped
STOPPED = {
    "run": "stopped before the run began, and nothing is kept of it; begin it again with",
    "resume": "stopped before the run went on, and it is as it was; continue with",
}
"""What is said of a command that was stopped before it had anything to keep."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code."""
    stop_on_signals()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name of a file may be no text
        sys.stdout.reconfigure(errors="backslashreplace")
    code = dispatch(list(sys.argv[1:] if arguments is None else arguments))
    try:
        if sys.stdout is not None:  # as it is where it was closed
            sys.stdout.flush()
    except OSError as error:  # nobody reads it any more, or it goes to a disk that is full
        code = code or fail(told(error))
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def dispatch(arguments: list[str]) -> int:
    """Find the command and run it; whatever a user can mend is reported in one sentence."""
    with naming_flags():
        return _dispatch(arguments)


def _dispatch(arguments: list[str]) -> int:
    try:
        return _carried_out(arguments)
    except KeyboardInterrupt as stopped:
        _tell_way_on(stopped, arguments)
        return stopped.code if isinstance(stopped, Stopped) else 130
    except BrokenPipeError:
        return 1
    except (FedTinyError, OSError, MemoryError, RuntimeError) as error:
        if wants_traceback() or not told(error):
            raise
        return 1 if getattr(error, "reported", False) else fail(told(error))


def _tell_way_on(stopped: KeyboardInterrupt, arguments: list[str]) -> None:
    """Say what is kept and how to go on, unless what was under way has said it."""
    name, command = arguments[0] if arguments else "", shlex.join(["fedtiny", *arguments])
    line = f"{STOPPED.get(name, 'stopped; go on with')}: {command}"
    if name not in GO_ON:
        if not isinstance(stopped, Stopped) or stopped.said or launch().rank:
            return
        line = f"stopped; continue with: {stopped.way_on}" if stopped.way_on else line
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _carried_out(arguments: list[str]) -> int:
    for argument in arguments:
        check_text(argument, "the argument")
    if not arguments or arguments[0] in {*HELP, "help"}:
        print(overview(_width()))
        return 0
    if arguments[0] in ("-V", "--version"):
        return _print_version()
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        return _unknown(name)
    _check_launch(name)
    shown = redirect_stdout(Wrapped(sys.stdout)) if HELP & {*rest} else nullcontext()
    with shown:
        code: int = importlib.import_module(f"fedtiny.cli.{name}").command(rest)
    return code


def told(error: Exception) -> str:
    """What a user is told of an error; nothing if it is a mistake of ours."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"the system refuses: {where}{error.strerror or error}"
    if isinstance(error, MemoryError) or NO_MEMORY in str(error):
        return "there is not enough memory; take a smaller network, fewer --workers or less data"
    return str(error) if isinstance(error, FedTinyError) else ""


def fail(sentence: str) -> int:
    """Report an error, if anybody can hear it, and give the exit code."""
    lines = (printable(line) for line in sentence.splitlines())
    with suppress(OSError):
        print("fedtiny: error:", "\n".join(lines), file=sys.stderr, flush=True)
    return 1


def _check_launch(name: str) -> None:
    """Refuse several processes of a command that is done by one."""
    place = launch()
    if place.size > 1 and name not in DISTRIBUTED:
        error = ConfigError(
            f"torchrun plays one run over several processes (fedtiny run, fedtiny resume); "
            f"start fedtiny {name} without it"
        )
        error.reported = place.rank > 0
        raise error


def overview(width: int) -> str:
    """What `fedtiny --help` says, in lines of so many columns."""
    commands = (
        textwrap.fill(text, width, initial_indent=f"  {name:<9} ", subsequent_indent=" " * 12)
        for name, text in COMMANDS.items()
    )
    texts = (
        "fedtiny: train tiny neural networks over many devices whose data stays on them",
        "fedtiny COMMAND --help describes a command, fedtiny --version prints the version. "
        "FEDTINY_TRACEBACK=1 shows where an error comes from.",
    )
    first, last = (textwrap.fill(text, width) for text in texts)
    return "\n".join([first, "", *commands, "", last])


class Wrapped:
    """Output whose long lines of text are wrapped to the terminal; tables and boxes stay."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def write(self, text: str) -> int:
        """Write lines, each no longer than the terminal is wide."""
        return self.out.write("\n".join(map(self._fitted, text.split("\n"))))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)

    @staticmethod
    def _fitted(line: str) -> str:
        is_text = line.isascii() and not line.startswith(" ")
        return textwrap.fill(line, _width()) if is_text else line


def _width() -> int:
    """Columns of the terminal, 80 where there is none."""
    return max(40, shutil.get_terminal_size().columns)


def _print_version() -> int:
    from fedtiny import __version__
    from fedtiny.extras import own_code

    print(f"fedtiny {__version__} (code {own_code()})")
    return 0


def _unknown(name: str) -> int:
    hint = did_you_mean(name, COMMANDS)
    known = ", ".join(COMMANDS)
    print(f"fedtiny: error: no command '{name}' (known: {known}){hint}", file=sys.stderr)
    return 2


def config_file_first(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """The config file, if one stands before the flags of a command, and the flags.

    >>> config_file_first(["my.toml", "--density", "0.1"])
    (PosixPath('my.toml'), ['--density', '0.1'])
    >>> config_file_first(["--density", "0.1"])
    (None, ['--density', '0.1'])
    """
    if arguments and not arguments[0].startswith("-"):
        return Path(arguments[0]), arguments[1:]
    for before, argument in pairwise(arguments):
        if argument.endswith(".toml") and not before.startswith("-"):
            raise ConfigError(
                f"name the config file before all flags: {argument} {arguments[0]} ..."
            )
    return None, arguments
