"""Fuzz all that reads what it does not trust, for a given time: wire, packed files, run folders,
native calls, the stream of a device's program.

    python -m tests.fuzz [--seconds 240] [--seed 0]

Each part is a process of its own with a share of the time, and prints what came of it.
"""

import argparse
import subprocess
import sys
import time

PARTS = {
    "wire": "tests.federation.fuzz_wire",
    "packed files": "tests.export.fuzz_packed",
    "run folders": "tests.runs.fuzz_folders",
    "native calls": "tests.native.fuzz",
    "device programs": "tests.device.fuzz",
}
SHARES = {
    **{"wire": 0.15, "packed files": 0.15, "run folders": 0.4},
    **{"native calls": 0.15, "device programs": 0.15},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failed = []
    for name, module in PARTS.items():
        seconds, started = SHARES[name] * arguments.seconds, time.monotonic()
        flags = ["--seconds", f"{seconds:g}", "--seed", str(arguments.seed)]
        done = subprocess.run([sys.executable, "-m", module, *flags], check=False)
        ended = "fine" if done.returncode == 0 else f"FAILED with {done.returncode}"
        print(f"{name}: {ended} after {time.monotonic() - started:.0f} s", flush=True)
        failed += [name] if done.returncode else []
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
