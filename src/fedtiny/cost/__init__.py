"""What training costs a device and the server: FLOPs, memory and bytes, without training."""

from fedtiny.config import parse_size
from fedtiny.cost.budget import DoesNotFit, largest_density
from fedtiny.cost.network import Network
from fedtiny.cost.summary import fitting_summary, layers, summary
from fedtiny.cost.workload import CostInputs, Workload

__all__ = [
    "CostInputs",
    "DoesNotFit",
    "Network",
    "Workload",
    "fitting_summary",
    "largest_density",
    "layers",
    "parse_size",
    "summary",
]
