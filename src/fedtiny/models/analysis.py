"""What pruning and costs must know of a network: its parameter spec and its profile."""

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph
from fedtiny.graph.operations import OPERATIONS
from fedtiny.models import Traced, traced
from fedtiny.models.dense_layers import dense_by_default
from fedtiny.models.param_spec import ParamSpec, Shape

DEFAULT_BLOCKS = 5


def analyze(model: nn.Module, shape: Shape, graph: Traced, *, depthwise: bool) -> ParamSpec:
    """The parameter spec of a network that takes images of this shape, a view of its graph.

    Prunable is every convolution and linear weight but those of the first layer and of the last,
    in the order in which the network runs them; without `depthwise`, those of depthwise and
    squeeze-and-excite layers are not. A network may name others in an attribute
    `prunable_layers`, but no transposed convolution. It may say how it splits into blocks by an
    attribute `pruning_blocks`, a list of lists of module names; else its prunable layers are cut
    into at most five runs.
    """
    norms = _norms(model)
    _check_float32(model)
    layers = list(dict.fromkeys(run.name for run in runs_of_layers(model, shape, graph)))
    if len(layers) < 3:
        raise ModelError(
            f"the model has {len(layers)} convolution or linear layers; the first and the last "
            "stay dense, so pruning needs at least three"
        )
    state = model.state_dict()  # of which all but counters is averaged
    tensors = {name: tuple(t.shape) for name, t in state.items() if t.is_floating_point()}
    _check_plain(model, layers, tensors)
    never = {name for name in layers if isinstance(model.get_submodule(name), TRANSPOSED)}
    kept_dense = never | (set() if depthwise else dense_by_default(model, layers[1:-1], graph))
    chosen = _chosen(model, [name for name in layers[1:-1] if name not in kept_dense])
    if not chosen <= set(layers):
        raise ModelError(f"the model has no layer {sorted(chosen - set(layers))} to prune")
    if wrong := sorted(chosen & never):
        raise ModelError(
            f"layer '{wrong[0]}' is a transposed convolution, which pruning cannot handle"
        )
    prunable = {f"{name}.weight": tensors[f"{name}.weight"] for name in layers if name in chosen}
    return ParamSpec(
        prunable=prunable,
        dense={name: size for name, size in tensors.items() if name not in prunable},
        blocks=_blocks(model, tuple(prunable), kept_dense),
        norms=norms,
        input_layer=layers[0],
        output_layer=layers[-1],
    )


def _chosen(model: nn.Module, usual: Sequence[str]) -> set[str]:
    """The layers to prune: those that the model names, else the usual ones."""
    if hasattr(model, "prunable_layers"):
        return set(_listed(model.prunable_layers, "prunable_layers", of=str))
    if not usual:
        raise ModelError(
            "every layer between the first and the last is depthwise or squeeze-and-excite, which "
            "stay dense; prune them too with --pruning.depthwise"
        )
    return set(usual)


def _check_float32(model: nn.Module) -> None:
    """What devices train and send is float32; the network's own pass would fail in other words."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ModelError(
                f"parameter '{name}' of the model is {kind}; parameters must be float32: give "
                "model.float()"
            )


def _listed(value: object, attribute: str, of: type) -> list[Any]:
    """The members of a list; of names, one alone is easily forgotten to be put into one."""
    members = list(value) if isinstance(value, Collection) and not isinstance(value, str) else []
    if not members or not all(isinstance(member, of) for member in members):
        raise ModelError(f"{attribute} of the model takes lists of layer names, got {value!r}")
    return members


def _check_plain(model: nn.Module, layers: Sequence[str], tensors: dict[str, Shape]) -> None:
    """Every layer must have a weight of its own."""
    owners: dict[int, str] = {}
    for name in layers:
        if f"{name}.weight" not in tensors:
            raise ModelError(f"layer '{name}' has no plain weight; remove its parametrization")
        weight = model.get_submodule(name).weight
        owner = owners.setdefault(id(weight), name)
        if owner != name:
            raise ModelError(
                f"layers '{owner}' and '{name}' share a weight, which cannot be pruned"
            )


def _norms(model: nn.Module) -> tuple[str, ...]:
    norms = {n: m for n, m in model.named_modules() if isinstance(m, _BatchNorm)}
    for name, norm in norms.items():
        if norm.running_mean is None:
            raise ModelError(
                f"batch-norm layer '{name}' must track its running statistics; make it with "
                "track_running_stats=True"
            )
    return tuple(norms)


def _blocks(
    model: nn.Module, prunable: tuple[str, ...], kept_dense: Collection[str]
) -> tuple[tuple[str, ...], ...]:
    """Blocks as declared, less those whose layers all stay dense by default; or runs of layers."""
    declared = getattr(model, "pruning_blocks", None)
    if declared is None:
        run = ceil(len(prunable) / DEFAULT_BLOCKS)
        return tuple(prunable[i : i + run] for i in range(0, len(prunable), run))
    blocks = _listed(declared, "pruning_blocks", of=object)
    named = [set(_listed(block, "pruning_blocks", of=str)) for block in blocks]
    unknown = set().union(*named) - {name for name, _ in model.named_modules()}
    if unknown:
        raise ModelError(f"pruning_blocks of the model names {sorted(unknown)}, no module of it")
    prefixes = [tuple(f"{module}." for module in block) for block in named]
    found = {block: tuple(n for n in prunable if n.startswith(block)) for block in prefixes}
    dense = {b for b in found if any(f"{name}.".startswith(b) for name in kept_dense)}
    return tuple(layers for block, layers in found.items() if layers or block not in dense)


TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, *TRANSPOSED)
SMALL_BATCH, LARGE_BATCH = 2, 4  # batch norm in training needs two images


@dataclass(frozen=True)
class LayerProfile:
    """A convolution or linear layer; figures are for one image."""

    name: str
    shape: Shape
    uses: int
    """How often an image uses each weight: the positions of a filter, 1 in a linear layer."""

    @property
    def weight(self) -> str:
        """Name of the layer's weight in the state dict."""
        return f"{self.name}.weight"

    @property
    def size(self) -> int:
        """Number of weights."""
        return prod(self.shape)

    @property
    def macs(self) -> int:
        """Multiply-adds of a dense forward pass."""
        return self.uses * self.size


@dataclass(frozen=True)
class Profile:
    """The layers of a network in the order it runs them, its size, and what training keeps.

    Activation bytes are what PyTorch's autograd saves in a forward pass in training mode, the
    network's own tensors left out and each piece of memory counted once: a part that grows with
    the batch, and one that does not (batch norm's means and deviations).
    """

    layers: tuple[LayerProfile, ...]
    parameters: int
    activation_bytes: int
    fixed_activation_bytes: int
    other_macs: int = 0
    """Multiply-adds that no layer's weights are part of: those of attention."""

    @property
    def macs(self) -> int:
        """Multiply-adds of a dense forward pass of one image."""
        return sum(layer.macs for layer in self.layers) + self.other_macs


def profile(model: nn.Module, shape: Shape, graph: Traced | None = None) -> Profile:
    """Profile any network that takes images of this shape; on the meta device nothing is computed.

    The network itself is left as it is: a copy runs. What tracing it gave may be handed in.
    """
    graph = traced(model, shape) if graph is None else graph
    model = copy.deepcopy(model).train()
    with torch.random.fork_rng(devices=[]):
        layers = _once_each(runs_of_layers(model, shape, graph))
        small = _saved_bytes(model, (SMALL_BATCH, *shape))
        large = _saved_bytes(model, (LARGE_BATCH, *shape))
    by_image = (large - small) // (LARGE_BATCH - SMALL_BATCH)
    return Profile(
        layers=layers,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        activation_bytes=by_image,
        fixed_activation_bytes=small - SMALL_BATCH * by_image,
        other_macs=_other_macs(model, shape, graph, layers),
    )


def _other_macs(
    model: nn.Module, shape: Shape, graph: Traced, layers: Iterable[LayerProfile]
) -> int:
    """Read off the graph, or what PyTorch counts beside the layers where there is none."""
    if isinstance(graph, Graph):
        return graph.other_macs
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        _run(model.eval(), (1, *shape))
    return max(0, int(counter.get_total_flops()) // 2 - sum(layer.macs for layer in layers))


def runs_of_layers(model: nn.Module, shape: Shape, graph: Traced) -> list[LayerProfile]:
    """Every run of a layer in one pass: read off the graph, or watched where there is none."""
    if not isinstance(graph, Graph):
        return _watched(model, shape)
    state, runs = model.state_dict(), []
    for number, node in graph.layers.items():
        uses = OPERATIONS[node.kind].uses(graph.read[number][1], graph.shapes[number])
        runs.append(LayerProfile(node.name, tuple(state[f"{node.name}.weight"].shape), uses))
    return runs


def _once_each(runs: Iterable[LayerProfile]) -> tuple[LayerProfile, ...]:
    """One profile a layer; a layer that runs several times uses its weights more often."""
    found: dict[str, LayerProfile] = {}
    for run in runs:
        first = found.get(run.name)
        found[run.name] = run if first is None else replace(first, uses=first.uses + run.uses)
    return tuple(found.values())


def _watched(model: nn.Module, shape: Shape) -> list[LayerProfile]:
    """By hooks, in a pass of one image in eval mode."""
    runs: list[LayerProfile] = []

    def note(name: str, layer: Any, read: tuple[Tensor, ...], output: Tensor) -> None:
        weights = tuple(layer.weight.shape)  # begins with the channels of what has the places
        places = read[0] if isinstance(layer, TRANSPOSED) else output
        runs.append(LayerProfile(name, weights, uses=places.numel() // weights[0]))

    hooks = [
        module.register_forward_hook(partial(note, name))
        for name, module in model.named_modules()
        if isinstance(module, LAYERS)
    ]
    training = model.training
    try:
        with torch.no_grad():
            _run(model.eval(), (1, *shape))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return runs


def _saved_bytes(model: nn.Module, shape: Shape) -> int:
    """Bytes that autograd saves for the backward pass of a batch of this shape."""
    own = {_memory(t) for t in (*model.parameters(), *model.buffers())}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved.setdefault(_memory(tensor), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _run(model, shape)
    return sum(t.untyped_storage().nbytes() for memory, t in saved.items() if memory not in own)


def _run(model: nn.Module, shape: Shape) -> None:
    """Pass a batch of black images of this shape."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        model(torch.zeros(shape, device=device))
    except Exception as error:
        raise ModelError(
            f"the model does not take samples of shape {shape[1:]}: {error}"
        ) from error


def _memory(tensor: Tensor) -> int:
    """What two tensors that share memory have in common."""
    return int(tensor.untyped_storage()._cdata)
