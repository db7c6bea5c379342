"""Memory of a device in training, every item by name, in bytes."""

from typing import Literal

from fedtiny.cost.workload import Workload
from fedtiny.federation.verbs import Items, Program
from fedtiny.sparse.vector import INDEX_BYTES, VALUE_BYTES

MemoryModel = Literal["paper", "device"]

PAPER_INDEX = 3
PAPER_CONSTANT = {"resnet18": 1_050_000, "vgg11": 2_480_000}
"""What the paper's figures hold beside weights and gradients; it does not say what that is."""
OPTIMIZER_VALUES = {"adam": 2, "sgd": 1}


def total(work: Workload, model: MemoryModel) -> int:
    """All items of one way of counting."""
    return sum((paper(work) if model == "paper" else device(work)).values())


def paper(work: Workload) -> Items:
    """As the paper counts: weights and gradients, with 3 bytes for a position."""
    dense = VALUE_BYTES * work.network.profile.parameters
    if work.kept == work.network.param_spec.prunable_count or _scoring(work):
        return {"weights": dense, "gradients": dense}
    sparse = VALUE_BYTES * _trained(work) + PAPER_INDEX * _indexed(work)
    return {
        "weights": sparse,
        "gradients": dense if work.sums_gradients else sparse,
        "constant": paper_constant(work),
    }


def paper_constant(work: Workload) -> int:
    """Known for the paper's two networks at their own width; else zero."""
    return PAPER_CONSTANT.get(work.network.name, 0) if work.network.own_width else 0


def device(work: Workload) -> Items:
    """As a device needs it in its largest round, which holds kept weights only.

    If devices score the dense model before the first round (SSFL), what that takes if it is more.
    """
    phases = (_in_training(work), _scoring(work))
    return max(phases, key=lambda items: sum(items.values()))


def _scoring(work: Workload) -> Items:
    """What devices hold to take gradients of the dense model at first; most need not."""
    held = _beside_training(work, tuple(verb for asked in work.coarse for verb in asked.program))
    return _model(work, work.network.profile.parameters) | held if held else {}


def _model(work: Workload, trained: int, indexed: int = 0, moments: int = 0) -> Items:
    """A model with so many trained values, its gradients, and what passes through it."""
    profile, values = work.network.profile, VALUE_BYTES * trained
    return {
        "weights": values,
        "indices": INDEX_BYTES * indexed,
        "gradients": values,
        "optimizer_state": moments * values,
        "batch_norm_statistics": VALUE_BYTES * work.network.statistics,
        "activations": work.load.batch * profile.activation_bytes + profile.fixed_activation_bytes,
    }


def _in_training(work: Workload) -> Items:
    moments = OPTIMIZER_VALUES[work.config.train.optimizer]
    items = _model(work, _trained(work), _indexed(work), moments)
    if work.config.train.proximal_mu:
        items["received_weights"] = VALUE_BYTES * _trained(work)
    beside = [_beside_training(work, program) for program in work.programs.values()]
    # what is held until the reply counts; the slab of a gradient comes and goes
    return items | max(beside, key=lambda held: sum(held.values()) - held.get("gradient_slab", 0))


def _trained(work: Workload) -> int:
    """Number of values that training changes: kept weights, biases, batch-norm scales."""
    return work.kept + work.network.dense_parameters


def _indexed(work: Workload) -> int:
    """Number of kept weights that need a position: those of layers that are not full."""
    sizes = work.network.param_spec.sizes
    return sum(kept for layer, kept in work.mask.counts.items() if kept < sizes[layer])


def _beside_training(work: Workload, program: Program) -> Items:
    """What the verbs of a program hold beside training; one buffer serves all that need it."""
    found: Items = {}
    for verb in program:
        for name, size in verb.memory(work.load).items():
            found[name] = max(size, found.get(name, 0))
    return found
