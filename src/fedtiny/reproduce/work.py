"""Running the cells of experiments that are not finished yet."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedtiny.compare.execute import check_config, complete, require_same
from fedtiny.compare.grid import Cell
from fedtiny.config import Config, DataConfig
from fedtiny.errors import ConfigError, DataError, FedTinyError, RunError, can_retry
from fedtiny.models.param_spec import Shape
from fedtiny.reproduce.finished import way_anew
from fedtiny.reproduce.slices import Clock, OutOfTimeError, Sliced
from fedtiny.runs.folder import LockedError, RunFolder, read_json
from fedtiny.runs.inputs import load_data
from fedtiny.runs.integrity import IncompleteRunError
from fedtiny.runs.reporter import Reporter

Announce = Callable[[str], Reporter]


@dataclass
class Account:
    """How the work went: what failed, by cell, and which data sets are not here, with reasons.

    `elsewhere` are the cells that another process was working on, `in_vain` those that failed and
    would fail again.
    """

    out_of_time: bool = False
    failed: dict[str, str] = field(default_factory=dict)
    without_data: dict[str, str] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)
    in_vain: set[str] = field(default_factory=set)


def unfinished(cells: Sequence[Cell], folder: Path) -> list[Cell]:
    """The cells that have no result in their folders."""
    return [cell for cell in cells if not _has_result(RunFolder(folder / cell.name))]


def work(
    cells: Sequence[Cell],
    todo: Sequence[Cell],
    folder: Path,
    announce: Announce,
    clock: Clock,
    command: str,
    *,
    keep_models: bool = False,
) -> Account:
    """Run or resume each cell that is to do in turn, until all are finished or the time is over.

    A cell whose data is not here is left out, one that fails or that another process works on is
    told of; the others go on. The first one is begun in any case, so that every slice brings the
    work on. The networks of the cells that are run here are not kept unless asked for: a dense
    VGG11 takes half a gigabyte.
    """
    account = Account()
    _require_same(cells, folder)
    ready = _ready(todo, account)
    for number, cell in enumerate(ready, start=len(cells) - len(todo) + 1):
        place, title = RunFolder(folder / cell.name), f"{number}/{len(cells)} {cell.name}"
        try:
            if cell is not ready[0]:
                clock.check()
            ran = complete(
                cell, place, lambda title: Sliced(announce(title), clock, command), title
            )
        except OutOfTimeError:
            account.out_of_time = True
            break
        except LockedError:
            account.elsewhere.append(cell.name)
        except Exception as error:
            if "FEDTINY_TRACEBACK" in os.environ:
                raise
            account.failed[cell.name] = _reason(error, place)
            if not can_retry(error):
                account.in_vain.add(cell.name)
        else:
            if ran and not keep_models:
                place.model.unlink(missing_ok=True)
    return account


def _require_same(cells: Sequence[Cell], folder: Path) -> None:
    """Refuse at once what is finished with other settings; what is damaged stops nothing."""
    for cell in cells:
        place = RunFolder(folder / cell.name)
        if place.result.exists():
            with suppress(ConfigError):
                require_same(cell, place)


def _has_result(place: RunFolder) -> bool:
    try:
        return bool(read_json(place.result))
    except RunError:
        return False


def _reason(error: Exception, place: RunFolder) -> str:
    """One sentence; of an error that is not meant for a user, its kind too."""
    if isinstance(error, IncompleteRunError):
        return f"{error.trouble}; {way_anew(place)}"
    if not can_retry(error):
        return f"{error}; settings of cells are in the experiment's file"
    if isinstance(error, FedTinyError):
        return str(error)
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _ready(cells: Sequence[Cell], account: Account) -> list[Cell]:
    """The cells that have their data; a setting that cannot work is an error at once."""
    images: dict[DataConfig, tuple[Shape, int] | None] = {}
    ready = []
    for cell in cells:
        data = cell.config.data
        if data not in images:
            images[data] = _images(cell.config, account)
        found = images[data]
        if found is not None:
            check_config(cell.config, *found)
            ready.append(cell)
    return ready


def _images(config: Config, account: Account) -> tuple[Shape, int] | None:
    try:
        data = load_data(config)
    except DataError as error:
        account.without_data[config.data.name] = str(error)
        return None
    return data.shape, len(data.classes)
