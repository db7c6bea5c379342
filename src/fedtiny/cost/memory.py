"""Memory of a device in training, every item by name, in bytes."""

from math import prod
from typing import Literal

from fedtiny.cost.workload import Swaps, Workload
from fedtiny.sparse.top import SLAB_PER_COUNT

Items = dict[str, int]
MemoryModel = Literal["paper", "device"]

VALUE = 4  # float32
PAPER_INDEX = 3
INDEX = 4  # int32, as masks are held
PAPER_CONSTANT = {"resnet18": 1_050_000, "vgg11": 2_480_000}
"""What the paper's figures hold beside weights and gradients; it does not say what that is."""
OPTIMIZER_VALUES = {"adam": 2, "sgd": 1}


def total(work: Workload, model: MemoryModel) -> int:
    """All items of one way of counting."""
    return sum((paper(work) if model == "paper" else device(work)).values())


def paper(work: Workload) -> Items:
    """As the paper counts: weights and gradients, with 3 bytes for a position."""
    parameters = work.network.profile.parameters
    if work.kept == work.network.param_spec.prunable_count:
        return {"weights": VALUE * parameters, "gradients": VALUE * parameters}
    sparse = VALUE * work.trained + PAPER_INDEX * work.indexed
    full = work.habits.adjusts_by == "full_gradients"
    return {
        "weights": sparse,
        "gradients": VALUE * parameters if full else sparse,
        "constant": paper_constant(work),
    }


def paper_constant(work: Workload) -> int:
    """Known for the paper's two networks at their own width; else zero."""
    return PAPER_CONSTANT.get(work.network.name, 0) if work.network.own_width else 0


def device(work: Workload) -> Items:
    """As a device needs it in its largest round, which holds kept weights only."""
    network, batch = work.network, work.batch
    items = {
        "weights": VALUE * work.trained,
        "indices": INDEX * work.indexed,
        "gradients": VALUE * work.trained,
        "optimizer_state": VALUE * OPTIMIZER_VALUES[work.config.train.optimizer] * work.trained,
        "batch_norm_statistics": VALUE * network.statistics,
        "activations": batch * network.profile.activation_bytes
        + network.profile.fixed_activation_bytes,
    }
    return items | _adjusting(work)


def _adjusting(work: Workload) -> Items:
    """What an adjusting round holds beside training, in the largest of them."""
    if not work.adjustments:
        return {}
    if work.habits.adjusts_by == "full_gradients":
        sizes = work.network.param_spec.sizes
        return {"gradient_sums": VALUE * sum(sizes.values())} | _one_layer(max(sizes.values()))
    largest = max(work.adjustments.values(), key=lambda swaps: sum(swaps.values()))
    buffer = (VALUE + INDEX) * sum(largest.values())
    return {"top_a_buffer": buffer} | _one_layer(_slab(work, largest))


def _one_layer(values: int) -> Items:
    """The part of a full weight gradient that is held while it is looked at."""
    return {"gradient_slab": VALUE * values}


def _slab(work: Workload, swaps: Swaps) -> int:
    shapes = work.network.param_spec.prunable
    return max(
        min(prod(shapes[layer]), max(SLAB_PER_COUNT * number, prod(shapes[layer][1:])))
        for layer, number in swaps.items()
    )
