"""What several tests need compiled, compiled once for all of pytest's processes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

from fedtiny.native import device_program

LOADABLE = (*device_program.SECTIONS, "-fPIC")  # by Python too


def once(tmp_path_factory, name: str, make: Callable[[Path], object]) -> Path:
    """The file or folder of this name; the first who asks makes it, the others wait."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "popen" in base.name else base) / "built"
    folder.mkdir(exist_ok=True)
    target = folder / name
    with FileLock(str(target) + ".lock"):
        if not target.exists():
            new = folder / f"new-{name}"
            make(new)
            new.rename(target)
    return target


def parts(tmp_path_factory, compiler: str = "", flags: Sequence[str] = LOADABLE) -> Path:
    """What programs of devices have in common, with the library of one thread; strictly."""

    def make(target: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if compiler:
                patch.setenv("CXX", compiler)
            device_program.build_parts(target, flags=flags, strict=True)

    return once(tmp_path_factory, f"parts-{compiler or 'here'}", make)
