"""What this process may use, what it has used, which one of several it is, and what stops it."""

import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fedtiny.errors import ConfigError, printable

MEMORY_INFO = Path("/proc/meminfo")
CONTROL_GROUP = Path("/sys/fs/cgroup")
SOON = 0.05  # seconds
LAUNCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Launch:
    """Which one of the processes of a run this is; those of one machine count from 0 too."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def launch() -> Launch:
    """How torchrun, or whoever sets the same variables, started this process."""
    if not all(name in os.environ for name in LAUNCH):
        return Launch()
    return Launch(
        rank=_integer("RANK"),
        size=_integer("WORLD_SIZE"),
        local_rank=_integer("LOCAL_RANK", "0"),
        local_size=_integer("LOCAL_WORLD_SIZE", "1"),
    )


def _integer(name: str, otherwise: str = "") -> int:
    text = os.environ.get(name, otherwise)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ConfigError(f"{name} is '{printable(text)}', not the number that torchrun would set")
    return int(text)


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_resident_bytes() -> int:
    """The most memory it held; on Linux, `getrusage` tells at least that of its parent."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def free_memory() -> int | None:
    """Bytes that this process may still take, by the system and by its container, if they tell."""
    found = [_field(MEMORY_INFO, "MemAvailable:", 1024)]
    most, used = (_number(CONTROL_GROUP / f"memory.{name}") for name in ("max", "current"))
    if most is not None and used is not None:
        cached = _field(CONTROL_GROUP / "memory.stat", "inactive_file ", 1)
        found.append(most - used + (cached or 0))
    known = [count for count in found if count is not None]
    return max(0, min(known)) if known else None


def _field(path: Path, name: str, unit: int) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return int(line.removeprefix(name).split()[0]) * unit
    return None


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="utf-8"))
    return None


def wants_traceback() -> bool:
    """Whether errors are shown with where they come from: `FEDTINY_TRACEBACK`, unless it is 0."""
    return os.environ.get("FEDTINY_TRACEBACK", "0") not in ("", "0")


class Stopped(KeyboardInterrupt):
    """A signal that ends this process: what is under way says how to go on, or notes it here."""

    said = False
    way_on = ""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def stop_on_signals() -> None:
    """Take SIGTERM and SIGHUP like Ctrl-C, unless whoever started this process chose otherwise."""
    usual = (signal.SIG_DFL, signal.default_int_handler)
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in usual:
            signal.signal(number, _stop)
    sys.unraisablehook = _not_lost


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _not_lost(lost: "sys.UnraisableHookArgs") -> None:
    """Send a signal again that came where Python drops exceptions, as in a callback of imports."""
    if isinstance(lost.exc_value, Stopped):
        number = lost.exc_value.code - 128
        threading.Timer(SOON, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(lost)
