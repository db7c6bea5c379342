"""What makes a config impossible: a value of another type or out of range, each in a sentence."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import inf
from operator import attrgetter
from textwrap import shorten
from typing import TYPE_CHECKING, Any, get_args

from fedtiny.errors import ConfigError
from fedtiny.paths import check_text

if TYPE_CHECKING:
    from fedtiny.config.settings import Config

FROM_DICT = "fedtiny.config.from_dict makes a config of plain dicts"
Choices = tuple[Any, ...]
"""The types and literal values that a setting allows."""
Range = tuple[str, Callable[[Any], bool], tuple[str, ...]]

AT_LEAST_ONE = (
    *("rounds", "width", "parameters", "threads", "workers", "eval_every", "checkpoint_every"),
    *("data.limit_train", "data.limit_test", "data.n_shots"),
    *("fleet.devices", "fleet.shards_per_device", "fleet.min_replies"),
    *("train.local_epochs", "selection.passes"),
    *("pruning.delta_r", "pruning.r_stop", "pruning.iterations"),
    *("gpu.lanes", "gpu.cards", "robustness.max_samples", "robustness.bucket"),
)
MOST: dict[str, int] = {
    "threads": 1024,
    "workers": 1024,
    "width": 8192,
    "parameters": 10**10,
    "fleet.devices": 10**7,
    "selection.pool_size": 10**6,
}
"""Settings with a ceiling: beyond it no machine would do what was asked for."""
AT_LEAST_TWO = (
    *("train.batch_size", "fleet.min_samples", "selection.batch_size"),
    "privacy.neighbors",
)
SHARES = (
    *("density", "fleet.fraction", "selection.development_ratio"),
    *("pruning.rate", "pruning.stop_share", "train.lr_gamma"),
)
RATES = (
    *("fleet.fail_rate", "fleet.straggler_rate", "train.weight_decay", "data.validation"),
    *("server.beta1", "server.beta2", "server.average_decay"),
)
ABOVE_ZERO = (
    *("fleet.alpha", "selection.pool_size", "train.lr", "server.lr", "server.tau"),
    "privacy.clip",
)
ABOVE_ZERO_FINITE = ("privacy.epsilon", "privacy.clip_start", "privacy.clip_rate")
SECONDS = ("device.timeout",)
NOT_NEGATIVE = ("train.pretrain_epochs", "train.lr_warmup", "server.average_start", "data.cutout")
NOT_NEGATIVE_FINITE = (
    *("robustness.clip_norm", "pruning.flow_beta", "train.proximal_mu"),
    "privacy.noise_multiplier",
)
FACTORS = ("robustness.bound", "robustness.reject")
DAY = 86400
POOL_KINDS = ("magnitude", "erk", "flow", "random")
SMALL = "must be a small number that is not negative"
RANGES: tuple[Range, ...] = (
    ("must be at least 1", lambda value: value >= 1, AT_LEAST_ONE),
    ("must be at least 2", lambda value: value >= 2, AT_LEAST_TWO),
    ("must lie in (0, 1]", lambda value: 0 < value <= 1, SHARES),
    ("must lie in [0, 1)", lambda value: 0 <= value < 1, RATES),
    ("must be 0, or 1 or above", lambda value: value == 0 or 1 <= value < inf, FACTORS),
    (
        "must lie in [0, 1]",
        lambda value: 0 <= value <= 1,
        ("pruning.flow_floor", "pruning.rescale"),
    ),
    ("must lie in (0, 1)", lambda value: 0 < value < 1, ("privacy.delta", "privacy.clip_quantile")),
    ("must lie in [0.5, 1)", lambda value: 0.5 <= value < 1, ("privacy.threshold",)),
    ("must lie in (0, 0.5)", lambda value: 0 < value < 0.5, ("robustness.trim",)),
    ("must lie in [0, 2^63)", lambda value: 0 <= value < 2**63, ("seed",)),
    ("must be above 0", lambda value: value > 0, ABOVE_ZERO),
    ("must be above 0 and finite", lambda value: 0 < value < inf, ABOVE_ZERO_FINITE),
    (f"must be above 0 and at most {DAY}, a day", lambda value: 0 < value <= DAY, SECONDS),
    ("must not be negative", lambda value: value >= 0, NOT_NEGATIVE),
    ("must be 0 or above and finite", lambda value: 0 <= value < inf, NOT_NEGATIVE_FINITE),
    ("must lie in [0, 1]", lambda value: 0 <= value <= 1, ("train.lr_final", "train.freeze_bn")),
    (SMALL, lambda value: 0 <= value < 1e6, ("pruning.gradient_epsilon", "selection.tolerance")),
)
"""What is demanded of a value, whether it is met, and of which settings; None is not judged."""


def complaints(config: "Config") -> Iterator[str]:
    """Everything that is wrong, in sentences that name the flag."""
    for demand, is_met, names in RANGES:
        for name in names:
            value = attrgetter(name)(config)
            if isinstance(value, int | float) and not is_met(value):
                shown = f"{value:g}" if isinstance(value, float) else value
                yield f"--{name.replace('_', '-')} {demand}, got {shown}"
    for name, most in MOST.items():
        value = attrgetter(name)(config)
        if isinstance(value, int) and value > most:
            yield f"--{name.replace('_', '-')} must be at most {most:,}, got {value:,}"
    fleet, selection = config.fleet, config.selection
    if config.parameters is not None and config.model != "small":
        yield (
            "--parameters sizes the model 'small' alone: leave it out with "
            f"'{config.model}', or take --model small"
        )
    if fleet.min_replies > fleet.asked:
        yield f"--fleet.min-replies is {fleet.min_replies}, more than the devices a round asks"
    yield from _schedule_complaints(config)
    yield from _secure_complaints(config)
    yield from _privacy_complaints(config)
    yield from _share_complaints(config)
    if selection.variance != "mean" and selection.passes != 1:
        yield "--selection.variance pooled takes one pass; leave --selection.passes at 1"
    if selection.pool is not None and not _are_kinds(selection.pool.split(",")):
        yield (
            f"--selection.pool takes kinds of candidates, each once, separated by commas "
            f"({', '.join(POOL_KINDS)}), got {_shown(selection.pool)}"
        )


def _secure_complaints(config: "Config") -> Iterator[str]:
    """What cannot be had with replies that the server does not see."""
    if not config.privacy.secure_aggregation:
        return
    robustness, without = config.robustness, "; leave one of them out"
    if robustness.mean != "weighted" or robustness.clip_norm:
        option = "clip-norm" if robustness.mean == "weighted" else f"mean {robustness.mean}"
        yield (
            f"--robustness.{option} needs every single reply, which --privacy.secure-aggregation "
            f"hides{without}"
        )
    default = type(robustness)()
    for name in ("bound", "reject"):  # what nobody has set is simply off
        if getattr(robustness, name) not in (0, getattr(default, name)):
            yield (
                f"--robustness.{name} compares single replies, which --privacy.secure-aggregation "
                f"hides{without}"
            )
    if config.eval_devices:
        yield (
            "--eval-devices shows every device's accuracy, which --privacy.secure-aggregation "
            f"hides{without}"
        )
    if config.privacy.differential and config.privacy.clip == inf:
        yield "--privacy.secure-aggregation sums what has a bound: give a finite --privacy.clip"
    if config.device.program:
        yield (
            "--device.program devices cannot mask their replies yet, which "
            f"--privacy.secure-aggregation needs{without}"
        )
    if config.fleet.asked < 3:
        yield (
            f"--privacy.secure-aggregation needs 3 devices or more in a round, and "
            f"{config.fleet.asked} would be asked: a sum of fewer hides nobody"
        )


def _privacy_complaints(config: "Config") -> Iterator[str]:
    """What cannot be had together with differential privacy, and what to do."""
    privacy, robustness = config.privacy, config.robustness
    if not privacy.differential:
        if privacy.secret_noise:
            yield "--privacy.secret-noise needs --privacy.epsilon or --privacy.noise-multiplier"
        return
    if robustness.mean != "weighted":
        yield (
            f"--robustness.mean {robustness.mean} has no bound on what one device changes, which "
            "differential privacy needs; leave it at weighted: every device counts the same anyway"
        )
    if robustness.clip_norm:
        yield "--robustness.clip-norm is --privacy.clip under differential privacy; use that"
    if config.eval_devices:
        yield (
            "--eval-devices tells each device's accuracy without noise; leave it out under "
            "differential privacy, and measure on the server's test set"
        )
    if config.fleet.min_replies > 1:
        yield (
            "--fleet.min-replies tells how many devices answered; leave it at 1 under differential "
            "privacy, where a round counts whoever answers"
        )
    if config.checkpoint_every > 1:
        yield (
            "--checkpoint-every must be 1 under differential privacy, so that no round is released "
            "twice after a stop"
        )
    if privacy.clip == inf and privacy.noise_multiplier != 0:
        yield "--privacy.clip inf leaves no noise that is enough; give a finite one, or adaptive"
    if privacy.epsilon is not None and privacy.noise_multiplier == 0:
        yield "--privacy.epsilon needs noise; leave --privacy.noise-multiplier 0 out"
    if privacy.accountant == "pld" and privacy.sampling == "fixed":
        yield (
            "--privacy.accountant pld takes Poisson sampling only; use rdp, or "
            "--privacy.sampling poisson"
        )


def _share_complaints(config: "Config") -> Iterator[str]:
    """What noise in shares on the devices needs."""
    privacy = config.privacy
    if privacy.noise != "devices":
        return
    if not privacy.differential:
        yield (
            "--privacy.noise devices says who adds the noise of differential privacy; give "
            "--privacy.epsilon or --privacy.noise-multiplier too"
        )
    if not privacy.secure_aggregation:
        yield (
            "--privacy.noise devices needs --privacy.secure-aggregation: a device's own share of "
            "the noise does not hide its reply"
        )
    if privacy.sampling != "fixed":
        yield (
            "--privacy.noise devices needs --privacy.sampling fixed: the amount of noise tells how "
            "many devices take part, which Poisson sampling must hide"
        )


def _are_kinds(named: list[str]) -> bool:
    return set(named) <= set(POOL_KINDS) and len(set(named)) == len(named)


def _schedule_complaints(config: "Config") -> Iterator[str]:
    """What is wrong with rounds that settings name."""
    train, rounds = config.train, config.rounds or inf
    if train.lr_milestones is not None and not milestones(train.lr_milestones):
        yield (
            "--train.lr-milestones must be rising rounds, as in 150,225, "
            f"got {_shown(train.lr_milestones)}"
        )
    if train.lr_milestones is not None and train.lr_schedule != "steps":
        yield "--train.lr-milestones are those of --train.lr-schedule steps; leave one of them out"
    if train.lr_warmup >= rounds:
        yield f"--train.lr-warmup is {train.lr_warmup}, as long as the run or longer"
    if (config.server.average_start or 0) >= rounds:
        yield f"--server.average-start is {config.server.average_start}, after the last round"


def milestones(text: str) -> tuple[int, ...]:
    """Rising rounds out of a list with commas; nothing if it is no such list.

    >>> milestones("30, 60"), milestones("60,30"), milestones("half")
    ((30, 60), (), ())
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        return ()
    found = tuple(map(int, parts))
    return found if sorted(set(found)) == list(found) else ()


def check_types(settings: Any, where: str = "") -> None:
    """Refuse settings that hold what they cannot hold; `where` comes before their names."""
    for name, choices in _declared(settings.__class__):
        value = getattr(settings, name)
        if is_dataclass(choices[0]):
            _check_section(choices[0], value, f"{where}{name}")
        elif type(value) not in choices:
            check_value(choices, value, f"{where}{name}")
        elif type(value) is str:
            check_text(value, f"--{where}{name}".replace("_", "-"))


def _check_section(kind: Any, value: Any, where: str) -> None:
    if not isinstance(value, kind):
        hint = "; " + FROM_DICT if isinstance(value, Mapping) else ""
        raise ConfigError(f"'{where}' must be a {kind.__name__}, got {_shown(value)}{hint}")
    check_types(value, f"{where}.")


def check_value(choices: Choices, value: Any, where: str) -> None:
    """Refuse what is none of the choices; a whole number may stand for a real one."""
    if not any(_is(value, choice) for choice in choices):
        named = [choice for choice in choices if choice is not type(None)]
        allowed = " or ".join(c.__name__ if isinstance(c, type) else repr(c) for c in named)
        raise ConfigError(f"'{where}' must be {allowed}, got {_shown(value)}")


def _is(value: Any, choice: Any) -> bool:
    if not isinstance(choice, type):
        return isinstance(value, type(choice)) and bool(value == choice)
    if isinstance(value, bool):
        return choice is bool
    return isinstance(value, int | float if choice is float else choice)


@cache
def _declared(kind: type) -> tuple[tuple[str, Choices], ...]:
    return tuple((field.name, choices_of(field.type)) for field in fields(kind))


def choices_of(kind: Any) -> Choices:
    """What an annotation allows."""
    members = get_args(kind)
    return tuple(c for member in members for c in choices_of(member)) if members else (kind,)


def _shown(value: Any) -> str:
    return shorten(repr(value), 60, placeholder=" ...")
