"""What a run folder holds, read without trust, and the commands that repeat the run.

What the folder lacks is said, not fatal.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.config.flat import flat, nested
from fedtiny.drawing import palette
from fedtiny.errors import RunError, plural
from fedtiny.experiments.quantities import label
from fedtiny.runs import metrics, reading
from fedtiny.runs.folder import RunFolder, quoted, way_on
from fedtiny.runs.inputs import as_arguments, own_inputs
from fedtiny.runs.metrics import Record
from fedtiny.runs.split import load_split

NO_MATTER = ("workers", "gpu.cards", "gpu.lanes")
"""What changes how long a run takes, but not what it computes."""
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
    confusion: NDArray[np.int64] | None = None
    """Samples of the test set by true class (rows) and predicted class, of the final model."""
    packed_bytes: int | None = None
    """The size of the model: that of its packed file."""
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.path.resolve().name

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return bool(self.result)

    @property
    def color(self) -> str:
        """That of its method, in every figure."""
        return palette.method(label(self.config.method))

    def class_names(self, count: int) -> list[str]:
        """As the data set calls its classes, or numbers."""
        known = metrics.strings(self.about, "classes")
        return known if len(known) == count else [str(number) for number in range(count)]

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
            folder = RunFolder.open(own)
            found.setdefault(own.resolve(), folder)
    return list(found.values())


def read(folder: RunFolder) -> Run:
    """Everything that the folder holds."""
    missing: list[str] = []

    def tried(load: Callable[[], T], otherwise: T) -> T:
        try:
            return load()
        except RunError as error:
            missing.append(f"{error}; what it would show is left out.")
            return otherwise

    def plain(path: Path, load: Callable[[RunFolder], dict[str, Any]]) -> dict[str, Any]:
        return tried(lambda: load(folder), {}) if path.exists() else {}

    run = Run(
        folder,
        reading.config(folder),
        tried(lambda: metrics.read(folder), []),
        plain(folder.result, reading.result),
        plain(folder.selection, reading.selection),
        plain(folder.about, reading.about),
        plain(folder.versions, reading.versions),
        tried(lambda: load_split(folder).table, None) if folder.partition.exists() else None,
        tried(lambda: _confusion(folder), None) if folder.evaluation.exists() else None,
        _packed_bytes(folder),
    )
    return replace(run, missing=(*missing, *_gaps(run)))


def _confusion(folder: RunFolder) -> NDArray[np.int64]:
    return np.array(reading.evaluation(folder)["confusion"], dtype=np.int64)


def _packed_bytes(folder: RunFolder) -> int | None:
    try:
        return folder.packed.stat().st_size
    except OSError:
        return None


def _gaps(run: Run) -> list[str]:
    """What a run lacks that is not finished, or has lost a file."""
    folder, gaps = run.folder, []
    if not run.finished:
        done = f"{len(run.records)} of {plural(run.config.rounds or 0, 'round')}"
        gaps.append(f"The run is not finished ({done}); go on with: {way_on(folder)}")
    files = (folder.partition, folder.selection, folder.metrics, folder.versions)
    gaps += [
        f"{file.name} is not there (yet); what it would show is left out."
        for file in files
        if not file.exists()
    ]
    if not run.about:
        gaps.append(
            "about.json is not there: names of classes and the costs of a dense run are not known."
        )
    if run.finished and not folder.evaluation.exists() and not folder.nodes.exists():
        gaps.append(
            "evaluation.json is not there, so accuracy by class is not known; measure it with: "
            f"{way_on(folder)}"
        )
    return gaps


def commands(run: Run) -> list[tuple[str, str]]:
    """Each with what it is for."""
    folder, config = run.folder, run.config
    known = [("Show it in the terminal", f"fedtiny inspect {quoted(folder.path)}")]
    if not run.finished:
        known.insert(0, ("Go on with it", way_on(folder)))
    own = own_inputs(config)
    if own:
        config_file = f"fedtiny.config.load(Path({str(folder.config)!r}))"
        call = f"fedtiny.run({config_file}, {as_arguments(own)})"
        return [(f"Run it again (from Python, with your own {' and '.join(own)})", call), *known]
    again = f"fedtiny run {quoted(folder.config)} --out NEW_FOLDER"
    return [
        ("Run it again, to the same bits on the same kind of machine", again),
        ("The same, without the config file", shlex.join(["fedtiny", "run", *flags(config)])),
        *known,
    ]


def flags(config: Config) -> list[str]:
    """The flags of `fedtiny run` that ask for this config, without what presets say anyway."""
    asked = {name: value for name, value in flat(config).items() if name not in NO_MATTER}
    chosen: dict[str, Any] = {}
    for names in (("data.name", "method"), ("rounds",), tuple(asked)):  # presets follow from these
        preset = flat(configs.resolve(configs.from_dict(nested(chosen))))
        chosen |= {k: asked[k] for k in names if k in asked and preset.get(k) != asked[k]}
    return [word for name, value in chosen.items() for word in _flag(name, value)]


def _flag(name: str, value: Any) -> list[str]:
    *sections, key = name.replace("_", "-").split(".")
    if isinstance(value, bool):
        return ["--" + ".".join([*sections, key if value else f"no-{key}"])]
    return ["--" + ".".join([*sections, key]), str(value)]
