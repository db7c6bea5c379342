"""Methods of federated pruning, one file each."""

from importlib.metadata import EntryPoint, entry_points

from fedtiny.config import ResolvedConfig
from fedtiny.errors import ConfigError, did_you_mean
from fedtiny.federation.method import Method
from fedtiny.methods.fedavg import FedAvg
from fedtiny.methods.feddst import FedDST
from fedtiny.methods.fedfit import FedFit
from fedtiny.methods.fedmef import FedMef
from fedtiny.methods.fedrts import FedRTS
from fedtiny.methods.fedsgc import FedSGC
from fedtiny.methods.fedtiny import FedTiny
from fedtiny.methods.fedtiny_flow import FedTinyFlow
from fedtiny.methods.fl_pqsu import FLPQSU
from fedtiny.methods.grasp import GraSP
from fedtiny.methods.lotteryfl import LotteryFL
from fedtiny.methods.prunefl import PruneFL
from fedtiny.methods.set import SET
from fedtiny.methods.small_model import SmallModel
from fedtiny.methods.snip import SNIP
from fedtiny.methods.ssfl import SSFL
from fedtiny.methods.synflow import SynFlow

BUILT_IN: tuple[type[Method], ...] = (
    FedAvg,
    FLPQSU,
    SNIP,
    SynFlow,
    GraSP,
    SSFL,
    PruneFL,
    FedDST,
    FedSGC,
    SET,
    FedMef,
    FedRTS,
    FedFit,
    LotteryFL,
    SmallModel,
    FedTiny,
    FedTinyFlow,
)
OURS = {method.name: method for method in BUILT_IN}
GROUP = "fedtiny.methods"


def names() -> dict[str, str]:
    """Every method that can be asked for by name.

    Returns:
        A line of description for each name: those of fedtiny, and those of installed packages.

    Example:
        >>> names()["fedavg"]
        'Dense federated averaging: nothing is pruned, whatever the target density.'
    """
    descriptions = {name: method.__doc__ or "" for name, method in _known().items()}
    return {name: text.strip().partition("\n")[0] for name, text in descriptions.items()}


def find(name: str) -> type[Method]:
    """The method of that name: built in, or from a package with the entry point.

    A broken package of somebody else's does not stand in the way of what is built in.
    """
    known = OURS if name in OURS else _known()
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"there is no method '{name}' (known: {', '.join(known)}){hint}")
    return known[name]


def create(config: ResolvedConfig) -> Method:
    """The method that a config asks for."""
    return find(config.method)(config)


def _known() -> dict[str, type[Method]]:
    known = dict(OURS)
    for point in entry_points(group=GROUP):
        method = _loaded(point)
        if method.name in known:
            raise ConfigError(f"{_described(point)} is named '{method.name}', a name that is taken")
        known[method.name] = method
    return known


def _loaded(point: EntryPoint) -> type[Method]:
    """What lies behind an entry point, which must be a method with a name."""
    try:
        found = point.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ConfigError(f"{_described(point)} cannot be loaded ({reason})") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"{_described(point)} is no subclass of {Method.__module__}.Method")
    if not isinstance(getattr(found, "name", None), str):
        raise ConfigError(f"{_described(point)} has no name: give class {found.__name__} a `name`")
    return found


def _described(point: EntryPoint) -> str:
    package = f" of package '{point.dist.name}'" if point.dist else ""
    return f"the method '{point.name} = {point.value}'{package}"
