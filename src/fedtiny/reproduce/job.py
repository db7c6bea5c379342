"""One order: these experiments at this scale, run here, shown from all that is known."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fedtiny.compare.grid import Cell
from fedtiny.config import Config
from fedtiny.reproduce import figure, finished, result_file, table
from fedtiny.reproduce.experiment import Experiment
from fedtiny.reproduce.filters import Filter
from fedtiny.reproduce.finished import Damaged, Found
from fedtiny.reproduce.outcome import Outcome
from fedtiny.reproduce.places import Place
from fedtiny.reproduce.scale import Scale
from fedtiny.reproduce.suite import Suite
from fedtiny.reproduce.work import unfinished
from fedtiny.runs.folder import make_folder

CELLS = "cells"
RESULTS = "results.json"
MOVED = "choose another --out, or move the file away, and it is made anew from the runs"


@dataclass(frozen=True)
class Job:
    """What was asked for. `root` and `workers` are this machine's own business."""

    suite: Suite
    scale: Scale
    experiments: Sequence[Experiment]
    out: Path
    seeds: tuple[int, ...] = (0,)
    part: Filter = field(default_factory=Filter)
    root: Path | None = None
    workers: int | None = None
    results: tuple[Path, ...] = ()
    _places: dict[str, list[Place]] = field(default_factory=dict, repr=False)

    @property
    def cells_folder(self) -> Path:
        """Where the runs of all experiments at this scale lie."""
        return self.out / self.scale.name / CELLS

    def folder(self, experiment: Experiment) -> Path:
        """Where an experiment's tables and figures go."""
        return self.out / self.scale.name / experiment.name

    def places(self, experiment: Experiment) -> list[Place]:
        """Everything that an experiment is made of."""
        if experiment.name not in self._places:
            self._places[experiment.name] = self.suite.places(experiment, self.scale)
        return self._places[experiment.name]

    def cells(self) -> list[Cell]:
        """The runs that were asked for, each once, most telling first."""
        every = [p for e in self.experiments if e.trains for p in self.places(e)]
        chosen = self.part.of(every) if every else []
        found: dict[str, Cell] = {}
        for seed in self.seeds:
            for place in chosen:
                cell = place.cell(seed)
                found.setdefault(cell.name, replace(cell, config=self._here(cell)))
        return list(found.values())

    def count(self, experiment: Experiment) -> tuple[int, int]:
        """How many cells an experiment has, and how many of them are finished."""
        if not experiment.trains:
            return len(self.places(experiment)), len(self.places(experiment))
        cells = len({cell.name for cell in self._of(experiment)})
        return cells, cells - len(self._lacking(experiment))

    def unfinished(self) -> list[Cell]:
        """The runs that were asked for and that a table of theirs still lacks."""
        lacking = set().union(*(self._lacking(e) for e in self.experiments if e.trains))
        return [cell for cell in self.cells() if cell.name in lacking]

    def outcome(self, experiment: Experiment) -> Outcome:
        """All that is finished of an experiment, of whatever seed."""
        places, (found, damaged) = self.places(experiment), self._found(experiment)
        return Outcome(experiment, self.scale, places, found, self.suite.paper, damaged)

    def write(self, outcome: Outcome, command: str) -> list[Path]:
        """Write results and tables."""
        folder = self.folder(outcome.experiment)
        make_folder(folder)
        results = folder / RESULTS
        found = outcome.found | self._of_no_place(outcome.experiment)
        result_file.write(results, outcome.experiment, self.scale.name, command, found)
        return [*table.write(outcome, folder), results]

    def draw(self, outcome: Outcome) -> list[Path]:
        """Write the figure."""
        return figure.write(outcome, self.folder(outcome.experiment))

    @cached_property
    def _files(self) -> list[Found]:
        return [result_file.read(path) for path in self.results]

    def _found(self, experiment: Experiment) -> tuple[Found, Damaged]:
        places = self.places(experiment)
        if not experiment.trains:
            return finished.by_cost_model(places), {}
        for path, found in zip(self.results, self._files, strict=True):
            self._require_fit(experiment, found, path, result_file.ANOTHER)
        here, damaged = finished.in_folders(places, self.cells_folder)
        told = self._told_before(experiment)
        return finished.merged(places, here, *self._files, told), damaged

    def _of(self, experiment: Experiment) -> list[Cell]:
        """The runs of an experiment; places may share one."""
        return [place.cell(seed) for place in self.places(experiment) for seed in self.seeds]

    def _lacking(self, experiment: Experiment) -> set[str]:
        """The runs of an experiment that neither a folder nor a result file tells of, by name."""
        files = (*self._files, self._told_before(experiment))
        told = {run.name for file in files for runs in file.values() for run in runs}
        return {cell.name for cell in unfinished(self._of(experiment), self.cells_folder)} - told

    def _told_before(self, experiment: Experiment) -> Found:
        """What the results.json that is about to be replaced tells: it may outlive its runs."""
        path = self.folder(experiment) / RESULTS
        if not experiment.trains or not path.exists():
            return {}
        told = result_file.read(path, MOVED)
        self._require_fit(experiment, told, path, MOVED)
        return told

    def _of_no_place(self, experiment: Experiment) -> Found:
        """What was told of runs that the experiment no longer has."""
        places = {place.stem for place in self.places(experiment)}
        told = self._told_before(experiment)
        return {stem: runs for stem, runs in told.items() if stem not in places}

    def _require_fit(self, experiment: Experiment, found: Found, path: Path, way_out: str) -> None:
        """Refuse a file whose runs are not the experiment's of today."""
        for place in self.places(experiment):
            for run in found.get(place.stem, ()):
                finished.require_settings(place, run, path, way_out)
                finished.require_numbers(experiment, run, path, way_out)

    def _here(self, cell: Cell) -> Config:
        """The run with its data where it lies on this machine, wherever it was begun."""
        config = cell.config
        root = self.root or config.data.root or os.environ.get("FEDTINY_DATA")
        data = replace(config.data, root=str(root) if root else None)
        return replace(config, data=data, workers=self.workers or config.workers)
