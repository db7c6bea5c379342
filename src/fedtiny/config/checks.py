"""What makes a config impossible, each with one clear sentence."""

from collections.abc import Callable, Iterator
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtiny.config.settings import Config

Range = tuple[str, Callable[[Any], bool], tuple[str, ...]]

AT_LEAST_ONE = (
    *("rounds", "width", "parameters", "threads", "workers", "eval_every", "checkpoint_every"),
    *("data.limit_train", "data.limit_test", "data.n_shots"),
    *("fleet.devices", "fleet.shards_per_device", "fleet.min_replies"),
    *("train.local_epochs", "selection.passes"),
    *("pruning.delta_r", "pruning.r_stop", "pruning.iterations"),
    *("gpu.lanes", "gpu.cards", "robustness.max_samples"),
)
AT_LEAST_TWO = ("train.batch_size", "fleet.min_samples", "selection.batch_size")
SHARES = ("density", "fleet.fraction", "selection.development_ratio")
RATES = ("fleet.fail_rate", "fleet.straggler_rate", "train.weight_decay")
SMALL = "must be a small number that is not negative"
RANGES: tuple[Range, ...] = (
    ("must be at least 1", lambda value: value >= 1, AT_LEAST_ONE),
    ("must be at least 2", lambda value: value >= 2, AT_LEAST_TWO),
    ("must lie in (0, 1]", lambda value: 0 < value <= 1, SHARES),
    ("must lie in [0, 1)", lambda value: 0 <= value < 1, RATES),
    ("must lie in (0, 0.5)", lambda value: 0 < value < 0.5, ("robustness.trim",)),
    ("must lie in [0, 2^63)", lambda value: 0 <= value < 2**63, ("seed",)),
    (
        "must be above 0",
        lambda value: value > 0,
        ("fleet.alpha", "selection.pool_size", "train.lr"),
    ),
    (
        "must not be negative",
        lambda value: value >= 0,
        ("train.pretrain_epochs", "data.cutout"),
    ),
    (
        "must be 0 or above and finite",
        lambda value: 0 <= value < inf,
        ("robustness.clip_norm",),
    ),
    (SMALL, lambda value: 0 <= value < 1e6, ("pruning.gradient_epsilon",)),
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
    fleet, selection = config.fleet, config.selection
    if config.parameters is not None and config.model != "small":
        yield (
            "--parameters sizes the model 'small' alone: leave it out with "
            f"'{config.model}', or take --model small"
        )
    if fleet.min_replies > fleet.asked:
        yield f"--fleet.min-replies is {fleet.min_replies}, more than the devices a round asks"
    if selection.variance != "mean" and selection.passes != 1:
        yield "--selection.variance pooled takes one pass; leave --selection.passes at 1"
