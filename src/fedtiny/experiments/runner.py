"""Many runs in turn until time is over: what is finished stays, what was cut goes on."""

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from fedtiny import config as configs
from fedtiny import methods, models
from fedtiny.config import Config, DataConfig
from fedtiny.cost.network import layer_flow, named
from fedtiny.data import DataSet
from fedtiny.errors import ConfigError, DataError, FedTinyError, can_retry, plural
from fedtiny.experiments.finished import note_machine, require_same, this_machine, way_anew
from fedtiny.experiments.places import Cell
from fedtiny.extras import require
from fedtiny.models import ReadsOtherDataError
from fedtiny.models.param_spec import Shape
from fedtiny.process import wants_traceback
from fedtiny.runs import formatting, metrics
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.checkpoint import IncompleteRunError
from fedtiny.runs.folder import LockedError, RunFolder, claimed
from fedtiny.runs.formatting import unused_settings
from fedtiny.runs.inputs import load_data
from fedtiny.runs.metrics import Record
from fedtiny.runs.reading import is_finished
from fedtiny.runs.reporter import Reporter, Silent
from fedtiny.runs.resolve import has_gpu
from fedtiny.runs.runner import resume, run

INTERVAL = 30.0  # seconds after which a run tells where it is, if output goes to a file


class OutOfTimeError(Exception):
    """The slice is over; what was begun goes on from its checkpoint another time."""


class Clock:
    """So many minutes from now, or for ever."""

    def __init__(self, minutes: float | None = None) -> None:
        self.end = None if minutes is None else time.monotonic() + 60 * minutes

    def check(self) -> None:
        """Raise if the time is over."""
        if self.end is not None and time.monotonic() >= self.end:
            raise OutOfTimeError


class CellReporter(Silent):
    """Shows a run in one line, with its round while it goes, and stops it at a checkpoint.

    Where there is no terminal, a run has a line when it starts, one when it ends, and one at
    intervals between. However short a slice is, it brings a run on by a checkpoint. If the command
    is given, the machine that works on a run is noted in its folder.
    """

    def __init__(
        self, console: Console, title: str, clock: Clock, command: str | None = None
    ) -> None:
        self.console = console
        self.title = title
        self.clock = clock
        self.command = command
        self.rounds = 0
        self.checkpoint_every = 1
        self.selecting = False
        self.status = console.status(f"{title}: starts") if console.is_terminal else None
        self.told = time.monotonic()

    def begin(self) -> None:
        """Show the run before anything is loaded."""
        if self.status:
            self.status.start()
        else:
            self.say("starts")

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        self.rounds = assembly.config.rounds
        self.checkpoint_every = assembly.config.checkpoint_every
        self.selecting = not assembly.server.coarse_pruned
        if self.command:
            note_machine(folder, this_machine(self.command))
        if records:
            self.say(f"goes on after round {len(records)} of {self.rounds}")

    def selected(self, selection: dict[str, Any]) -> None:
        if self.selecting:
            self.clock.check()

    def round_done(self, record: Record) -> None:
        done = record["round_number"]
        if self.status:
            self.status.update(f"{self.title}: round {done}/{self.rounds}")
        elif time.monotonic() - self.told >= INTERVAL and done < self.rounds:
            self.say(f"round {done}/{self.rounds}{_accuracy(record)}")
        if done % self.checkpoint_every == 0 and done < self.rounds:
            self.clock.check()

    def finished(self, result: dict[str, Any]) -> None:
        self.say(
            f"accuracy {result['accuracy']:.4f} at density {result['density']:.4f}, "
            f"{result['seconds']:.0f} s"
        )

    def close(self) -> None:
        if self.status:
            self.status.stop()

    def say(self, what: str) -> None:
        """Print a line on the run."""
        self.told = time.monotonic()
        self.console.print(f"{self.title}: {what}", markup=False)


def _accuracy(record: Record) -> str:
    accuracy = metrics.number(record, "accuracy")
    return "" if accuracy is None else f", accuracy {accuracy:.4f}"


@dataclass
class Account:
    """How the work went: what failed, by cell, and which data sets are not here, with reasons.

    `elsewhere` are the cells that another process was working on, `in_vain` those that failed and
    would fail again, `left_out` those whose method trains a network that does not read the data.
    """

    out_of_time: bool = False
    failed: dict[str, str] = field(default_factory=dict)
    without_data: dict[str, str] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)
    in_vain: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """What a user must know of it."""
        held = "left to another process, which was working on it"
        return [
            *(f"failed: {name}: {reason}" for name, reason in self.failed.items()),
            *(f"{held}: {name}" for name in self.elsewhere),
            *(f"left out: {reason}" for reason in dict.fromkeys(self.left_out.values())),
            *(
                f"left out, as the data is not here: {name}: {reason}"
                for name, reason in self.without_data.items()
            ),
        ]


@dataclass(frozen=True)
class Runner:
    """Runs cells in their folders.

    The networks of the cells that are run here are kept only if asked for: a dense VGG11 takes
    half a gigabyte. The machine is noted in a cell's folder with the command, if that is given.
    """

    folder: Path
    console: Console
    clock: Clock = field(default_factory=Clock)
    command: str | None = None
    keep_models: bool = True
    own: Mapping[str, Any] = field(default_factory=dict)
    """A data set and a model of one's own, for all cells."""

    def run(self, cells: Sequence[Cell], todo: Sequence[Cell] | None = None) -> Account:
        """Run or resume each cell that is to do in turn, until all are finished or time is over.

        A cell whose data is not here is left out, one that fails or that another process works on
        is reported; the others go on. The first one is begun in any case, so that every slice
        brings the work on.
        """
        account = Account()
        self._require_same(cells)
        todo = unfinished(cells, self.folder) if todo is None else todo
        ready = usable(todo, account, **self.own)
        if account.left_out and len(account.left_out) == len(cells):
            raise ConfigError(next(iter(account.left_out.values())))
        try:
            for number, cell in enumerate(ready, start=len(cells) - len(todo) + 1):
                if cell is not ready[0]:
                    self.clock.check()
                self._try(cell, f"{number}/{len(cells)} {cell.name}", account)
        except OutOfTimeError:
            account.out_of_time = True
        return account

    def _try(self, cell: Cell, title: str, account: Account) -> None:
        place = RunFolder(self.folder / cell.name)
        reporter = CellReporter(self.console, title, self.clock, self.command)
        reporter.begin()
        try:
            with claimed(self.folder / f".{cell.name}.claim"):  # before anything is loaded
                ran = complete(cell, place, reporter, **self.own)
        except OutOfTimeError:
            raise
        except LockedError:
            account.elsewhere.append(cell.name)
            reporter.say("is left to another process")
        except Exception as error:
            if wants_traceback():
                raise
            account.failed[cell.name] = _reason(error, place)
            reporter.say("fails")
            if not can_retry(error):
                account.in_vain.add(cell.name)
        else:
            if not ran:
                reporter.say("is finished already")
            elif not self.keep_models:
                place.model.unlink(missing_ok=True)
        finally:
            reporter.close()
            _free_gpu()

    def _require_same(self, cells: Sequence[Cell]) -> None:
        """Refuse at once what is finished with other settings; what is damaged stops nothing."""
        for cell in cells:
            place = RunFolder(self.folder / cell.name)
            if place.result.exists():
                with suppress(ConfigError):
                    require_same(cell, place)


def _free_gpu() -> None:
    """Give back the memory that a cell took of a GPU: other processes have cells on it too."""
    gc.collect()
    cuda = require("torch", extra="torch").cuda
    if cuda.is_initialized():
        cuda.empty_cache()


def complete(cell: Cell, folder: RunFolder, reporter: Reporter, **own: Any) -> bool:
    """Bring one cell to its end, from wherever it is; data may lie elsewhere than before.

    A data set and a model of one's own are given as `data` and `model`. Returns whether there was
    anything left to do.
    """
    if folder.config.exists() or folder.result.exists():
        require_same(cell, folder)
    if is_finished(folder):
        return False
    config = cell.config
    if folder.config.exists():
        here: dict[str, Any] = {"root": config.data.root, "workers": config.workers}
        here["device_python"] = config.device.python
        here["device_program"] = config.device.program
        resume(folder.path, reporter=reporter, **here, **own)
    else:
        run(config, out=folder.path, reporter=reporter, **own)
    return True


def unfinished(cells: Sequence[Cell], folder: Path) -> list[Cell]:
    """The cells that have no result in their folders."""
    return [cell for cell in cells if not is_finished(RunFolder(folder / cell.name))]


def usable(
    cells: Sequence[Cell], account: Account, data: DataSet | None = None, model: Any = None
) -> list[Cell]:
    """The cells that have their data; a setting that cannot work is an error at once.

    Of a model of one's own that is found out when it runs. A method whose own network does not
    read the data is left out.
    """
    images: dict[DataConfig, tuple[Shape, int] | None] = {}
    ready = []
    for cell in cells:
        config = configs.resolve(cell.config)
        if config.data not in images:
            try:
                found_data = data or load_data(config)
                images[config.data] = (found_data.input_shape, len(found_data.classes))
            except DataError as error:
                account.without_data[config.data.name] = str(error)
                images[config.data] = None
        found = images[config.data]
        if found is None:
            continue
        try:
            if model is None:
                check_config(config, *found)
            ready.append(cell)
        except ReadsOtherDataError as error:
            if models.kind(config.model).dimensions != len(found[0]):
                raise
            account.left_out[cell.name] = str(error)
    return ready


def check_config(config: Config, shape: Shape, classes: int) -> None:
    """Refuse what a method cannot do with images of this shape; no network takes up memory."""
    try:
        large = named(config, shape, classes)
        method = methods.create(configs.resolve(config))
        method.flow = layer_flow(large, None, method.config)
        resolved = method.resolve(config, lambda: large.profile.parameters)
        if (resolved.model, resolved.parameters) != (config.model, config.parameters):
            models.check_reads(resolved.model, shape, config.method)
            large = named(resolved, shape, classes)
        method.check(large.param_spec)
    except ReadsOtherDataError:
        raise
    except FedTinyError as error:
        raise type(error)(f"method '{config.method}': {error}") from error


def opening(cells: Sequence[Cell], todo: Sequence[Cell], folder: Path) -> str:
    """What is about to be done, in a line that can be said at once."""
    done = len(cells) - len(todo)
    told = f"{len(todo)} to run, {done} finished" if done else f"{len(todo)} to run"
    return f"{plural(len(cells), 'cell')}: {told if todo else 'all finished'}, in {folder}"


def notices(cells: Sequence[Cell]) -> list[str]:
    """What a user should know before these cells are run."""
    slow = any(cell.config.simulator == "gpu" for cell in cells) and not has_gpu()
    return [
        *([formatting.NO_GPU] if slow else []),
        *unused_settings(*(cell.config for cell in cells)),
    ]


def _reason(error: Exception, place: RunFolder) -> str:
    """One sentence; of an error that is not meant for a user, its kind too."""
    if isinstance(error, IncompleteRunError):
        return f"{error.trouble}; {way_anew(place)}"
    if not can_retry(error):
        return f"{error}; change the settings that it was given"
    if isinstance(error, FedTinyError):
        return str(error)
    return f"{type(error).__name__}: {error}".partition("\n")[0]
