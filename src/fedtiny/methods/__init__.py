"""Methods of federated pruning, one file each."""

import difflib
from importlib.metadata import entry_points

from fedtiny.config import Config
from fedtiny.errors import ConfigError
from fedtiny.federation.method import Method
from fedtiny.methods.fedavg import FedAvg
from fedtiny.methods.feddst import FedDST
from fedtiny.methods.fedtiny import FedTiny
from fedtiny.methods.fl_pqsu import FLPQSU
from fedtiny.methods.grasp import GraSP
from fedtiny.methods.lotteryfl import LotteryFL
from fedtiny.methods.prunefl import PruneFL
from fedtiny.methods.small_model import SmallModel
from fedtiny.methods.snip import SNIP
from fedtiny.methods.synflow import SynFlow

BUILT_IN: tuple[type[Method], ...] = (
    FedAvg,
    FLPQSU,
    SNIP,
    SynFlow,
    GraSP,
    PruneFL,
    FedDST,
    LotteryFL,
    SmallModel,
    FedTiny,
)


def names() -> dict[str, str]:
    """Every method that can be asked for by name, with a line of description."""
    return {name: _first_line(method) for name, method in _known().items()}


def find(name: str) -> type[Method]:
    """The method of that name: built in, or from a package with the entry point."""
    known = _known()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ConfigError(f"there is no method '{name}' (known: {', '.join(known)}){hint}")
    return known[name]


def create(config: Config) -> Method:
    """The method that a config asks for."""
    return find(config.method)(config)


def _known() -> dict[str, type[Method]]:
    plug_ins = (point.load() for point in entry_points(group="fedtiny.methods"))
    return {method.name: method for method in (*BUILT_IN, *plug_ins)}


def _first_line(method: type[Method]) -> str:
    return (method.__doc__ or "").strip().partition("\n")[0]
