"""Running what is missing of a comparison."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedtiny import config as configs
from fedtiny import methods
from fedtiny.compare.grid import Cell
from fedtiny.compare.settings import unlike
from fedtiny.config import Config
from fedtiny.cost.network import named
from fedtiny.data import DataSet
from fedtiny.errors import FedTinyError, RunError
from fedtiny.models.param_spec import Shape
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.inputs import load_data
from fedtiny.runs.reporter import Reporter
from fedtiny.runs.runner import resume, run

Announce = Callable[[str], Reporter]


def check(cells: Sequence[Cell]) -> None:
    """Refuse, before anything runs, what a method cannot do."""
    loaded: dict[tuple[object, ...], DataSet] = {}
    for cell in cells:
        config = configs.resolve(cell.config)
        kind = (config.data, config.model)
        if kind not in loaded:
            loaded[kind] = load_data(config)
        check_config(config, loaded[kind].shape, len(loaded[kind].classes))


def check_config(config: Config, shape: Shape, classes: int) -> None:
    """Refuse what a method cannot do with images of this shape; no network takes up memory."""
    try:
        large = named(config, shape, classes)
        method = methods.create(configs.resolve(config))
        resolved = method.resolve(config, lambda: large.profile.parameters)
        replaced = (resolved.model, resolved.parameters) != (config.model, config.parameters)
        method.check((named(resolved, shape, classes) if replaced else large).param_spec)
    except FedTinyError as error:
        raise type(error)(f"method '{config.method}': {error}") from error


def execute(cells: Sequence[Cell], out: Path, announce: Announce) -> dict[Cell, RunFolder]:
    """Run, resume or find every cell; one that is finished is not touched."""
    folders = {}
    for number, cell in enumerate(cells, start=1):
        folder = folders[cell] = RunFolder(out / cell.name)
        complete(cell, folder, announce, f"{number}/{len(cells)} {cell.name}")
    return folders


def complete(cell: Cell, folder: RunFolder, announce: Announce, title: str) -> bool:
    """Bring one cell to its end, from wherever it is; data may lie elsewhere than before.

    Gives whether there was anything left to do.
    """
    if folder.config.exists() or folder.result.exists():
        require_same(cell, folder)
    if folder.result.exists():
        return False
    config, reporter = cell.config, announce(title)
    if folder.config.exists():
        root, workers = config.data.root, config.workers
        resume(folder.path, root=root, workers=workers, reporter=reporter)
    else:
        run(config, out=folder.path, reporter=reporter)
    return True


def require_same(cell: Cell, folder: RunFolder) -> None:
    """A folder from another comparison must not pass for this one's."""
    found = unlike(cell.config, configs.load(folder.config))
    if found:
        raise RunError(
            f"{folder.path} holds a run with other settings ({', '.join(found)}); choose "
            "another --out"
        )
