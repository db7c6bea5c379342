"""What a run folder holds, read without trust; what it lacks is said, not fatal."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.errors import RunError
from fedtiny.files import read_json
from fedtiny.runs import metrics
from fedtiny.runs.folder import RunFolder, way_on
from fedtiny.runs.metrics import Record
from fedtiny.runs.split import load_split

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Run:
    """A run, finished or not. Parts that the folder lacks are empty, and `missing` says so."""

    folder: RunFolder
    config: Config
    records: list[Record]
    result: dict[str, Any]
    selection: dict[str, Any]
    about: dict[str, Any]
    versions: dict[str, Any]
    table: NDArray[np.int64] | None
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.path.resolve().name

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return bool(self.result)

    @property
    def outcome(self) -> dict[str, Any]:
        """What it has reached: the result, or else the last round."""
        return self.result or (self.records[-1] if self.records else {})


def open_runs(paths: list[Path]) -> list[RunFolder]:
    """The run folders among these; a folder that holds run folders stands for all of them."""
    if not paths:
        raise RunError("name a run folder: fedtiny report DIR")
    found: dict[Path, RunFolder] = {}
    for path in paths:
        inner = [] if RunFolder(path).config.is_file() else sorted(path.glob("*/config.toml"))
        for own in [file.parent for file in inner] or [path]:
            found.setdefault(own.resolve(), RunFolder.open(own))
    return list(found.values())


def read(folder: RunFolder) -> Run:
    """Everything that the folder holds."""
    missing: list[str] = []
    config = configs.load(folder.config)
    none: list[Record] = []
    records = _tried(lambda: metrics.read(folder), none, missing)
    files = (folder.result, folder.selection, folder.about, folder.versions)
    result, selection, about, versions = (_json(file, missing) for file in files)
    table = None
    if folder.partition.exists():
        table = _tried(lambda: load_split(folder).table, None, missing)
    missing += _gaps(folder, config, records, result, about)
    return Run(folder, config, records, result, selection, about, versions, table, tuple(missing))


def _json(path: Path, missing: list[str]) -> dict[str, Any]:
    return _tried(lambda: read_json(path), {}, missing) if path.exists() else {}


def _tried(load: Callable[[], T], otherwise: T, missing: list[str]) -> T:
    try:
        return load()
    except RunError as error:
        missing.append(f"{error}; what it would show is left out.")
        return otherwise


def _gaps(
    folder: RunFolder,
    config: Config,
    records: list[Record],
    result: dict[str, Any],
    about: dict[str, Any],
) -> list[str]:
    gaps = []
    if not result:
        done = f"{len(records)} of {config.rounds} rounds"
        gaps.append(f"The run is not finished ({done}); go on with: {way_on(folder)}")
    files = (folder.partition, folder.selection, folder.metrics, folder.versions)
    gaps += [
        f"{file.name} is not there (yet); what it would show is left out."
        for file in files
        if not file.exists()
    ]
    if not about:
        gaps.append(
            "about.json is not there (runs of older versions have none): names of classes and "
            "the costs of a dense run are not known."
        )
    if any("densities" not in record for record in records):
        gaps.append("Some rounds do not tell the density of each layer.")
    if any(record.get("adjusted") and "grown" not in record for record in records):
        gaps.append("What adjustments grew and dropped was not recorded by the version that ran.")
    return gaps


def number(values: Any, key: str) -> float | None:
    """A finite number out of plain data, or nothing."""
    value = values.get(key) if isinstance(values, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def numbers(values: Any, key: str) -> dict[str, float]:
    """The finite numbers of a table within plain data, by name."""
    table = values.get(key) if isinstance(values, dict) else None
    if not isinstance(table, dict):
        return {}
    found = {str(name): number(table, name) for name in table}
    return {name: value for name, value in found.items() if value is not None}


def strings(values: Any, key: str) -> list[str]:
    """The texts of a list within plain data."""
    listed = values.get(key) if isinstance(values, dict) else None
    return [str(item) for item in listed] if isinstance(listed, list) else []
