"""A contender alone in a process of its own, which tells how much memory it took at most."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from fedtiny.bench.contender import Contender
from fedtiny.bench.task import Task
from fedtiny.errors import FedTinyError

STEPS = 3


def resident_bytes(task: Task, contender: Contender) -> int:
    """Peak resident size of a process that does nothing but a few training steps."""
    order = json.dumps({"task": asdict(task), "contender": asdict(contender)})
    command = [sys.executable, "-m", "fedtiny.bench.alone"]
    done = subprocess.run(command, input=order, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise FedTinyError(f"the process that trains '{contender.name}' alone failed: {last}")
    return int(done.stdout)


def main() -> None:
    """What the separate process does."""
    order = json.load(sys.stdin)
    step = Contender(**order["contender"]).step(Task(**order["task"]))
    for _ in range(STEPS):
        step()
    sys.stdout.write(str(peak_resident_bytes()))


def peak_resident_bytes() -> int:
    """Of this process alone: on Linux, what `getrusage` tells is at least that of its parent."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
