"""`results.json`: everything that tables and figures are made of, small enough to be committed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtiny.errors import RunError
from fedtiny.reproduce.experiment import Experiment
from fedtiny.reproduce.finished import Finished, Found
from fedtiny.reproduce.machine import Machine
from fedtiny.runs.folder import read_json, write_json

FORMAT = 1


def write(path: Path, experiment: Experiment, scale: str, command: str, found: Found) -> None:
    """Write the finished runs of an experiment."""
    runs = [run for runs in found.values() for run in runs]
    machines: list[Machine] = []
    cells = [_cell(run, machines) for run in runs]
    document = {
        "format": FORMAT,
        "experiment": experiment.name,
        "source": experiment.source,
        "scale": scale,
        "command": command,
        "machines": machines,
        "cells": cells,
    }
    write_json(path, document)


def scale_of(paths: Sequence[Path]) -> str | None:
    """The scale that result files were made at, which must be one."""
    scales = {path: str(_read(path)["scale"]) for path in paths}
    if len(set(scales.values())) > 1:
        told = ", ".join(f"{path} is of {scale}" for path, scale in scales.items())
        raise RunError(f"result files of one scale only can be shown together: {told}")
    return next(iter(scales.values()), None)


def read(path: Path) -> Found:
    """The finished runs of a file, by their name but for the seed."""
    document = _read(path)
    found: Found = {}
    try:
        for cell in document["cells"]:
            machines = tuple(document["machines"][number] for number in cell["machines"])
            run = Finished(cell["name"], cell["seed"], cell["settings"], cell["numbers"], machines)
            found.setdefault(run.name.rpartition("-s")[0], []).append(run)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    return found


def _cell(run: Finished, machines: list[Machine]) -> dict[str, Any]:
    machines += [machine for machine in run.machines if machine not in machines]
    return {
        "name": run.name,
        "seed": run.seed,
        "settings": run.settings,
        "numbers": dict(run.numbers),
        "machines": [machines.index(machine) for machine in run.machines],
    }


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise RunError(f"there is no {path}")
    try:
        document = read_json(path)
    except RunError as error:
        raise RunError(f"{path} is not a results.json, or a damaged one") from error
    if document.get("format") != FORMAT or "cells" not in document or "scale" not in document:
        raise RunError(f"{path} is not a results.json that this version reads")
    return document
