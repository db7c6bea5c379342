"""`results.json`: everything that tables and figures are made of, small enough to be committed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtiny.config import Config
from fedtiny.config.aliases import current_settings
from fedtiny.errors import RunError
from fedtiny.experiments.cell import differing, settings_of
from fedtiny.experiments.experiment import Experiment
from fedtiny.experiments.finished import Finished, Found
from fedtiny.experiments.machine import Machine
from fedtiny.experiments.places import Place
from fedtiny.experiments.quantities import QUANTITIES
from fedtiny.files import read_json, write_json

FORMAT = 1
ANOTHER = "give another copy of it, or leave it out"
KINDS = {"name": str, "seed": int, "settings": dict, "numbers": dict, "machines": list}
"""What a cell holds."""


def write(path: Path, experiment: Experiment, scale: str, command: str, found: Found) -> None:
    """Write the finished runs of an experiment."""
    machines: list[Machine] = []
    cells = [_cell(run, machines) for runs in found.values() for run in runs]
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
    scales = {path: str(_read(path, ANOTHER)["scale"]) for path in paths}
    if len(set(scales.values())) > 1:
        told = ", ".join(f"{path} is of {scale}" for path, scale in scales.items())
        raise RunError(f"result files of one scale only can be shown together: {told}")
    return next(iter(scales.values()), None)


def read(path: Path, way_out: str = ANOTHER) -> Found:
    """The finished runs of a file, by their name but for the seed."""
    document = _read(path, way_out)
    found: Found = {}
    for number, cell in enumerate(document["cells"]):
        try:
            run = _finished(cell, document["machines"])
        except (TypeError, LookupError) as error:
            raise RunError(
                f"{path} is damaged: cell {number} is not as fedtiny writes one; {way_out}"
            ) from error
        found.setdefault(run.name.removesuffix(f"-s{run.seed}"), []).append(run)
    return found


def require_fit(
    experiment: Experiment, places: Sequence[Place], found: Found, path: Path, way_out: str
) -> None:
    """Refuse a file whose runs are not the experiment's of today, or tell too little.

    A setting that is younger than the result was as usual.
    """
    usual = settings_of(Config())
    for place, run in ((p, run) for p in places for run in found.get(p.stem, ())):
        unlike = differing(settings_of(place.cell(run.seed).config), usual | run.settings)
        if unlike:
            raise RunError(
                f"{path} holds '{run.name}' with other settings ({', '.join(unlike)}) than the "
                f"experiment has today; {way_out}"
            )
        for name in experiment.quantities:
            try:
                float(QUANTITIES[name].of(run.numbers))
            except (KeyError, TypeError, ArithmeticError) as error:
                told = f"{path} does not tell the {name} of '{run.name}'"
                raise RunError(f"{told}; {way_out}") from error


def _finished(cell: Any, machines: list[Machine]) -> Finished:
    """A run as a file tells it, of which nothing is taken for granted."""
    whole = all(isinstance(cell[key], kind) for key, kind in KINDS.items())
    if not whole or cell["seed"] < 0 or not cell["name"].endswith(f"-s{cell['seed']}"):
        raise TypeError("a value of another kind")
    if not all(isinstance(number, int | float | None) for number in cell["numbers"].values()):
        raise TypeError("a number that is none")
    noted = tuple(machines[number] for number in cell["machines"])
    settings = current_settings(cell["settings"], warns=False)
    return Finished(cell["name"], cell["seed"], settings, cell["numbers"], noted)


def _cell(run: Finished, machines: list[Machine]) -> dict[str, Any]:
    machines += [machine for machine in run.machines if machine not in machines]
    return {
        "name": run.name,
        "seed": run.seed,
        "settings": run.settings,
        "numbers": dict(run.numbers),
        "machines": [machines.index(machine) for machine in run.machines],
    }


def _read(path: Path, way_out: str) -> dict[str, Any]:
    if not path.exists():
        raise RunError(f"there is no {path}")
    try:
        document = read_json(path)
    except RunError as error:
        raise RunError(f"{path} is not a results.json, or a damaged one; {way_out}") from error
    lists = all(isinstance(document.get(key), list) for key in ("cells", "machines"))
    if document.get("format") != FORMAT or "scale" not in document or not lists:
        raise RunError(f"{path} is not a results.json that this version reads; {way_out}")
    return document
