"""Experiments at a scale: run here, shown from all that is known."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fedtiny.config import Config
from fedtiny.errors import RunError
from fedtiny.experiments import curves, figure, finished, pareto, table
from fedtiny.experiments.experiment import Experiment
from fedtiny.experiments.finished import Found
from fedtiny.experiments.places import Cell, Filter, Place
from fedtiny.experiments.regimes import TODAY
from fedtiny.experiments.results import (
    ANOTHER,
    Results,
    read_file,
    regime_of,
    require_fit,
    write_file,
)
from fedtiny.experiments.runner import unfinished
from fedtiny.experiments.scale import Scale
from fedtiny.experiments.suite import Suite

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

    @cached_property
    def regime(self) -> str:
        """The regime of the result files, or today's."""
        return regime_of(self.result_files)

    @property
    def _made_at(self) -> Path:
        """A folder for each scale and earlier regime: no table has runs of two."""
        earlier = "" if self.regime == TODAY else f"-{self.regime}"
        return self.out / f"{self.scale.name}{earlier}"

    @property
    def cells_folder(self) -> Path:
        """Where the runs of all experiments at this scale lie."""
        return self._made_at / CELLS

    def folder(self, experiment: Experiment) -> Path:
        """Where an experiment's tables and figures go."""
        return self._made_at / experiment.name

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
        finished = self._finished(experiment)
        return len(finished), sum(finished.values())

    def unfinished(self) -> list[Cell]:
        """The runs that were asked for and that a table of theirs still lacks."""
        parts = [self._finished(e).items() for e in self.experiments if e.trains]
        lacking = {name for part in parts for name, finished in part if not finished}
        return [cell for cell in self.cells() if cell.name in lacking]

    def _finished(self, experiment: Experiment) -> dict[str, bool]:
        """The runs of an experiment: whether a folder or a result file tells of each, by name."""
        cells = [place.cell(seed) for place in self.places(experiment) for seed in self.seeds]
        lacking = {cell.name for cell in unfinished(cells, self.cells_folder)}
        told = (runs for found in self._told(experiment) for runs in found.values())
        lacking -= {run.name for runs in told for run in runs}
        return {cell.name: cell.name not in lacking for cell in cells}

    def results(self, experiment: Experiment) -> Results:
        """All that is finished of an experiment, of whatever seed."""
        places = self.places(experiment)
        if experiment.trains:
            here, damaged = finished.in_folders(places, self.cells_folder)
            found = finished.merged(places, here, *self._told(experiment))
        else:
            found, damaged = finished.by_cost_model(places), {}
        shown = Results(experiment, places, found, self.scale, self.suite.paper, damaged)
        return replace(shown, regime=self.regime if experiment.trains else "")

    def write(self, results: Results, command: str) -> tuple[list[Path], str]:
        """Write results, tables and figures; returns the paths, and why there is no PNG."""
        experiment, folder = results.experiment, self.folder(results.experiment)
        path, places = folder / RESULTS, {place.stem for place in results.places}
        before = self._told_before(experiment).items()
        no_longer = {stem: runs for stem, runs in before if stem not in places}
        tables = table.write(results, folder)
        write_file(path, results, command, results.found | no_longer)
        drawn, lacking = figure.write(results, folder)
        drawn += [*curves.write(results, folder), *pareto.write(results, folder)]
        return [*tables, path, *drawn], lacking

    def require_told(self) -> None:
        """Refuse result files of which no run is one of the experiments that were asked for."""
        stems = {place.stem for e in self.experiments if e.trains for place in self.places(e)}
        files = [read_file(path, ANOTHER).keys() for path in self.result_files]
        if files and not stems & {stem for found in files for stem in found}:
            names = " and ".join(experiment.name for experiment in self.experiments)
            raise RunError(f"--results has no run of {names} at scale {self.scale.name}")

    def _told(self, experiment: Experiment) -> list[Found]:
        """What result files tell of an experiment."""
        files = [self._read(experiment, path, ANOTHER) for path in self.result_files]
        return [*files, self._told_before(experiment)]

    def _told_before(self, experiment: Experiment) -> Found:
        """What the results.json that is about to be replaced tells: it may outlive its runs."""
        path = self.folder(experiment) / RESULTS
        there = experiment.trains and path.exists()
        return self._read(experiment, path, MOVED) if there else {}

    def _read(self, experiment: Experiment, path: Path, way_out: str) -> Found:
        found = read_file(path, way_out)
        if (regime := regime_of([path])) != self.regime:
            raise RunError(f"{path} is of regime {regime}, not {self.regime}; {way_out}")
        require_fit(experiment, self.places(experiment), found, path, way_out)
        return found

    def _here(self, config: Config) -> Config:
        """A run with its data where it lies on this machine, wherever it was begun."""
        root = self.root or config.data.root or os.environ.get("FEDTINY_DATA")
        data = replace(config.data, root=str(root) if root else None)
        return replace(config, data=data, workers=self.workers or config.workers)
