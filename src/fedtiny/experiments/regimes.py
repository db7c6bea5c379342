"""What cells of result files have in common, and what they had before a setting existed."""

from dataclasses import dataclass, field

from fedtiny import config as configs
from fedtiny.config import Config, DataConfig
from fedtiny.config.flat import Flat
from fedtiny.errors import RunError
from fedtiny.experiments.finished import TOLD_BY_OTHERS, settings_of


@dataclass(frozen=True)
class Regime:
    """What was computed, in a sentence, and the settings that experiments have today otherwise."""

    title: str
    settings: Flat = field(default_factory=dict)


TODAY = "fair"
BEFORE_RECIPES: Flat = {"pruning.gradient_epsilon": 0.01}
REGIMES = {
    "undefended": Regime(
        "before defenses existed; a gradient epsilon of 0.01 with every recipe, and SNIP and GraSP "
        "scored in evaluation mode",
        {"robustness.bound": 0.0, "robustness.reject": 0.0} | BEFORE_RECIPES,
    ),
    "defended": Regime(
        "replies bounded at 3 times the median, rounds repeated whose loss on the test images rose "
        "to 3 times; a gradient epsilon of 0.01 with every recipe, and SNIP and GraSP scored in "
        "evaluation mode",
        {"robustness.bound": 3.0, "robustness.reject": 3.0} | BEFORE_RECIPES,
    ),
    TODAY: Regime(
        "the method and nothing else: no bounded replies, no repeated rounds, the gradient epsilon "
        "of the recipe, and SNIP and GraSP scored with batch statistics"
    ),
}
"""Every regime that a result file may name, oldest first."""
OLDER: Flat = {}
"""What cells had that are older than a setting: whoever adds a setting says it here, whatever its
default is. Cells of before the first entry name every setting of its day."""
DECIDING = settings_of(configs.resolve(Config(data=DataConfig("cifar10")))).keys() - TOLD_BY_OTHERS
"""Settings that have a value whatever the data is, so that a cell without one is older than it."""


def completed(settings: Flat, where: str) -> Flat:
    """Return a cell's settings with what it had of younger ones; refuse what is not declared."""
    found = OLDER | settings
    if missing := sorted(DECIDING - found.keys()):
        raise RunError(
            f"{where} is older than {', '.join(missing)}: write what it had into the file, or for "
            "all older cells into OLDER of fedtiny/experiments/regimes.py"
        )
    return found
