"""Programs in C++ that call the native library, on this machine or on another under QEMU."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from fedtiny.native.compile import SOURCES, compiler

FOLDER = Path(__file__).parent


def linked(name: str, library: Path, folder: Path, flags: Sequence[str] = ("-O1", "-w")) -> Path:
    """The program `name`.cpp, compiled for what the library is for and linked with it."""
    program = folder / name
    command = [*(compiler() or ["c++"]), "-std=c++17", *flags, f"-I{SOURCES}"]
    linking = [library, f"-Wl,-rpath,{library.parent}", "-pthread", "-o", program]
    subprocess.run([*command, FOLDER / f"{name}.cpp", *linking], check=True)
    return program


def output(command: Sequence[object]) -> str:
    """What a program prints; what it complains about is an error."""
    run = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout
