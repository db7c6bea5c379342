"""Build fedtiny-device, the program with which a device trains without Python.

    python -m fedtiny.native.device_program OUTPUT [--shared-libraries]

CXX names a cross compiler (say, aarch64-linux-gnu-g++). The program is linked statically, so that
it runs on any Linux of its architecture.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedtiny import __version__
from fedtiny.native import compile as native

SOURCES = native.SOURCES / "device"
POSIX = "posix.cpp"
SMALL = ("-Os", "-DNDEBUG", "-ffunction-sections", "-fdata-sections")
EXACT = ("-ffp-contract=off",)  # what devices work out beside the network is NumPy's, to the bit
LINK = ("-Wl,--gc-sections", "-s")
SINGLE = ("-DFEDTINY_SINGLE_THREAD",)


def sources(*mains: str) -> list[Path]:
    """The sources of the program without those of other systems."""
    systems = {POSIX, "cortex_m7.cpp"} - set(mains)
    return [path for path in sorted(SOURCES.glob("*.cpp")) if path.name not in systems]


def build(
    target: Path, *, static: bool = True, flags: Sequence[str] = SMALL, strict: bool = False
) -> Path:
    """Compile the program to `target`."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "program"
        objects = native.compiled(
            Path(folder),
            device_sources=sources(POSIX),
            flags=[*flags, *SINGLE, f'-DFEDTINY_VERSION="{__version__}"'],
            device_flags=EXACT,
            strict=strict,
        )
        linking = [*LINK, *(("-static",) if static else ())]
        native.link([*linking, *map(str, objects), "-o", str(made)])
        shutil.copyfile(made, target)
        target.chmod(0o755)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    asked = parser.parse_args()
    try:
        made = build(asked.output)
    except native.CannotCompileError as error:
        sys.exit(f"fedtiny-device was not built: {error}")
    sys.stdout.write(f"{made}: {made.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
