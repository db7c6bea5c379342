"""Call the native library with sense and nonsense under the address and undefined sanitizers.

python -m tests.native.fuzz [--calls 100000] [--seconds S] [--seed 0]
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from fedtiny.native.compile import SANITIZED, build

from .programs import linked

BATCH = 2000  # calls of a process, if time counts


def build_driver(folder: Path) -> Path:
    """The driver, linked with a sanitized library."""
    return linked("fuzz", build(folder / "libfuzzed.so", sanitize=True), folder, SANITIZED)


def main() -> None:
    """Build the driver and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        driver = build_driver(Path(folder))
        if arguments.seconds is None:
            subprocess.run([driver, str(arguments.calls), str(arguments.seed)], check=True)
            return
        end, seed = time.monotonic() + arguments.seconds, arguments.seed
        while time.monotonic() < end:
            subprocess.run([driver, str(BATCH), str(seed)], check=True)
            seed += 1


if __name__ == "__main__":
    main()
