"""What privacy costs, before a run: epsilon of the planned rounds, extra bytes and work."""

from typing import Any

from fedtiny.cost import traffic
from fedtiny.cost.workload import Workload
from fedtiny.errors import ConfigError
from fedtiny.federation import private, secure
from fedtiny.federation.secure_gradients import table_for
from fedtiny.privacy.secagg import graph
from fedtiny.sparse.vector import VALUE_BYTES

Summary = dict[str, Any]


def summary(work: Workload) -> Summary:
    """By name, what is known of privacy if the config asks for it; else nothing."""
    privacy = work.config.privacy
    found: Summary = {}
    if privacy.differential and not refusal(work):
        found["privacy"] = _planned(work)
    if privacy.secure_aggregation and not refusal(work):
        found["secure_aggregation"] = _secured(work)
    return found


def refusal(work: Workload) -> str:
    """Why the method cannot be had with the privacy that the config asks for, or nothing."""
    try:
        private.check(work.method)
        if work.config.privacy.differential:
            work.method.check(work.network.param_spec)
        if work.config.privacy.secure_aggregation:
            secure.check(work.method, work.requests())
    except ConfigError as error:
        return str(error)
    return ""


def _planned(work: Workload) -> Summary:
    """Noise and epsilon of all planned rounds, and of the questions before them."""
    config, devices = work.config, work.config.fleet.devices
    releases = config.rounds + len(work.coarse)
    return private.planned(config, devices, releases)


def _secured(work: Workload) -> Summary:
    """What a device sends and computes beside a plain round's, and who shares masks with whom."""
    privacy, devices = work.config.privacy, work.config.fleet.asked
    neighbors = graph.degree(devices, privacy.neighbors)
    plain, hidden = traffic.unsecured_round(work), traffic.training_round(work, work.plain_round)
    tables = (table_for(request, devices) for request in work.requests())
    table = max((VALUE_BYTES * (own.size + 1) for own in tables if own), default=0)
    return {
        "devices": devices,
        "neighbors": neighbors,
        "needed": graph.threshold(neighbors, privacy.threshold),
        "extra_bytes_down": hidden.down - plain.down,
        "extra_bytes_up": hidden.up - plain.up,
        "table_bytes": table,
        "masks": neighbors + 1,
        "mask_bytes": (neighbors + 1) * VALUE_BYTES * traffic.masked_values(work),
    }
