"""How much memory a process has held."""

from pathlib import Path


def peak_resident_bytes() -> int:
    """Of this process alone: on Linux, what `getrusage` tells is at least that of its parent."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
