"""Let several processes of one command share its cells on one machine, until time is over.

    python benchmarks/side_by_side.py --processes 8 --minutes 25 -- \
        reproduce recipes --folder experiments/fair --scale heldout --seeds 10 11 --data.root DATA

Each process runs `fedtiny` with these arguments and `--minutes`. A cell that one process has begun
is left to it by the others, so each takes the next that is not there. Give the command again to go
on. Output goes to OUT/process-K.log; on a GPU, start NVIDIA's Multi-Process Service before.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    """Start the processes, one a second, and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--logs", type=Path, default=Path("runs/logs"))
    parser.add_argument("command", nargs="+", help="arguments of fedtiny, after --")
    asked = parser.parse_args()
    asked.logs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fedtiny", *asked.command, "--minutes", f"{asked.minutes:g}"]
    started = []
    for number in range(asked.processes):
        with (asked.logs / f"process-{number}.log").open("a") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
        time.sleep(1)  # so that the first one decodes images for the others
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main())
