"""A device's training step, all contenders interleaved in one run.

They take turns, so that what else the machine does hits them alike. A speed-up is the median over
the rounds of the ratio to the faster dense layout, in wall time and in the time of all processors.
Memory is that of a separate process each.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any, NamedTuple

from fedtiny.extras import require
from fedtiny.native.library import library

from .alone import resident_bytes
from .contender import DENSE, Contender, Step, field
from .task import Settings, Task

Row = dict[str, Any]
Tell = Callable[[str], None]


class Spent(NamedTuple):
    """Milliseconds of a step: those of the clock, and those of all threads on processors."""

    wall: float
    cpu: float


Times = dict[Contender, list[Spent]]


def units(settings: Settings) -> int:
    """How often `measure` tells of progress."""
    return len(field(settings)) * (1 + settings.rounds + settings.memory)


def measure(settings: Settings, tell: Tell) -> dict[str, Any]:
    """All that was found, ready for JSON: `rows` has native devices, `baselines` PyTorch's."""
    require("torch", extra="torch")
    machine = _machine()
    task, contenders = Task.of(settings), field(settings)
    times = interleaved(task, contenders, settings.rounds, tell)
    resident = residents(task, contenders, tell) if settings.memory else {}
    found = rows(task, times, resident)
    return {
        "settings": asdict(settings),
        "machine": machine,
        "rows": [row for row in found if row["backend"] == "native"],
        "baselines": [row for row in found if row["backend"] != "native"],
    }


def _machine() -> dict[str, Any]:
    """What it computes with, and how busy it is before anything is measured."""
    return {
        "instructions": library().instructions,
        "cores": os.cpu_count() or 1,
        "load_average": os.getloadavg()[0],
    }


def is_busy(machine: dict[str, Any], threads: int) -> bool:
    """Whether other work had the cores that the contenders were to use."""
    cores, load = int(machine["cores"]), float(machine["load_average"])
    return cores - load < min(threads, cores) - 0.5


def interleaved(task: Task, contenders: list[Contender], rounds: int, tell: Tell) -> Times:
    """Milliseconds of each step of each contender, over rounds in which each does one."""
    steps: dict[Contender, Step] = {}
    for contender in contenders:
        tell(f"warming up: {contender.name}")
        steps[contender] = contender.step(task)
        steps[contender]()
    times: Times = {contender: [] for contender in contenders}
    for turn in range(1, rounds + 1):
        for contender, step in steps.items():
            tell(f"round {turn}/{rounds}: {contender.name}")
            times[contender].append(_timed(step))
    return times


def _timed(step: Step) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return Spent(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))


def residents(task: Task, contenders: list[Contender], tell: Tell) -> dict[Contender, int]:
    """Peak resident bytes of each contender, alone in a process of its own."""
    found = {}
    for contender in contenders:
        tell(f"memory: {contender.name}")
        found[contender] = resident_bytes(task, contender)
    return found


def rows(task: Task, times: Times, resident: dict[Contender, int]) -> list[Row]:
    """A row for each contender; ratios are against the faster and the leaner dense layout."""
    leanest = min(resident[dense] for dense in DENSE) if resident else 0
    return [
        {
            "name": contender.name,
            **asdict(contender),
            **_speed(times, contender),
            "resident_bytes": resident.get(contender),
            "memory_ratio": leanest / resident[contender] if resident else None,
            "parameter_bytes": contender.parameter_bytes(task),
        }
        for contender in times
    ]


def _speed(times: Times, contender: Contender) -> Row:
    """Medians of both times, and their ratios to those of dense PyTorch in the same round."""
    found: Row = {}
    for prefix, place in (("", 0), ("cpu_", 1)):
        spent = {who: [each[place] for each in steps] for who, steps in times.items()}
        fastest = min((spent[dense] for dense in DENSE), key=median)
        ratios = sorted(d / s for d, s in zip(fastest, spent[contender], strict=True))
        found[f"{prefix}ms"] = median(spent[contender])
        found[f"{prefix}speedup"] = median(ratios)
        found[f"{prefix}speedup_range"] = [ratios[0], ratios[-1]]
    return found
