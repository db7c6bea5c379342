"""What this process may use, what it has used, and which one of several it is."""

import os
from dataclasses import dataclass
from pathlib import Path

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
        rank=int(os.environ["RANK"]),
        size=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        local_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    )


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
