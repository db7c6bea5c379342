"""Many runs in one call, each in a folder of its own."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from rich.console import Console

from fedtiny.api.result import Result, load_run
from fedtiny.config import Config
from fedtiny.config.flat import flat
from fedtiny.data import DataSet
from fedtiny.errors import ConfigError, DataError, RunError
from fedtiny.experiments.finished import settings_of
from fedtiny.experiments.places import Cell
from fedtiny.experiments.runner import Runner, notices
from fedtiny.extras import require
from fedtiny.files import digest_of, plain
from fedtiny.report.write import write_report
from fedtiny.runs import reading
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.inputs import check_config, check_inputs, model_digest, naming_own
from fedtiny.runs.opening import stem_of
from fedtiny.runs.split import checksum_of

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

FIGURES = ("accuracy", "loss", "rounds", "bytes_down", "bytes_up", "model_bytes")
"""What a table shows of a finished run beside its settings and density."""


@dataclass(frozen=True, eq=False, repr=False)
class SweepResult(Sequence[Result]):
    """What came of many runs: a sequence of the finished ones, in the order of their configs.

    Example:
        >>> tiny = {"model": "small", "width": 2, "rounds": 1, "workers": 1}
        >>> configs = [fedtiny.Config(density=density, **tiny) for density in (0.5, 0.2)]
        >>> results = fedtiny.sweep(configs, out="runs/table")
        1/2 fedtiny-digits-small-d0.5-s0-...
        >>> len(results), results[0].config.density
        (2, 0.5)
        >>> results.frame()["density"].tolist()
        [0.5, 0.2]
    """

    results: tuple[Result, ...]
    """The finished runs."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why each run that did not finish failed, by the name of its folder."""

    @overload
    def __getitem__(self, place: int) -> Result: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Result]: ...

    def __getitem__(self, place: int | slice) -> Result | Sequence[Result]:
        return self.results[place]

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        lost = f", {len(self.failed)} failed" if self.failed else ""
        count = "1 run" if len(self) == 1 else f"{len(self)} runs"
        shown = "".join(f"\n  {result!r}" for result in self.results)
        return f"<SweepResult: {count}{lost}>{shown}"

    def frame(self) -> "DataFrame":
        """The finished runs as a pandas DataFrame.

        Returns:
            A row for each run, by the name of its folder. Columns are `method`, the `density` asked
            for, `density_kept` by the model, `seed`, other settings in which the runs differ, and
            what came of them: accuracy, loss, rounds, bytes down and up, and bytes of the model.

        Raises:
            FedTinyError: pandas is not installed.
        """
        pandas = require("pandas", extra="pandas")
        rows = [
            {**_named(result), **settings, **_figures(result)}
            for settings, result in zip(_differing(self.results), self.results, strict=True)
        ]
        names = pandas.Index([result.path.name for result in self.results], name="run")
        frame: DataFrame = pandas.DataFrame(rows, index=names)
        return frame

    def report(self, out: Path | str | None = None) -> Path:
        """Write the report that compares the runs: one HTML page, and its figures beside it.

        Args:
            out: The page; default: report.html in the folder of the sweep.

        Returns:
            The page that was written.
        """
        if not self.results:
            raise RunError("no run is finished, so there is nothing to report")
        folders = {result.path: RunFolder.open(result.path) for result in self.results}
        return write_report(list(folders.values()), None if out is None else Path(out)).page


def sweep(
    configs: Iterable[Config],
    *,
    out: Path | str = "runs/sweep",
    data: DataSet | None = None,
    model: "nn.Module | None" = None,
) -> SweepResult:
    """Run many configs in turn, each in a folder of its own.

    Give the same call again after it was stopped: what is finished is not run again, what was cut
    is resumed. A run that fails is reported, and the others go on.

    Args:
        configs: The settings of each run.
        out: Folder for the run folders, whose names tell settings, data and models of your own
            apart.
        data: A data set of your own, for all runs.
        model: A network of your own, which all runs begin with.

    Returns:
        The finished runs, and why others failed.

    Raises:
        ConfigError: A setting of some run cannot work; nothing is run then.
        DataError: The data of some run are not here.

    Example:
        >>> tiny = {"model": "small", "width": 2, "rounds": 1, "workers": 1}
        >>> configs = [fedtiny.Config(seed=seed, **tiny) for seed in (0, 1)]
        >>> results = fedtiny.sweep(configs, out="runs/seeds")
        1/2 fedtiny-digits-small-d0.05-s0-...
        >>> [result.config.seed for result in results]
        [0, 1]
    """
    check_inputs(data, model)
    contents = _contents(data, model)
    cells = [_cell(config, data, model, contents) for config in configs]
    if not cells:
        raise ConfigError("configs= needs at least one fedtiny.Config")
    console = Console(highlight=False, soft_wrap=True)
    for line in notices(cells):
        console.print(line, markup=False)
    own = {"data": data, "model": model}
    account = Runner(Path(out), console, own=own).run(list(dict.fromkeys(cells)))
    if account.without_data:
        raise DataError(next(iter(account.without_data.values())))
    for line in account.lines():
        console.print(line, markup=False)
    failed = {**account.failed, **account.left_out}
    return SweepResult(tuple(_finished(cells, Path(out), own)), failed)


def _contents(data: DataSet | None, model: "nn.Module | None") -> dict[str, str]:
    """Digests of a data set and a model of one's own, which a config names only."""
    found = {}
    if data is not None:
        found["data"] = checksum_of(data)
        if data.partition is not None:
            indices, owners = data.partition.flat()
            found["partition"] = digest_of({"indices": indices, "owners": owners}, "")
    if model is not None:
        found["model"] = model_digest(model)
    return found


def _cell(
    config: Config,
    data: DataSet | None,
    model: "nn.Module | None",
    contents: Mapping[str, str],
) -> Cell:
    """A run, named after what it is and a digest of what was given: the same in every call."""
    check_config(config)
    config = naming_own(config, data, model)
    usual = settings_of(Config())
    chosen = {k: value for k, value in settings_of(config).items() if usual.get(k) != value}
    told = json.dumps({**plain(chosen), **contents}, sort_keys=True).encode()
    digest = hashlib.blake2b(told, digest_size=4).hexdigest()
    return Cell(config, f"{stem_of(config)}-{digest}")


def _finished(cells: Iterable[Cell], out: Path, own: Mapping[str, Any]) -> Iterator[Result]:
    """The result of every cell that has one; a config that stands twice has it twice."""
    for cell in cells:
        if reading.is_finished(RunFolder(out / cell.name)):
            yield load_run(out / cell.name, **own)


def _differing(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The settings in which these runs differ, of each."""
    every = [flat(result.config) for result in results]
    names = dict.fromkeys(name for settings in every for name in settings)
    apart = [name for name in names if len({repr(own.get(name)) for own in every}) > 1]
    return [{name: own.get(name) for name in apart} for own in every]


def _named(result: Result) -> dict[str, Any]:
    """What every run is told apart by."""
    asked = result.config
    kept = {"density": asked.density, "density_kept": result.density}
    return {"method": asked.method, **kept, "seed": asked.seed}


def _figures(result: Result) -> dict[str, Any]:
    found = reading.result(RunFolder(result.path))
    return {name: found[name] for name in FIGURES}
