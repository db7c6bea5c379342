"""Reading the parameter spec off a network."""

from collections import Counter
from collections.abc import Collection, Sequence
from math import ceil
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedtiny.errors import ModelError
from fedtiny.models import Traced
from fedtiny.models.param_spec import ParamSpec, Shape
from fedtiny.models.profile import runs_of_layers

DEFAULT_BLOCKS = 5


def analyze(model: nn.Module, shape: Shape, graph: Traced) -> ParamSpec:
    """The parameter spec of a network that takes images of this shape, a view of its graph.

    Prunable is every convolution and linear weight but those of the first layer and of the last,
    in the order in which the network runs them; a network may name others in an attribute
    `prunable_layers`. It may say how it splits into blocks by an attribute `pruning_blocks`, a list
    of lists of module names; else its prunable layers are cut into at most five runs.
    """
    norms = _norms(model)
    _check_float32(model)
    layers = _layers_in_order(model, shape, graph)
    if len(layers) < 3:
        raise ModelError(
            f"the model has {len(layers)} convolution or linear layers; the first and the last "
            "stay dense, so pruning needs at least three"
        )
    tensors = _tensors(model)
    _check_plain(model, layers, tensors)
    asked = getattr(model, "prunable_layers", layers[1:-1])
    chosen = set(_listed(asked, "prunable_layers", of=str))
    if not chosen <= set(layers):
        raise ModelError(f"the model has no layer {sorted(chosen - set(layers))} to prune")
    prunable = {f"{name}.weight": tensors[f"{name}.weight"] for name in layers if name in chosen}
    return ParamSpec(
        prunable=prunable,
        dense={name: size for name, size in tensors.items() if name not in prunable},
        blocks=_blocks(model, tuple(prunable)),
        norms=norms,
        input_layer=layers[0],
        output_layer=layers[-1],
    )


def _layers_in_order(model: nn.Module, shape: Shape, graph: Traced) -> list[str]:
    runs = Counter(run.name for run in runs_of_layers(model, shape, graph))
    for name, count in runs.items():
        if count > 1:
            raise ModelError(f"layer '{name}' runs twice in a pass, which pruning cannot handle")
    return list(runs)


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


def _tensors(model: nn.Module) -> dict[str, Shape]:
    """Every tensor that is averaged: all of the state but counters."""
    state = model.state_dict()
    return {name: tuple(t.shape) for name, t in state.items() if t.is_floating_point()}


def _norms(model: nn.Module) -> tuple[str, ...]:
    norms = {n: m for n, m in model.named_modules() if isinstance(m, _BatchNorm)}
    for name, norm in norms.items():
        if norm.running_mean is None:
            raise ModelError(
                f"batch-norm layer '{name}' must track its running statistics; make it with "
                "track_running_stats=True"
            )
    return tuple(norms)


def _blocks(model: nn.Module, prunable: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
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
    return tuple(tuple(n for n in prunable if n.startswith(block)) for block in prefixes)
