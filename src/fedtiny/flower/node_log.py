"""What a node tells of its troubles: the server hears a category and advice, its own log the rest.

Sentences about data and files name paths and classes of the machine they come from. None of that
leaves it.
"""

import logging

from fedtiny.errors import (
    ConfigError,
    DataError,
    FedTinyError,
    ModelError,
    SecureAggregationError,
    WireError,
)

LOG = logging.getLogger("fedtiny.node")
DETAILS = "the node's own log has the details"


class NodeError(FedTinyError):
    """A trouble in words that tell nothing but what the run itself has said."""


CATEGORIES: tuple[tuple[type[Exception], str], ...] = (
    (DataError, "data: its samples or labels cannot be read, or do not fit this run"),
    (WireError, "message: it could not read what it was sent"),
    (ConfigError, "settings: this run cannot be played there as it is set up"),
    (ModelError, "network: this run's network cannot be trained there"),
    (FedTinyError, "device: it could not do what it was asked"),
    (OSError, "system: a file or a folder there cannot be read or written"),
    (MemoryError, "memory: there is not enough of it there"),
)


def told_to_server(error: Exception) -> str:
    """A category and advice; what happened is written to the node's log.

    What a node refuses in secure aggregation names devices by their numbers alone, and is told.
    """
    if isinstance(error, NodeError | SecureAggregationError):
        LOG.error("%s", error)
        return str(error)
    LOG.error("%s: %s", type(error).__name__, error, exc_info=not isinstance(error, FedTinyError))
    found = (told for kind, told in CATEGORIES if isinstance(error, kind))
    return f"{next(found, 'unexpected: it failed')}; {DETAILS}"
