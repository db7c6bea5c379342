"""The commands that repeat a run or go on with it."""

import shlex
from typing import Any

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.config.flat import flat, nested
from fedtiny.report.run import Run
from fedtiny.runs.folder import quoted, way_on
from fedtiny.runs.inputs import as_arguments, own_inputs

NO_MATTER = ("workers", "gpu.cards", "gpu.lanes")
"""What changes how long a run takes, but not what it computes."""


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
    for names in (("data.name",), ("rounds",), tuple(asked)):  # presets follow from the first two
        preset = flat(configs.resolve(configs.from_dict(nested(chosen))))
        chosen |= {k: asked[k] for k in names if k in asked and preset.get(k) != asked[k]}
    return [word for name, value in chosen.items() for word in _flag(name, value)]


def _flag(name: str, value: Any) -> list[str]:
    *sections, key = name.replace("_", "-").split(".")
    if isinstance(value, bool):
        return ["--" + ".".join([*sections, key if value else f"no-{key}"])]
    return ["--" + ".".join([*sections, key]), str(value)]
