"""Experiments at a scale: run here, shown from all that is known."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fedtiny.config import Config
from fedtiny.experiments import figure, finished, result_file, table
from fedtiny.experiments.cell import Cell
from fedtiny.experiments.experiment import Experiment
from fedtiny.experiments.finished import Found
from fedtiny.experiments.places import Filter, Place
from fedtiny.experiments.results import Results
from fedtiny.experiments.runner import unfinished
from fedtiny.experiments.scale import Scale
from fedtiny.experiments.suite import Suite
from fedtiny.files import make_folder

CELLS = "cells"
RESULTS = "results.json"
MOVED = "choose another --out, or move the file away, and it is made anew from the runs"


@dataclass(frozen=True)
class Sweep:
    """What was asked for. `root` and `workers` are this machine's own business."""

    suite: Suite
    scale: Scale
    experiments: Sequence[Experiment]
    out: Path
    seeds: tuple[int, ...] = (0,)
    part: Filter = field(default_factory=Filter)
    root: Path | None = None
    workers: int | None = None
    result_files: tuple[Path, ...] = ()
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
        for cell in (place.cell(seed) for seed in self.seeds for place in chosen):
            found.setdefault(cell.name, replace(cell, config=self._here(cell.config)))
        return list(found.values())

    def count(self, experiment: Experiment) -> tuple[int, int]:
        """How many cells an experiment has, and how many of them are finished."""
        if not experiment.trains:
            return len(self.places(experiment)), len(self.places(experiment))
        cells = len({cell.name for cell in self._every_cell(experiment)})
        return cells, cells - len(self._lacking(experiment))

    def unfinished(self) -> list[Cell]:
        """The runs that were asked for and that a table of theirs still lacks."""
        lacking = set().union(*(self._lacking(e) for e in self.experiments if e.trains))
        return [cell for cell in self.cells() if cell.name in lacking]

    def results(self, experiment: Experiment) -> Results:
        """All that is finished of an experiment, of whatever seed."""
        places = self.places(experiment)
        if experiment.trains:
            here, damaged = finished.in_folders(places, self.cells_folder)
            found = finished.merged(places, here, *self._told(experiment))
        else:
            found, damaged = finished.by_cost_model(places), {}
        return Results(experiment, places, found, self.scale, self.suite.paper, damaged)

    def write(self, results: Results, command: str) -> tuple[list[Path], str]:
        """Write results, tables and figure; returns the paths, and why there is no PNG."""
        experiment, folder = results.experiment, self.folder(results.experiment)
        make_folder(folder)
        path, places = folder / RESULTS, {place.stem for place in results.places}
        before = self._told_before(experiment).items()
        no_longer = {stem: runs for stem, runs in before if stem not in places}
        result_file.write(path, experiment, self.scale.name, command, results.found | no_longer)
        drawn, lacking = figure.write(results, folder)
        return [*table.write(results, folder), path, *drawn], lacking

    @cached_property
    def _files(self) -> list[tuple[Path, Found]]:
        return [(path, result_file.read(path)) for path in self.result_files]

    def _told(self, experiment: Experiment) -> list[Found]:
        """What result files tell of an experiment."""
        for path, found in self._files:
            self._require_fit(experiment, found, path, result_file.ANOTHER)
        return [*(found for _, found in self._files), self._told_before(experiment)]

    def _told_before(self, experiment: Experiment) -> Found:
        """What the results.json that is about to be replaced tells: it may outlive its runs."""
        path = self.folder(experiment) / RESULTS
        if not experiment.trains or not path.exists():
            return {}
        found = result_file.read(path, MOVED)
        self._require_fit(experiment, found, path, MOVED)
        return found

    def _require_fit(self, experiment: Experiment, found: Found, path: Path, way_out: str) -> None:
        result_file.require_fit(experiment, self.places(experiment), found, path, way_out)

    def _every_cell(self, experiment: Experiment) -> list[Cell]:
        """The runs of an experiment; places may share one."""
        return [place.cell(seed) for place in self.places(experiment) for seed in self.seeds]

    def _lacking(self, experiment: Experiment) -> set[str]:
        """The runs of an experiment that neither a folder nor a result file tells of, by name."""
        told = [run.name for f in self._told(experiment) for runs in f.values() for run in runs]
        cells = unfinished(self._every_cell(experiment), self.cells_folder)
        return {cell.name for cell in cells} - {*told}

    def _here(self, config: Config) -> Config:
        """A run with its data where it lies on this machine, wherever it was begun."""
        root = self.root or config.data.root or os.environ.get("FEDTINY_DATA")
        data = replace(config.data, root=str(root) if root else None)
        return replace(config, data=data, workers=self.workers or config.workers)
