"""Running what is missing of a comparison."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedtiny import config as configs
from fedtiny import methods, models
from fedtiny.compare.grid import Cell
from fedtiny.errors import FedTinyError, RunError
from fedtiny.runs.assembly import build_model, load_data, parameters
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reporter import Reporter
from fedtiny.runs.runner import resume, run
from fedtiny.runs.settle import settled

Announce = Callable[[str], Reporter]


def check(cells: Sequence[Cell]) -> None:
    """Refuse, before anything runs, what a method cannot do."""
    first = configs.resolve(cells[0].config)
    data = load_data(first)
    anatomy = models.dissect(build_model(first, data), data.shape)
    for cell in cells:
        try:
            method = methods.create(configs.resolve(cell.config))
            settled_config = method.settle(method.config, lambda: parameters(first, data))
            if settled_config.parameters != method.config.parameters:
                build_model(settled_config, data)
            else:
                method.check(anatomy)
        except FedTinyError as error:
            raise type(error)(f"method '{cell.config.method}': {error}") from error


def execute(cells: Sequence[Cell], out: Path, announce: Announce) -> dict[Cell, RunFolder]:
    """Run, resume or find every cell; one that is finished is not touched."""
    folders = {}
    for number, cell in enumerate(cells, start=1):
        folder = RunFolder(out / cell.name)
        folders[cell] = folder
        if folder.result.exists():
            _require_same(cell, folder)
            continue
        reporter = announce(f"{number}/{len(cells)} {cell.name}")
        if folder.config.exists():
            _require_same(cell, folder)
            resume(folder.path, reporter=reporter)
        else:
            run(cell.config, out=folder.path, reporter=reporter)
    return folders


def _require_same(cell: Cell, folder: RunFolder) -> None:
    """A folder from another comparison must not pass for this one's."""
    wanted, there = settled(cell.config, None, None), configs.load(folder.config)
    differing = _differences(configs.to_dict(wanted), configs.to_dict(there))
    if differing:
        raise RunError(
            f"{folder.path} holds a run with other settings ({', '.join(differing)}); choose "
            "another --out"
        )


def _differences(one: dict[str, object], other: dict[str, object]) -> list[str]:
    keys = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    return [key for key in keys if key != "workers"]
