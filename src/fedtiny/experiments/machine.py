"""On what a run was made: hardware, versions and the command, kept in its folder."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtiny.extras import own_code, require, version_of
from fedtiny.files import read_json, write_json
from fedtiny.runs.folder import RunFolder

FILE = "machines.json"
PACKAGES = ("fedtiny", "torch", "numpy")
CPU_INFO = Path("/proc/cpuinfo")

Machine = dict[str, Any]


def here(command: str) -> Machine:
    """This machine, and the command that it was given."""
    return {
        "command": command,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": _gpus(),
        "python": platform.python_version(),
        **{package: version_of(package) for package in PACKAGES},
        "code": own_code(),
    }


def note(folder: RunFolder, machine: Machine) -> None:
    """Add a machine to those that worked on a run."""
    known = noted(folder)
    if machine not in known:
        write_json(folder.path / FILE, {"machines": [*known, machine]})


def noted(folder: RunFolder) -> Sequence[Machine]:
    """The machines that worked on a run, in order."""
    path = folder.path / FILE
    machines: Sequence[Machine] = read_json(path)["machines"] if path.exists() else []
    return machines


def _cpu() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """The GPUs, if one is in use; to ask for them would start them."""
    cuda = require("torch", extra="torch").cuda
    count = cuda.device_count() if cuda.is_initialized() else 0
    return [cuda.get_device_name(number) for number in range(count)]
