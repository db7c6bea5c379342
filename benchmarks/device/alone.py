"""A contender alone in a process of its own, which tells how much memory it took at most."""

import json
import subprocess
import sys
from dataclasses import asdict

from fedtiny.errors import FedTinyError
from fedtiny.process import peak_resident_bytes

from .contender import Contender
from .task import Task

FOLDER = "benchmarks/device"
STEPS = 3


def resident_bytes(task: Task, contender: Contender) -> int:
    """Peak resident size of a process that does nothing but a few training steps."""
    order = json.dumps({"task": asdict(task), "contender": asdict(contender)})
    code = f"from fedtiny.extras import shipped_module; shipped_module({FOLDER!r}, 'alone').main()"
    command = [sys.executable, "-c", code]
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
