"""What training costs a device and the server: FLOPs, memory and bytes, without training."""

from fedtiny.config import parse_size
from fedtiny.cost.budget import DoesNotFit, largest_density
from fedtiny.cost.habits import HABITS, Habits, habits
from fedtiny.cost.network import Network
from fedtiny.cost.summary import fitting_summary, layers, no_summary, summary
from fedtiny.cost.workload import Workload

__all__ = [
    "HABITS",
    "DoesNotFit",
    "Habits",
    "Network",
    "Workload",
    "fitting_summary",
    "habits",
    "largest_density",
    "layers",
    "no_summary",
    "parse_size",
    "summary",
]
