"""Adjustments on the server: growing by a rule, and dropping at once or a round later.

Dropping a round later, a layer grows into the room that it has, trains, and then gives up its
smallest weights, so that there is room for the next growth. It keeps between (1 - a) and all of its
weights; after its last growth it keeps all.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import FedTinyError
from fedtiny.federation.server import Server
from fedtiny.graph.ir import Graph
from fedtiny.sparse.adjust import Useful, drop, grow_and_drop
from fedtiny.sparse.schedule import Schedule
from fedtiny.sparse.top import smallest
from fedtiny.sparse.vector import SparseVector

ROOM, GROWN = "room", "grown"  # what the server remembers for dropping later
EXTRUDED = "extruded"  # what devices have emptied in this round


def room_of(server: Server) -> Mapping[str, int]:
    """How many weights below its due number each layer keeps."""
    room: Mapping[str, int] = server.memory.get(ROOM, {})
    return room


def adjust_mask(
    server: Server,
    scores: Mapping[str, SparseVector],
    numbers: Mapping[str, int],
    *,
    drops_later: bool,
) -> None:
    """Grow so many weights of each layer, and drop as many, or what there is no room for."""
    room, together = room_of(server), server.config.pruning.redistribute
    last = not_extruded(server) or useful_weights(server)
    server.theta, changes = grow_and_drop(
        server.theta, scores, numbers, last, room=room, together=together
    )
    if drops_later:
        grown = {layer: len(c.grown) - len(c.dropped) for layer, c in changes.items()}
        server.memory[ROOM] = left_over(room, grown, together)
        all_grown = {*server.memory.get(GROWN, ()), *changes}
        server.memory[GROWN] = [layer for layer in server.theta.mask if layer in all_grown]


def drop_trained(server: Server, schedule: Schedule) -> None:
    """Of layers that grew before, drop as many weights as their next adjustment will grow."""
    room, mask, due = room_of(server), server.theta.mask, {}
    for layer in server.memory.pop(GROWN, ()):
        later = schedule.next_round(server.param_spec, layer, after=server.round - 1)
        if later is not None:
            full = mask.kept(layer) + room.get(layer, 0)
            number = schedule.pruning_number(later, full, server.param_spec.sizes[layer] - full)
            due[layer] = max(0, number - room.get(layer, 0))
    together = server.config.pruning.redistribute
    server.theta, changes = drop(server.theta, due, useful_weights(server), together=together)
    made = {layer: len(change.dropped) for layer, change in changes.items()}
    rooms = {layer: room.get(layer, 0) + made.get(layer, 0) for layer in mask}
    server.memory[ROOM] = {layer: own for layer, own in rooms.items() if own}


def left_over(room: Mapping[str, int], grown: Mapping[str, int], together: bool) -> dict[str, int]:
    """The room that layers have left after growing; together, any layer may use another's.

    >>> left_over({"a": 3, "b": 1}, {"a": 3, "b": 0}, together=False)
    {'a': 0, 'b': 1}
    >>> left_over({"a": 3, "b": 1}, {"a": 0, "b": 2}, together=True)
    {'a': 1, 'b': 1}
    """
    if not together:
        return {layer: own - grown.get(layer, 0) for layer, own in room.items()}
    taken, left = sum(grown.values()), {}
    for layer, own in room.items():
        used = min(own, taken) if layer in grown else 0
        left[layer], taken = own - used, taken - used
    return left


def mark_extruded(server: Server, numbers: Mapping[str, int]) -> None:
    """Remember what devices were told to empty: the smallest weights of the model they received."""
    if numbers:
        places = {n: smallest(server.theta.kept(n), count) for n, count in numbers.items()}
        server.memory[EXTRUDED] = {layer: own.tolist() for layer, own in places.items()}


def not_extruded(server: Server) -> Useful | None:
    """Which weights of a layer were not emptied in this round, if others were."""
    marked = server.memory.pop(EXTRUDED, None)
    if marked is None:
        return None

    def others(layer: str) -> NDArray[np.bool_]:
        kept = np.ones(server.theta.mask.kept(layer), dtype=np.bool_)
        kept[marked[layer]] = False
        return kept

    return others


def useful_weights(server: Server) -> Useful | None:
    """Which weights of a layer carry something, if useless ones are to be reclaimed."""
    if not server.config.pruning.reclaim:
        return None
    return server.theta.mask.reachability(graph_of(server)).useful


def graph_of(server: Server) -> Graph:
    """The network, through which weights are followed."""
    graph = server.public.graph if server.public else None
    if graph is None:
        raise FedTinyError(
            "the network has a layer or a shape that weights cannot be followed through; "
            "leave --pruning.reclaim out",
            retryable=False,
        )
    return graph
