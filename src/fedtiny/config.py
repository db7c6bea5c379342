"""All settings of a run. A value of None is filled in from the data set's preset."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import tomli_w

from fedtiny.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how images are prepared."""

    name: str = "digits"
    """Data set: see `fedtiny list datasets`; `folder` reads a folder of images by class."""
    root: str | None = None
    """Folder that holds the data; default: the environment variable FEDTINY_DATA."""
    limit_train: int | None = None
    """Use only so many training images, for a quick try."""
    limit_test: int | None = None
    """Use only so many test images, for a quick try."""
    augment: bool = True
    """Random crops, and mirror images where the class allows it."""
    cutout: int = 0
    """Side of the square that Cutout blanks; 0 is off."""
    n_shots: int = 5
    """Images per class of the public one-shot set that the server holds (D_s)."""


@dataclass(frozen=True)
class FleetConfig:
    """The devices, and who takes part in a round."""

    devices: int = 10
    """Number of devices: K in the paper."""
    partition: Literal["dirichlet", "iid", "shards"] = "dirichlet"
    """How the training set is spread over the devices."""
    alpha: float = 0.5
    """Dirichlet concentration: small is strongly non-iid."""
    shards_per_device: int = 2
    """Label-sorted pieces a device gets, for the partition `shards`."""
    min_samples: int = 10
    """Fewest samples of a device."""
    fraction: float = 1.0
    """Share of the devices that is asked in a round."""
    min_replies: int = 1
    """Fewest replies that make a round count."""
    fail_rate: float = 0.0
    """Simulated: chance that a device is out of reach in a round."""
    late_rate: float = 0.0
    """Simulated: chance that a device's reply comes too late to count."""
    wire: Literal["count", "encode"] = "count"
    """Simulated: count the bytes of every message, or really encode and decode it."""


@dataclass(frozen=True)
class TrainConfig:
    """Local training."""

    local_epochs: int | None = None
    """Epochs on a device in a round."""
    batch_size: int | None = None
    """Samples in a mini-batch."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """adam: lr 1e-3, decay 1e-4. sgd: lr 0.05, momentum 0.9, decay 5e-4. Fresh every round."""
    lr: float | None = None
    """Learning rate, where the optimizer's own is not wanted."""
    pretrain_epochs: int = 3
    """Epochs on the public one-shot set before anything is pruned."""


@dataclass(frozen=True)
class SelectionConfig:
    """Coarse pruning: how the first mask is chosen (Alg. 1)."""

    kind: Literal["adaptive_bn", "vanilla", "none"] = "adaptive_bn"
    """vanilla compares candidates without new batch-norm statistics; none prunes uniformly."""
    pool_size: int | Literal["auto"] | None = None
    """Number of candidates C; auto is 0.1 / density."""
    development_ratio: float = 0.1
    """Share of a device's data that measures statistics and losses."""
    batch_size: int = 128
    """Largest batch of the measurement."""
    passes: int = 1
    """1 averages over the batches; more passes use a running mean of momentum 0.1."""
    variance: Literal["mean", "pooled"] = "mean"
    """Average the devices' variances, or pool them exactly (law of total variance)."""


@dataclass(frozen=True)
class PruningConfig:
    """Progressive pruning: how the mask is adjusted during training (Alg. 2)."""

    progressive: bool = True
    """Adjust the mask at all."""
    granularity: Literal["layer", "block", "entire"] = "block"
    """What is adjusted at a time."""
    order: Literal["backward", "forward"] = "backward"
    """From the output side or from the input side."""
    delta_r: int | None = None
    """Rounds between two adjustments."""
    r_stop: int | None = None
    """Last round that may adjust."""


@dataclass(frozen=True)
class Config:
    """One run."""

    method: str = "fedtiny"
    """How the model is pruned: see `fedtiny list methods`."""
    model: str = "resnet18"
    """Network: see `fedtiny list models`."""
    width: int | None = None
    """Channels of the network's first layer."""
    density: float = 0.05
    """Target share of prunable weights that are kept: d_target in the paper."""
    rounds: int | None = None
    """Rounds of federated training."""
    seed: int = 0
    """Fixes every random draw of the run."""
    threads: int | None = None
    """Threads of a computation; default: all cores. Part of what makes a run repeat exactly."""
    eval_every: int = 1
    """Measure test accuracy every so many rounds, and after the last."""
    eval_devices: bool = False
    """Measure accuracy on every device's own data too."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints."""
    data: DataConfig = field(default_factory=DataConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    pruning: PruningConfig = field(default_factory=PruningConfig)

    def __post_init__(self) -> None:
        for ok, complaint in _checks(self):
            if not ok:
                raise ConfigError(complaint)

    @property
    def pool_size(self) -> int:
        """Number of candidates, `auto` resolved: C* = 0.1 / d in the paper."""
        if isinstance(self.selection.pool_size, int):
            return self.selection.pool_size
        return max(2, round(0.1 / self.density))


def _checks(config: Config) -> list[tuple[bool, str]]:
    fleet, train, selection, pruning = config.fleet, config.train, config.selection, config.pruning
    at_least_one = {
        "rounds": config.rounds,
        "width": config.width,
        "threads": config.threads,
        "eval-every": config.eval_every,
        "checkpoint-every": config.checkpoint_every,
        "data.limit-train": config.data.limit_train,
        "data.limit-test": config.data.limit_test,
        "data.n-shots": config.data.n_shots,
        "fleet.devices": fleet.devices,
        "fleet.shards-per-device": fleet.shards_per_device,
        "fleet.min-replies": fleet.min_replies,
        "train.local-epochs": train.local_epochs,
        "selection.passes": selection.passes,
        "pruning.delta-r": pruning.delta_r,
        "pruning.r-stop": pruning.r_stop,
    }
    at_least_two = {
        "train.batch-size": train.batch_size,
        "fleet.min-samples": fleet.min_samples,
        "selection.batch-size": selection.batch_size,
    }
    pool = selection.pool_size
    return [
        (0 < config.density <= 1, f"--density must lie in (0, 1], got {config.density:g}"),
        (fleet.alpha > 0, f"--fleet.alpha must be above 0, got {fleet.alpha:g}"),
        (0 < fleet.fraction <= 1, f"--fleet.fraction must lie in (0, 1], got {fleet.fraction:g}"),
        *[
            (0 <= rate < 1, f"--fleet.{name}-rate must lie in [0, 1), got {rate:g}")
            for name, rate in (("fail", fleet.fail_rate), ("late", fleet.late_rate))
        ],
        (
            fleet.min_replies <= fleet.devices,
            f"--fleet.min-replies is {fleet.min_replies}, but there are {fleet.devices} devices",
        ),
        (
            0 < selection.development_ratio <= 1,
            "--selection.development-ratio must lie in (0, 1], "
            f"got {selection.development_ratio:g}",
        ),
        (
            not isinstance(pool, int) or pool > 0,
            f"--selection.pool-size must be above 0, got {pool}",
        ),
        (train.lr is None or train.lr > 0, f"--train.lr must be above 0, got {train.lr}"),
        (train.pretrain_epochs >= 0, "--train.pretrain-epochs must not be negative"),
        (config.data.cutout >= 0, "--data.cutout must not be negative"),
        (config.seed >= 0, f"--seed must not be negative, got {config.seed}"),
        *[
            (v is None or v >= 1, f"--{k} must be at least 1, got {v}")
            for k, v in at_least_one.items()
        ],
        *[
            (v is None or v >= 2, f"--{k} must be at least 2, got {v}")
            for k, v in at_least_two.items()
        ],
    ]


PAPER: dict[str, Any] = {
    "rounds": 300,
    "train": {"local_epochs": 5, "batch_size": 64},
    "selection": {"pool_size": 50},
    "pruning": {"delta_r": 10, "r_stop": 100},
}
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {
        "width": 16,
        "rounds": 16,
        "train": {"local_epochs": 3, "batch_size": 32},
        "selection": {"pool_size": 10},
        "pruning": {"delta_r": 1, "r_stop": 10},
    },
    "svhn": PAPER | {"rounds": 200},
}


def resolve(config: Config) -> Config:
    """Fill in what was left open from the data set's preset: the paper's setting, or a quick one."""
    return _filled(config, PRESETS.get(config.data.name, PAPER))


def _filled(node: T, preset: Mapping[str, Any]) -> T:
    changes = {}
    for name, value in preset.items():
        present = getattr(node, name)
        if is_dataclass(present):
            changes[name] = _filled(present, value)
        elif present is None:
            changes[name] = value
    return replace(node, **changes)  # type: ignore[type-var]


def load(path: Path) -> Config:
    """Read a TOML file; keys left out keep their defaults."""
    try:
        return from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as missing:
        raise ConfigError(f"there is no config file {path}") from missing
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read config file {path}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def dumps(config: Config) -> str:
    """The config as TOML; a value of None is left out."""
    return tomli_w.dumps(to_dict(config))


def to_dict(config: Config) -> dict[str, Any]:
    """The config as plain data; a value of None is left out."""
    return asdict(config, dict_factory=lambda pairs: {k: v for k, v in pairs if v is not None})


def from_dict(values: Mapping[str, Any]) -> Config:
    """A config from plain data; an unknown key or a wrong type is an error that says where."""
    return _parse(Config, values, "")


def _parse(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    parsed: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean '{where}{near[0]}'?" if near else ""
            raise ConfigError(f"unknown key '{where}{key}'{hint}")
        parsed[name] = _parse_value(known[name].type, value, f"{where}{name}")
    return kind(**parsed)


def _parse_value(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ConfigError(f"'{where}' is a table of settings, not a single value")
        return _parse(kind, value, f"{where}.")  # type: ignore[arg-type]
    for choice in _choices(kind):
        if choice is float and type(value) is int:
            return float(value)
        if value == choice or (isinstance(choice, type) and type(value) is choice):
            return value
    wanted = " or ".join(c.__name__ if isinstance(c, type) else repr(c) for c in _choices(kind))
    raise ConfigError(f"'{where}' must be {wanted}, got {value!r}")


def _choices(kind: Any) -> list[Any]:
    """The types and literal values that an annotation allows, None left out."""
    members = get_args(kind)
    if not members:
        return [kind]
    inner = [choice for member in members for choice in _choices(member)]
    return [choice for choice in inner if choice is not type(None)]
