"""The plain data of a run folder, which may come from anywhere: each field's type and range.

A field that is unknown is passed over; one that is missing, of another type or out of its range
makes its file a damaged one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.data.images import Layout
from fedtiny.errors import RunError
from fedtiny.files import read_json
from fedtiny.runs.folder import RunFolder

Plain = dict[str, Any]
Check = Callable[[Any], bool]

MAX_REAL = 1e40  # of a loss: float32 ends below
MAX_COUNT = 1 << 63
MAX_ROUNDS = 1 << 31
MACHINES = "machines.json"


def integer(most: int = MAX_COUNT) -> Check:
    """A whole number that is not negative."""
    return lambda value: type(value) is int and 0 <= value < most


def real(low: float = -MAX_REAL, high: float = MAX_REAL) -> Check:
    """A number within a range."""
    return lambda value: type(value) in (int, float) and low <= value <= high


def maybe(check: Check) -> Check:
    """Such a value, or none."""
    return lambda value: value is None or check(value)


def listed(check: Check) -> Check:
    """A list of such values."""
    return lambda value: isinstance(value, list) and all(map(check, value))


def table(check: Check) -> Check:
    """A table of such values, whatever their names."""
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def is_device(name: str) -> bool:
    """Whether this is the number of a device, as a key of plain data.

    >>> [is_device(name) for name in ("12", "-1", "x", "9" * 5000)]
    [True, False, False, False]
    """
    return name.isascii() and name.isdigit() and len(name) < 10


def by_device(check: Check) -> Check:
    """A table of such values by the number of a device."""
    return lambda value: table(check)(value) and all(map(is_device, value))


def fields(needed: Mapping[str, Check], others: Mapping[str, Check] | None = None) -> Check:
    """A table that has all fields that are needed, and perhaps others."""
    known = {**needed, **(others or {})}

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or not needed.keys() <= value.keys():
            return False
        return all(check(value[name]) for name, check in known.items() if name in value)

    return check


def is_text(value: Any) -> bool:
    """Whether this is text."""
    return isinstance(value, str)


def is_flag(value: Any) -> bool:
    """Whether this is true or false."""
    return isinstance(value, bool)


def is_table(value: Any) -> bool:
    """Whether this is a table, of whatever values."""
    return isinstance(value, dict)


def _is_choice(value: Any) -> bool:
    """Candidates with their losses, of which one that has a loss is chosen."""
    lists = [value[name] for name in ("losses", "densities", "kinds") if name in value]
    count, chosen = len(lists[0]), value["chosen"]
    if any(len(one) != count for one in lists) or chosen >= count:
        return False
    return value["losses"][chosen] is not None and ("tied" not in value or "rule" in value)


COUNT, SHARE, REAL, SIZE = integer(), real(0, 1), real(), real(0)
LOSS = maybe(REAL)
FAILED = by_device(is_text)
EXCHANGE = fields({"ring": listed(COUNT), "neighbors": COUNT, "needed": COUNT})

MEASURED: dict[str, Check] = {
    "accuracy": maybe(SHARE),
    "loss": LOSS,
    "density": SHARE,
    **dict.fromkeys(("bytes_down", "bytes_up", "mask_change", "memory_paper"), COUNT),
    **dict.fromkeys(("seconds", "flops", "flops_plain"), SIZE),
    "answered": listed(COUNT),
    "failed": FAILED,
    "counted": is_flag,
}
NUMBER = {"round_number": lambda value: integer(MAX_ROUNDS)(value) and value > 0}
RECORD = fields(
    NUMBER,
    {
        **MEASURED,
        **dict.fromkeys(("train_loss", "epsilon", "clip"), LOSS),
        "effective_density": maybe(SHARE),
        **dict.fromkeys(("device_accuracy_mean", "device_accuracy_worst"), maybe(SHARE)),
        "clipped": listed(is_text),
        "device_accuracies": by_device(SHARE),
        "densities": table(SHARE),
        "effective_densities": maybe(table(maybe(SHARE))),
        **dict.fromkeys(("adjusted", "grown", "dropped"), table(COUNT)),
        **dict.fromkeys(("bytes_evaluation", "memory_device"), COUNT),
        "memory_arena": maybe(COUNT),
        "bounded": FAILED,
        "exchanges": listed(EXCHANGE),
        "rejected": fields({"why": is_text, "without": listed(COUNT), "then": is_text}),
    },
)
"""A line of metrics.jsonl, as far as it tells."""
WHOLE_RECORD = fields({**NUMBER, **MEASURED})
"""Such a line with all that a run needs to go on from."""
BEST = fields(
    {**NUMBER, "accuracy": maybe(SHARE), "density": SHARE, "kept_weights": COUNT},
    {"loss": LOSS, "by": is_text},
)
PRIVACY = fields(
    {"epsilon": LOSS, "delta": SHARE, "noise_multiplier": SIZE, "releases": COUNT},
    dict.fromkeys(("sampling", "accountant", "noise"), is_text),
)
SECURE = fields({"neighbors": COUNT, "needed": COUNT}, {})
RESULT = fields(
    {
        **dict.fromkeys(("accuracy", "density"), SHARE),
        "loss": LOSS,
        **dict.fromkeys(("kept_weights", "prunable_weights", "model_bytes"), COUNT),
        **dict.fromkeys(("rounds", "bytes_down", "bytes_up"), COUNT),
        "seconds": SIZE,
    },
    {
        "effective_density": maybe(SHARE),
        "best": BEST,
        "privacy": PRIVACY,
        "secure_aggregation": SECURE,
        **dict.fromkeys(("gpu_memory", "lanes", "ranks"), maybe(COUNT)),
        **dict.fromkeys(("cards", "kernels"), listed(is_text)),
    },
)
CHOICE = fields(
    {"chosen": COUNT, "losses": listed(LOSS), "densities": listed(SHARE)},
    {
        "layers": listed(is_text),
        "layer_counts": listed(listed(COUNT)),
        "kinds": listed(is_text),
        "tied": listed(COUNT),
        "tolerance": SIZE,
        "rule": is_text,
    },
)
SELECTION = fields(
    {},
    {
        "selection": lambda value: CHOICE(value) and _is_choice(value),
        **dict.fromkeys(("bytes_down", "bytes_up"), COUNT),
        **dict.fromkeys(("failed", "bounded"), FAILED),
        "exchanges": listed(EXCHANGE),
    },
)
ABOUT = fields(
    {
        "classes": listed(is_text),
        "shape": listed(COUNT),
        "layers": table(COUNT),
        "dense": table(SIZE),
        "server": table(COUNT),
        "layout": lambda value: value in get_args(Layout),
    },
    {"weights": table(is_text)},
)
EVALUATION = fields({"confusion": listed(listed(COUNT))})
VERSIONS = table(is_text)
ASSIGNMENT = fields({"node": integer(1 << 64), "name": is_text, "samples": COUNT})
NODES = fields(
    {"devices": by_device(ASSIGNMENT)}, {"turned_away": table(is_text), "bytes_joining": COUNT}
)
MACHINE_LIST = fields({"machines": listed(is_table)})
TRACKED = table(fields({"key": is_text, "rounds": integer(MAX_ROUNDS)}))


def config(folder: RunFolder) -> Config:
    """The config of a run, to read; what of it may be started is another question."""
    folder.require_format()
    return configs.load(folder.config, programs=True)


def result(folder: RunFolder) -> Plain:
    """What a finished run came to."""
    return plain(folder.result, RESULT)


def selection(folder: RunFolder) -> Plain:
    """What coarse pruning chose, with the bytes it took; empty if it asked nobody."""
    found = plain(folder.selection, SELECTION)
    if found and not {"bytes_down", "bytes_up"} <= found.keys():
        raise RunError(f"{folder.selection} is damaged")
    return found


def evaluation(folder: RunFolder) -> Plain:
    """What the final model took the images of the test set for."""
    found = plain(folder.evaluation, EVALUATION)
    rows = found["confusion"]
    if not rows or any(len(row) != len(rows) for row in rows):
        raise RunError(f"{folder.evaluation} is damaged: its confusion matrix is not square")
    return found


def about(folder: RunFolder) -> Plain:
    """What cannot be told from the config."""
    return plain(folder.about, ABOUT)


def versions(folder: RunFolder) -> Plain:
    """What computed."""
    return plain(folder.versions, VERSIONS)


def assignments(folder: RunFolder) -> dict[int, Plain]:
    """Who plays which device, if the devices are real."""
    if not folder.nodes.exists():
        return {}
    found = plain(folder.nodes, NODES)["devices"]
    return {
        int(name): {key: own[key] for key in ("node", "name", "samples")}
        for name, own in found.items()
    }


def machines(folder: RunFolder) -> tuple[Plain, ...]:
    """The machines that worked on a run, in order."""
    path = folder.path / MACHINES
    return tuple(plain(path, MACHINE_LIST)["machines"]) if path.exists() else ()


def is_finished(folder: RunFolder) -> bool:
    """Whether a run has a result that can be read."""
    try:
        return bool(result(folder))
    except RunError:
        return False


def plain(path: Path, check: Check) -> Plain:
    """A file of plain data whose fields are what they should be."""
    found = read_json(path)
    if not check(found):
        raise RunError(f"{path} is damaged: a value in it is missing, of another type or too large")
    return found
