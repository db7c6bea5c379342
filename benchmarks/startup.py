"""How long a user waits for the first line of a command, and what is imported for it.

Each command is started with its output in a pipe, read until its first line, and stopped. Wall
time is the user's; CPU time hardly changes when other work goes on beside. Both are medians, with
the least of all as well; the ratio is CPU time to that of `python -c pass`.

    python benchmarks/startup.py [--times 7] [--json benchmarks/results/startup.json]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BARE = "python -c pass"
COMMANDS: dict[str, list[str]] = {
    BARE: ["-c", "pass"],
    "fedtiny --help": ["-m", "fedtiny", "--help"],
    "fedtiny run": ["-m", "fedtiny", "run"],
    "fedtiny reproduce table1": ["-m", "fedtiny", "reproduce", "table1"],
    "fedtiny compare": ["-m", "fedtiny", "compare"],
}
LIMITS = {"fedtiny --help": 0.1, "fedtiny run": 1.0, "fedtiny reproduce table1": 2.0}
"""Seconds until the first line that are promised, on a machine that does nothing else."""
SHOWN = 10_000  # microseconds: imports that take less are not listed


def first_line(arguments: Sequence[str], folder: Path) -> tuple[float, float, str]:
    """Wall and CPU seconds of a process up to its first line, or to its end, and that line."""
    started = time.perf_counter()
    order = [sys.executable, *arguments]
    process = subprocess.Popen(order, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    line = process.stdout.readline()
    wall = time.perf_counter() - started
    if line:
        process.kill()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    process.stdout.close()
    return wall, used.ru_utime + used.ru_stime, line.decode().strip()


def measured(arguments: Sequence[str], times: int) -> dict[str, Any]:
    """Medians over so many starts, each in a folder of its own; the first is not counted."""
    walls, cpus, line = [], [], ""
    for _ in range(times + 1):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            wall, cpu, line = first_line(arguments, Path(folder))
        walls.append(wall)
        cpus.append(cpu)
    return {
        "wall_s": round(statistics.median(walls[1:]), 4),
        "least_wall_s": round(min(walls[1:]), 4),
        "cpu_s": round(statistics.median(cpus[1:]), 4),
        "line": line,
    }


def imports(arguments: Sequence[str]) -> dict[str, float]:
    """Modules that were imported before the first line: milliseconds with all that they import."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "imports"
        with log.open("wb") as told:
            order = [sys.executable, "-X", "importtime", *arguments]
            process = subprocess.Popen(order, cwd=folder, stdout=subprocess.PIPE, stderr=told)
            assert process.stdout is not None
            process.stdout.readline()
            process.kill()
            process.wait()
            process.stdout.close()
        lines = log.read_text().splitlines()
    rows = (line.removeprefix("import time:").split("|") for line in lines if line.count("|") == 2)
    found = {name.strip(): int(took) for _, took, name in rows if took.strip().isdigit()}
    slow = sorted(found.items(), key=lambda item: -item[1])
    listed = {name: round(took / 1000, 1) for name, took in slow if took >= SHOWN}
    return {"modules": len(found), "torch": "torch" in found, **listed}


def machine() -> dict[str, Any]:
    """Where this was measured, and how busy it was."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(one, 2) for one in os.getloadavg()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = {name: measured(order, arguments.times) for name, order in COMMANDS.items()}
    for name, row in rows.items():
        row["ratio"] = round(row["cpu_s"] / rows[BARE]["cpu_s"], 1)
        limit = LIMITS.get(name)
        told = f" (at most {limit:g} s)" if limit else ""
        print(
            f"{name:<26} {row['wall_s']:.3f} s, at least {row['least_wall_s']:.3f} s, CPU "
            f"{row['cpu_s']:.3f} s, {row['ratio']:g} x bare Python{told}"
        )
    listed = {name: imports(order) for name, order in COMMANDS.items() if name != BARE}
    for name, found in listed.items():
        slowest = [f"{module} {took} ms" for module, took in found.items()][2:8]
        print(f"{name}: {found['modules']} modules; {', '.join(slowest)}")
    if arguments.json:
        document = {"machine": machine(), "times": arguments.times, "first line": rows}
        arguments.json.write_text(json.dumps({**document, "imports": listed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
