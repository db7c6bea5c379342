"""What several tests need compiled, compiled once for all of pytest's processes."""

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def once(tmp_path_factory, name: str, make: Callable[[Path], object]) -> Path:
    """The file of this name; the first who asks makes it, the others wait."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "popen" in base.name else base) / "device"
    folder.mkdir(exist_ok=True)
    target = folder / name
    with FileLock(str(target) + ".lock"):
        if not target.exists():
            new = target.with_suffix(".new")
            make(new)
            new.rename(target)
    return target
