"""What training costs a device and the server: FLOPs, memory and bytes, without training."""

from dataclasses import replace
from typing import Any, Unpack

from fedtiny.config import Config
from fedtiny.config import parse_size as parse_size
from fedtiny.cost import flops, memory, privacy, traffic
from fedtiny.cost.budgets import DoesNotFit as DoesNotFit
from fedtiny.cost.budgets import FlopsNotKnown as FlopsNotKnown
from fedtiny.cost.budgets import fitted as fitted
from fedtiny.cost.budgets import largest_density as largest_density
from fedtiny.cost.network import Network as Network
from fedtiny.cost.workload import CostInputs as CostInputs
from fedtiny.cost.workload import Workload as Workload
from fedtiny.cost.workload import layer_flow_of
from fedtiny.errors import ModelError
from fedtiny.federation.verbs import TRAINING
from fedtiny.models import ReadsOtherDataError
from fedtiny.sparse.vector import VALUE_BYTES

Summary = dict[str, Any]

PLAIN = "fl_pqsu"  # trains a sparse network and does nothing else


def summary(config: Config, **inputs: Unpack[CostInputs]) -> Summary:
    """What training costs a device; nothing is trained.

    FLOPs and memory are those of the costliest round, as in the paper; bytes those of a plain
    round, and those of a round that brings a new mask and adjusts it.

    Args:
        config: The settings of the run.
        **inputs: What the config does not say: `shape` of a sample, number of `classes`, `samples`
            of a device, and `model` if the network is one of your own.

    Returns:
        Costs by name: `flops_round`, `flops_ratio` to a dense round, `memory_paper` and
        `memory_device` in bytes, `bytes_down` and `bytes_up` of a round, `kept_weights`, and more;
        with privacy on, `privacy` (noise multiplier and epsilon of the planned rounds) and
        `secure_aggregation` (extra bytes and masks of a device).

    Example:
        >>> config = fedtiny.Config(model="small", width=4, density=0.1)
        >>> costs = fedtiny.cost.summary(config, shape=(1, 8, 8), classes=10, samples=100)
        >>> costs["flops_ratio"] < 1, costs["kept_weights"]
        (True, 144)
    """
    work = Workload.of(config, **inputs)
    pruning = work.config.pruning
    return {
        "method": config.method,
        "model": config.model,
        "density": config.density,
        "budgets": pruning.budgets,
        "flow_beta": pruning.flow_beta if pruning.budgets == "flow" else None,
        "batch_size": work.config.train.batch_size,
        "kept_weights": work.kept,
        "whole_density": work.network.param_spec.whole_density(work.kept),
        "parameters": work.network.profile.parameters,
        **_flops(work),
        **_memory(work),
        **_traffic(work),
        **_averaged(work),
        **privacy.summary(work),
        "notes": notes(work),
    }


def fitting_summary(config: Config, **inputs: Unpack[CostInputs]) -> Summary:
    """Every cost, at what fits the budgets of the config.

    Where nothing fits, or no small model is small enough, the density is None and a note says why;
    a method whose network does not read such data, or whose FLOPs no budget can bound, is
    `left_out`.
    """
    try:
        inputs.setdefault("flow", layer_flow_of(config, **inputs))  # measured once, and counted
        config = fitted(config, **inputs)
        return summary(config, **inputs)
    except (DoesNotFit, FlopsNotKnown, ModelError) as error:
        least = {f"least_{error.kind}": error.least} if isinstance(error, DoesNotFit) else {}
        none: Summary = {"method": config.method, "model": config.model, "density": None}
        if isinstance(error, ReadsOtherDataError | FlopsNotKnown):
            none["left_out"] = True
        return none | {"notes": [str(error)]} | least


def layers(config: Config, **inputs: Unpack[CostInputs]) -> list[Summary]:
    """FLOPs by layer of plain sparse training at the config's density, for one image."""
    work = Workload.of(replace(config, method=PLAIN), **inputs)
    return [
        {"density": config.density, "name": layer.name, "kept": layer.kept}
        | dict.fromkeys(TRAINING, layer.forward)
        | {"dense": layer.dense}
        for layer in work.load.layers
    ]


def _flops(work: Workload) -> Summary:
    costliest = flops.costliest_round(work)
    items, dense = flops.of_round(work, costliest), flops.dense_round(work)
    return {
        "flops_round": sum(items.values()),
        "flops_ratio": sum(items.values()) / dense,
        "flops_plain": flops.plain(work),
        "flops_training": flops.training(items),
        "flops_exact": sum(items.values()) - flops.never_computed(work, costliest),
        "flops_dense_round": dense,
        "flops_items": items,
        "selection_flops": flops.selection(work),
        "server_flops": flops.server(work),
        **flops.server_passes(work),
    }


def _memory(work: Workload) -> Summary:
    return {
        "memory_paper": memory.total(work, "paper"),
        "memory_device": memory.total(work, "device"),
        "memory_paper_items": memory.paper(work),
        "memory_device_items": memory.device(work),
    }


def _traffic(work: Workload) -> Summary:
    plain = traffic.training_round(work, work.plain_round)
    rounds = [traffic.training_round(work, round, new_mask=True) for round in work.programs]
    selection = traffic.selection(work)
    return {
        "bytes_down": plain.down,
        "bytes_up": plain.up,
        "bytes_adjusting_down": max(found.down for found in rounds),
        "bytes_adjusting_up": max(found.up for found in rounds),
        "selection_bytes_down": selection.down,
        "selection_bytes_up": selection.up,
        "selection_bytes": selection.down + selection.up,
        "selection_bytes_paper": traffic.paper_selection(work),
        "dense_model_bytes": VALUE_BYTES * work.large.profile.parameters,
        "pool_size": work.candidates,
    }


def _averaged(work: Workload) -> Summary:
    """The measurement after the last round, of a final model that is an average."""
    if work.averaged is None:
        return {}
    sent = traffic.averaged(work)
    return {
        "average_flops": flops.averaged(work),
        "average_bytes_down": sent.down,
        "average_bytes_up": sent.up,
    }


def notes(work: Workload) -> list[str]:
    """What a reader should know of these figures."""
    found = []
    if work.trouble:
        found.append(f"'{work.config.method}' {work.trouble}: costed as plain sparse training")
    if work.unknown_verbs:
        names = ", ".join(work.unknown_verbs)
        found.append(f"'{work.config.method}' asks for verbs whose costs are not known: {names}")
    if work.network.not_native:
        found.append(f"devices train it in dense PyTorch: {work.network.not_native}")
    found += [refused] if (refused := privacy.refusal(work)) else []
    if work.method.has_global_threshold:
        found.append(
            "one threshold for all layers is not known before training: costs are those of layers "
            "of the same density"
        )
    found += work.method.remarks(work.network.param_spec)
    sparse = work.kept < work.network.param_spec.prunable_count
    if sparse and not memory.paper_constant(work):
        found.append(
            "memory (paper): the constant in the paper's figures is known for ResNet18 and VGG11 "
            "at their own width only; none is added here"
        )
    return found
