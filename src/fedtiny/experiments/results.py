"""An experiment's results: ours beside the paper's, place by place, and the file that holds ours.

`results.json` has everything that tables and figures are made of, small enough to be committed.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedtiny.config import Config
from fedtiny.config.flat import flat
from fedtiny.errors import RunError, plural
from fedtiny.experiments.experiment import Experiment
from fedtiny.experiments.finished import (
    Curve,
    Damaged,
    Finished,
    Found,
    Machine,
    differing,
    left_open,
    settings_of,
)
from fedtiny.experiments.places import Place, in_order
from fedtiny.experiments.quantities import QUANTITIES, label
from fedtiny.experiments.regimes import REGIMES, TODAY, completed
from fedtiny.experiments.scale import AS_IT_IS, POOL, Scale
from fedtiny.experiments.suite import Paper, Printed, printed
from fedtiny.files import plain, read_json, write_atomically
from fedtiny.runs.formatting import not_gone_by

MISSING = "-"
FORMAT = 1
ANOTHER = "give another copy of it, or leave it out"
KINDS = {"name": str, "seed": int, "settings": dict, "numbers": dict, "machines": list}
"""What a cell of a result file holds."""
CURVE = re.compile(r'"curve": \[[^"}]*\]')


@dataclass(frozen=True)
class Value:
    """The mean over seeds, and their standard deviation (of a sample)."""

    mean: float
    spread: float
    seeds: int


@dataclass(frozen=True)
class Results:
    """Everything that a table and a figure are made of."""

    experiment: Experiment
    places: Sequence[Place]
    found: Found
    scale: Scale = AS_IT_IS
    paper: Paper = field(default_factory=dict)
    damaged: Damaged = field(default_factory=dict)
    regime: str = ""
    """Nothing of runs that belong to no experiment file."""

    def ours(self, place: Place, quantity: str) -> Value | None:
        """What we measured at a place; nothing if no run is finished."""
        runs = self.found.get(place.stem, [])
        if not runs:
            return None
        values = [QUANTITIES[quantity].of(run.numbers) for run in runs]
        mean = float(values[0]) if len(set(values)) == 1 else fmean(values)
        return Value(mean, stdev(values) if len(values) > 1 else 0.0, len(values))

    def printed(self, place: Place, quantity: str) -> Printed | None:
        """What the paper prints for a place; it has no accuracy on held-out training images."""
        if place.config.data.validation:
            return None
        return printed(self.paper, place.twin, quantity, self.experiment.source)

    @property
    def missing(self) -> int:
        """Number of places without a finished run."""
        return sum(not self.found.get(place.stem) for place in self.places)

    @property
    def made_at(self) -> str:
        """The scale, with the regime if it is an earlier one."""
        earlier = "" if self.regime in ("", TODAY) else f", regime {self.regime}"
        return f"scale {self.scale.name}{earlier}"

    def notes(self) -> list[str]:
        """What a reader must know beside the figures."""
        missing = f"Cells with {MISSING} are not run yet." if self.missing else ""
        scale = f"Scale {self.scale.name}: {self.scale.title}. {self._seeds()}"
        whose = f"{self._whose()} {missing}".strip()
        return [
            *([whose] if whose else []),
            scale.strip(),
            *([f"Regime {self.regime}: {REGIMES[self.regime].title}."] if self.regime else []),
            *self.experiment.notes,
            *self._stand_ins(),
            *self._elsewhere(),
        ]

    def _whose(self) -> str:
        """Where the paper's values stand, if it has any."""
        if not self._sources():
            return ""
        where = "in parentheses" if self.experiment.table.columns else "to the right"
        return f"Ours, with the paper's {where}."

    def _seeds(self) -> str:
        if not self.experiment.trains:
            return ""
        done = len(self.places) - self.missing
        seeds = sorted({len(runs) for runs in self.found.values() if runs})
        told = f"{done} of {plural(len(self.places), 'cell')} are finished"
        if not seeds:
            return f"{told}."
        span = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        word = "seed" if seeds[-1] == 1 else "seeds"
        spread = "; ± is the standard deviation over seeds" if seeds[-1] > 1 else ""
        return f"{told}, with {span} {word} each{spread}."

    def _stand_ins(self) -> list[str]:
        """Which settings are not the paper's; pool sizes follow from the density."""
        axes = [axis.setting for axis in self.experiment.axes if axis.setting not in (None, POOL)]
        places = in_order(self.places, [axis.name for axis in self.experiment.axes])
        told: list[str] = []
        for setting in dict.fromkeys(("data.name", "model", "density", *axes)):
            pairs = [(_named(p.config, setting), _named(p.asked, setting)) for p in places]
            told += dict.fromkeys(
                f"{ours} for {theirs}" for ours, theirs in pairs if ours != theirs
            )
        return [f"In place of the paper's settings: {', '.join(told)}."] if told else []

    def _elsewhere(self) -> list[str]:
        """Which of the paper's values come from another table than this one."""
        own, sources = self.experiment.source, self._sources()
        others = [source for source in sources if source != own]
        also = " also" if own in sources else ""
        return [f"The paper's values are{also} from {', '.join(others)}."] if others else []

    def _sources(self) -> list[str]:
        """The paper's tables that have values of this one."""
        quantities = self.experiment.table.values
        printed = [self.printed(place, q) for place in self.places for q in quantities]
        return list(dict.fromkeys(value.source for value in printed if value is not None))


def _named(config: Config, setting: str) -> str:
    """A setting's value in words; a network with its width if it is not the usual one."""
    name = label(flat(config)[setting])
    return f"{name} ({config.width} wide)" if setting == "model" and config.width else name


def write_file(path: Path, results: Results, command: str, found: Found) -> None:
    """Write the finished runs of an experiment."""
    machines: list[Machine] = []
    cells = []
    for run in (run for runs in found.values() for run in runs):
        machines += [machine for machine in run.machines if machine not in machines]
        own = [machines.index(machine) for machine in run.machines]
        cells.append({**vars(run), "machines": own})
    document = {
        "format": FORMAT,
        "experiment": results.experiment.name,
        "source": results.experiment.source,
        "scale": results.scale.name,
        "regime": results.regime or TODAY,
        "command": command,
        "machines": machines,
        "cells": cells,
    }
    write_atomically(path, text_of(document).encode())


def text_of(document: dict[str, Any]) -> str:
    """A result file as text: plain data with a line for each value, and one for a whole curve."""
    text = json.dumps(plain(document), indent=1)
    return CURVE.sub(lambda curve: re.sub(r"\n\s*", "", curve[0]), text) + "\n"


def scale_of(paths: Sequence[Path]) -> str | None:
    """The scale that result files were made at, which must be one."""
    return _shared(paths, "scale")


def regime_of(paths: Sequence[Path]) -> str:
    """Return the regime that result files were made in, which must be one; without any, today's."""
    return _shared(paths, "regime") or TODAY


def _shared(paths: Sequence[Path], key: str) -> str | None:
    told = {path: str(_document(path, ANOTHER)[key]) for path in paths}
    if len(set(told.values())) > 1:
        listed = ", ".join(f"{path} is of {value}" for path, value in told.items())
        raise RunError(
            f"result files of one {key} only can be shown together: {listed}; give those of each "
            f"{key} by themselves"
        )
    return next(iter(told.values()), None)


def read_file(path: Path, way_out: str = ANOTHER) -> Found:
    """The finished runs of a file, by their name but for the seed."""
    document = _document(path, way_out)
    found: Found = {}
    for number, cell in enumerate(document["cells"]):
        try:
            run = _finished(cell, document["machines"], path)
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

    In a file of an earlier regime they are the experiment's but for what that regime had.
    """
    regime = REGIMES[regime_of([path])].settings
    for place, run in ((p, run) for p in places for run in found.get(p.stem, ())):
        config = place.cell(run.seed).config
        asked = settings_of(config) | regime
        no_matter = left_open(asked) | not_gone_by(config)
        unlike = [name for name in differing(asked, run.settings) if name not in no_matter]
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


def _finished(cell: Any, machines: list[Machine], path: Path) -> Finished:
    """A run as a file tells it, of which nothing is taken for granted."""
    fits = all(isinstance(cell[key], kind) for key, kind in KINDS.items())
    if not fits or cell["seed"] < 0 or not cell["name"].endswith(f"-s{cell['seed']}"):
        raise TypeError("a value of another kind")
    if not all(isinstance(number, int | float | None) for number in cell["numbers"].values()):
        raise TypeError("a number that is none")
    noted = tuple(machines[number] for number in cell["machines"])
    settings = completed(cell["settings"], f"{path}: '{cell['name']}'")
    kernels, curve = tuple(map(str, cell.get("kernels", ()))), _curve(cell.get("curve", []))
    return Finished(cell["name"], cell["seed"], settings, cell["numbers"], noted, kernels, curve)


def _curve(points: Any) -> Curve:
    """Accuracies between 0 and 1 after a rising number of rounds."""
    if not isinstance(points, list) or not all(isinstance(p, list) and len(p) == 2 for p in points):
        raise TypeError("a curve of something else than pairs")
    rounds = [done for done, _ in points]
    if not all(type(done) is int and done > 0 for done in rounds) or rounds != sorted({*rounds}):
        raise TypeError("rounds that do not rise")
    if not all(isinstance(value, int | float) and 0 <= value <= 1 for _, value in points):
        raise TypeError("an accuracy that is none")
    return tuple((done, float(value)) for done, value in points)


def _document(path: Path, way_out: str) -> dict[str, Any]:
    if not path.exists():
        raise RunError(f"there is no {path}")
    try:
        document = read_json(path)
    except RunError as error:
        raise RunError(f"{path} is not a results.json, or a damaged one; {way_out}") from error
    lists = all(isinstance(document.get(key), list) for key in ("cells", "machines"))
    if document.get("format") != FORMAT or "scale" not in document or not lists:
        raise RunError(f"{path} is not a results.json that this version reads; {way_out}")
    if document.get("regime") not in REGIMES:
        known = ", ".join(REGIMES)
        raise RunError(f"{path} names no regime that is known ({known}); {way_out}")
    return document
