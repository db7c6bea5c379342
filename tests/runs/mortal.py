"""Plays `fedtiny` again and again in children of one process, and kills them: run as a script.

Importing PyTorch takes seconds, a tiny run a quarter of one. So this process imports everything
once, computes nothing itself, and forks a child for each order, a JSON line on its standard input:

    {"arguments": [...]}                                     to the end
    {"arguments": [...], "after": 0.1}                       killed after so many seconds
    {"arguments": [...], "at": "torn write", "call": 3}      killed at that very call
    {"arguments": [...], "failing": 28, "call": 3, "folder": "..."}
                                                the third file operation there fails with ENOSPC

It answers each with a JSON line: the exit code (-9 for killed), the seconds, the output.
"""

import contextlib
import importlib
import io
import json
import os
import signal
import stat
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch._dynamo  # what torch.optim imports when it is first used

from fedtiny.cli.main import COMMANDS, dispatch
from fedtiny.process import stop_on_signals

OPERATIONS = (
    *("open", "read", "write", "fsync", "close", "replace", "mkdir", "unlink", "rmdir"),
    *("listdir", "scandir", "fstat"),
)
USED_LATE = (  # what commands import when they need it
    *(f"fedtiny.devices.{name}" for name in ("torch_engine", "torch_layers", "torch_public")),
    *("fedtiny.finish", "fedtiny.graph.trace", "fedtiny.models.analysis"),
    *("fedtiny.models.networks", "importlib.readers", "numpy.ctypeslib", "numpy.ma"),
    *("rich._emoji_codes", "safetensors.torch"),
)
TORN = 20  # bytes that a kill in the middle of writing leaves out


def main() -> None:
    for module in (*USED_LATE, *(f"fedtiny.cli.{command}" for command in COMMANDS)):
        importlib.import_module(module)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        dispatch(["run", "--rounds", "none"])  # so tyro is ready, and knows the types of settings
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line))), flush=True)


def carry_out(order: dict) -> dict:
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            live(order, output.fileno())
        if "after" in order:
            time.sleep(order["after"])
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        seconds = time.perf_counter() - started
        output.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return {"code": code, "seconds": seconds, "output": output.read()}


def live(order: dict, output: int) -> None:
    """The whole life of a child."""
    code = 99
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop_on_signals()
        if "at" in order:
            TRAPS[order["at"]](order["call"])
        if "failing" in order:
            failing(order["folder"], order["failing"], order["call"])
        code = dispatch(order["arguments"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def failing(folder: str, code: int, call: int) -> None:
    """Let the so-manieth operation on a folder and the files in it fail, from 1."""
    process, descriptors, calls = os.getpid(), set(), 0

    def concerned(place) -> bool:
        if isinstance(place, int):
            return place in descriptors
        return isinstance(place, str | os.PathLike) and os.fspath(place).startswith(folder)

    def replaced(name: str):
        real = getattr(os, name)

        def counted(place=".", *arguments, **named):
            nonlocal calls
            ours = os.getpid() == process and concerned(place)
            calls += ours
            if ours and calls == call:
                raise OSError(code, os.strerror(code), str(place))
            result = real(place, *arguments, **named)
            if ours and name == "open":
                descriptors.add(result)
            if ours and name == "close":
                descriptors.discard(place)
            return result

        return counted

    for name in OPERATIONS:
        setattr(os, name, replaced(name))


def torn_write(call: int) -> None:
    """Die in the middle of writing a file, so that its last bytes are missing."""

    def tear(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            os.ftruncate(descriptor, max(0, status.st_size - TORN))
        die()

    at_call(os, "fsync", call, before=tear)


def at_call(owner, name: str, call: int, before=None, after=None) -> None:
    """Do something before or after this process's so-manieth call of a function, from 1."""
    real, calls, process = getattr(owner, name), 0, os.getpid()

    def counted(*arguments, **named):
        nonlocal calls
        calls += os.getpid() == process
        if calls == call and os.getpid() == process and before:
            before(*arguments)
        result = real(*arguments, **named)
        if calls == call and os.getpid() == process and after:
            after()
        return result

    setattr(owner, name, counted)


TRAPS = {
    "torn write": torn_write,
    "renamed": lambda n: at_call(Path, "replace", n, after=die),
    "worker at work": lambda n: at_call(Connection, "recv_bytes", n, before=lambda *_: die()),
    "ctrl-c": lambda n: at_call(os, "fsync", n, before=lambda *_: interrupt()),
    "sigterm": lambda n: at_call(os, "fsync", n, before=lambda *_: interrupt(signal.SIGTERM)),
    "sighup": lambda n: at_call(os, "fsync", n, before=lambda *_: interrupt(signal.SIGHUP)),
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
