"""Scales and zero points of int8 activations as a packed file holds them."""

from collections.abc import Mapping
from typing import Any

from fedtiny.errors import ModelError
from fedtiny.export.c_program import ACTIONS, fused
from fedtiny.export.network import QParams
from fedtiny.export.quantize import LEAST, MOST, is_logits
from fedtiny.graph.ir import Graph, Kind
from fedtiny.graph.operations import lacking

KINDS = {*ACTIONS} - {Kind.BATCH_NORM}  # which is a layer then
LEAST_SCALE, LARGEST_SCALE = 1e-30, 1e30


def records_of(activations: Mapping[int, QParams]) -> list[list[Any]]:
    """For each value that has one: its number, scale and zero point.

    >>> records_of({0: QParams(0.5, -128)})
    [[0, 0.5, -128]]
    """
    return [[value, held.scale, held.zero_point] for value, held in sorted(activations.items())]


def activations_of(records: Any, graph: Graph) -> dict[int, QParams]:
    """What `records_of` was given, of records that may not be what they should."""
    if lacks := lacking(graph.nodes, KINDS):
        raise ModelError(f"its activations are int8, and it has {lacks:.60}")
    steps = list(fused(graph))
    needed = [step.gives for step in steps if not is_logits(step, steps)]
    if not isinstance(records, list) or [record[0] for record in records] != needed:
        raise ModelError("its activations do not fit its steps")
    for number, scale, zero in records:
        if type(number) is not int or type(scale) is not float or type(zero) is not int:
            raise ModelError("its activations are not made of numbers")
        if not (LEAST_SCALE < scale < LARGEST_SCALE and LEAST <= zero <= MOST):
            raise ModelError("its activations have a scale or zero point that cannot be used")
    return {number: QParams(scale, zero) for number, scale, zero in records}
