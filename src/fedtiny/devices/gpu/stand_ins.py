"""Layers that are played by others on a GPU, where their own kernels would not repeat."""

from collections.abc import Callable

from torch import nn

StandIn = Callable[[str, nn.Module], nn.Module | None]


def replaced(model: nn.Module, stand_in: StandIn) -> nn.Module:
    """The same model with some layers replaced, under all of their names by the same one."""
    made: dict[nn.Module, nn.Module | None] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module not in made:
            made[module] = stand_in(name, module)
        other = made[module]
        if name and other is not None:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, other)
    return model
