"""What is known of finished runs: from their folders, or from result files alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedtiny import config as configs
from fedtiny.compare.execute import require_same
from fedtiny.compare.grid import Cell
from fedtiny.compare.measured import costs, measure
from fedtiny.compare.settings import HOW_IT_IS_COMPUTED, differing
from fedtiny.config import Config
from fedtiny.config.flat import Flat, flat
from fedtiny.cost.images import IMAGES
from fedtiny.cost.workload import PAPER_SAMPLES
from fedtiny.errors import ConfigError, RunError
from fedtiny.reproduce import machine
from fedtiny.reproduce.experiment import Experiment
from fedtiny.reproduce.machine import Machine
from fedtiny.reproduce.places import Place
from fedtiny.reproduce.quantities import QUANTITIES, Numbers
from fedtiny.runs.folder import RunFolder, quoted
from fedtiny.runs.inputs import load_data

Found = dict[str, list["Finished"]]
"""Finished runs by their name but for the seed."""
Damaged = dict[str, str]
"""Why a finished run cannot be read and what to do, by its name."""


@dataclass(frozen=True)
class Finished:
    """A finished run in figures, with the settings that make it and where it was made."""

    name: str
    seed: int
    settings: Flat
    numbers: Numbers
    machines: tuple[Machine, ...] = ()


def settings_of(config: Config) -> Flat:
    """All that must be set to make a run again; where its data lies is nobody's business."""
    return {name: value for name, value in flat(config).items() if name not in HOW_IT_IS_COMPUTED}


def in_folders(places: Iterable[Place], cells: Path) -> tuple[Found, Damaged]:
    """Every finished run of these places, of whatever seed, but for those that are damaged."""
    found: Found = {}
    damaged: Damaged = {}
    for place in places:
        runs = found[place.stem] = []
        for seed in sorted(_seeds(place, cells)):
            cell = place.cell(seed)
            folder = RunFolder(cells / cell.name)
            try:
                configs.load(folder.config)
                run = _from_folder(cell, folder)
            except (ConfigError, RunError) as error:
                damaged[cell.name] = f"{error}; {way_anew(folder)}"
            else:
                require_same(cell, folder)
                runs.append(run)
    return found, damaged


def way_anew(folder: RunFolder) -> str:
    """What to do about a run that can neither be read nor go on."""
    return f"delete the folder {quoted(folder.path)}, and give the command again"


def by_cost_model(places: Iterable[Place]) -> Found:
    """For an experiment that trains nothing."""
    return {place.stem: [_costed(place)] for place in places}


def merged(places: Iterable[Place], *sources: Mapping[str, Sequence[Finished]]) -> Found:
    """Finished runs from folders and files together; the first source of a run counts."""
    found: Found = {}
    for place in places:
        by_seed: dict[int, Finished] = {}
        for source in sources:
            for run in source.get(place.stem, ()):
                by_seed.setdefault(run.seed, run)
        found[place.stem] = [by_seed[seed] for seed in sorted(by_seed)]
    return found


def require_settings(place: Place, run: Finished, where: Path, way_out: str) -> None:
    """A result of another experiment must not pass for this one's.

    A setting that is younger than the result was as usual.
    """
    usual = settings_of(Config())
    unlike = differing(settings_of(place.cell(run.seed).config), usual | run.settings)
    if unlike:
        raise RunError(
            f"{where} holds '{run.name}' with other settings ({', '.join(unlike)}) than the "
            f"experiment has today; {way_out}"
        )


def require_numbers(experiment: Experiment, run: Finished, where: Path, way_out: str) -> None:
    """A result must tell all that the experiment shows of it."""
    for name in experiment.quantities:
        try:
            float(QUANTITIES[name].of(run.numbers))
        except (KeyError, TypeError, ArithmeticError) as error:
            raise RunError(
                f"{where} does not tell the {name} of '{run.name}'; {way_out}"
            ) from error


def _seeds(place: Place, cells: Path) -> list[int]:
    """Which seeds of a place have a result; names hold no character that means more than itself."""
    prefix = f"{place.stem}-s"
    names = (path.parent.name for path in cells.glob(f"{prefix}*/result.json"))
    return [int(name.removeprefix(prefix)) for name in names if name.removeprefix(prefix).isdigit()]


def _from_folder(cell: Cell, folder: RunFolder) -> Finished:
    values: dict[str, Any] = asdict(measure(cell.config, folder))
    numbers = {**values.pop("costs"), **values}
    machines = tuple(machine.noted(folder))
    return Finished(cell.name, cell.config.seed, settings_of(cell.config), numbers, machines)


def _costed(place: Place) -> Finished:
    config = place.config
    if config.data.name in IMAGES and config.data.name != "digits":
        shape, classes = IMAGES[config.data.name]
        samples = PAPER_SAMPLES
    else:
        data = load_data(config)
        shape, classes = data.shape, len(data.classes)
        samples = len(data.train) // config.fleet.devices
    numbers = costs(config, shape=shape, classes=classes, samples=samples)
    return Finished(place.cell(0).name, 0, settings_of(config), numbers)
