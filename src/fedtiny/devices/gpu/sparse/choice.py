"""Whether sparse kernels can train a network, and under which masks that is faster."""

from math import prod

import torch
from torch import nn

from fedtiny.devices.gpu.sparse.compiler import unavailable
from fedtiny.devices.gpu.sparse.lowering import UnsupportedNetworkError
from fedtiny.devices.gpu.sparse.plan import Plan
from fedtiny.errors import KernelError
from fedtiny.graph.ir import Graph
from fedtiny.models import Traced, untrained
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask

CROSSOVER = 0.04  # above this share of the multiply-adds dense kernels are faster
EMULATED_SHARED = 227 * 1024  # bytes of shared memory of a block, as an H100 has them
LEAST_SHARED = 99 * 1024  # of any card that has bf16


def plan_for(
    model: nn.Module,
    param_spec: ParamSpec,
    graph: Traced,
    device: torch.device,
    *,
    batch: int,
    precision: str,
) -> Plan:
    """How a device trains a network at the kept weights only; raises why it cannot."""
    if reason := unavailable(device):
        raise KernelError(reason)
    if not isinstance(graph, Graph):
        raise graph
    if reason := untrained(model, param_spec, graph.tensors):
        raise UnsupportedNetworkError(reason)
    word = "bf16" if precision == "bf16" else "fp32"
    return Plan(graph, param_spec, batch, word, shared_memory(device))


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block may have."""
    if device.type == "cpu":
        return EMULATED_SHARED
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", LEAST_SHARED))


def kept_share(graph: Graph, mask: Mask) -> float:
    """Share of a dense network's multiply-adds that its kept weights take."""
    kept = dense = 0
    for layer, uses in graph.uses.items():
        name, size = f"{layer}.weight", prod(graph.weight_shapes[layer])
        dense += size * uses
        kept += (mask.kept(name) if name in mask.param_spec.prunable else size) * uses
    return kept / dense
