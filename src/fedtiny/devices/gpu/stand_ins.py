"""Layers that others stand in for on a GPU, where their own kernels would not repeat."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedtiny.devices.torch_layers import deterministic_pool
from fedtiny.errors import ModelError

NEXT = -7046029254386353131  # the golden ratio in 64 bits, as splitmix64 adds it
FACTORS = (-4658895280553007687, -7723592293110705685)
BITS = 24
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
KINDS = (nn.Dropout, *CHANNELS)
OTHERS = (nn.AlphaDropout, nn.FeatureAlphaDropout)


class KeyedDropout(nn.Module):
    """Drops by a key that lies in a tensor, so a captured step can be replayed with other keys.

    No draw depends on what a process did before, and lanes share no generator.
    """

    key: Tensor

    def __init__(self, p: float, whole_channels: bool = False) -> None:
        super().__init__()
        self.p = p
        self.whole_channels = whole_channels
        self.register_buffer("key", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.whole_channels else x.shape
        return keyed_dropout(x, self.p, self.key, shape)


def keyed_dropout(x: Tensor, p: float, keys: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Drop by keys that broadcast against a draw for each place of a shape."""
    positions = torch.arange(math.prod(shape), device=x.device).view(shape)
    # Added first: torch.compile would multiply plain positions in 32 bits.
    kept = _uniform((positions + _mixed(keys)) * NEXT) >= p
    scale = 1 / (1 - p) if p < 1 else 0.0
    return torch.where(kept, x * scale, torch.zeros_like(x))


def _uniform(bits: Tensor) -> Tensor:
    """Numbers in [0, 1), one for each integer."""
    drawn: Tensor = _shifted(_mixed(bits), 64 - BITS).to(torch.float32) / 2**BITS
    return drawn


def _mixed(bits: Tensor) -> Tensor:
    """The finishing steps of splitmix64."""
    for shift, factor in zip((30, 27), FACTORS, strict=True):
        bits = (bits ^ _shifted(bits, shift)) * factor
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shifted right with zeros coming in, as if the integers had no sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def playable(model: nn.Module) -> nn.Module:
    """A copy of the model whose dropout and adaptive pooling give the same when replayed.

    A layer is replaced under all of its names by the same one.
    """
    played, made = copy.deepcopy(model), dict[nn.Module, nn.Module | None]()
    for name, module in list(played.named_modules(remove_duplicate=False)):
        if module not in made:
            made[module] = deterministic_pool(module) or _keyed(name, module)
        other = made[module]
        if name and other is not None:
            parent, _, child = name.rpartition(".")
            setattr(played.get_submodule(parent), child, other)
    return played


def _keyed(name: str, module: nn.Module) -> nn.Module | None:
    """Dropout drawn by a key of its own, in place of any other."""
    if isinstance(module, OTHERS):
        raise ModelError(
            f"layer '{name}' is a {type(module).__name__}, which the GPU simulator cannot "
            "draw; use --simulator reference"
        )
    if not isinstance(module, KINDS) or type(module) not in KINDS:  # a subclass may do otherwise
        return None
    return KeyedDropout(module.p, isinstance(module, CHANNELS))


@contextmanager
def only_keyed_draws(device: torch.device) -> Iterator[None]:
    """Refuse what draws from PyTorch's own generators: lanes share them, and no run seeds them."""
    before = _generators(device)
    yield
    if not all(map(torch.equal, before, _generators(device))):
        raise ModelError(
            "this network draws random numbers by itself (F.dropout or torch.rand, say), which "
            "the GPU simulator cannot repeat; use nn.Dropout or --simulator reference"
        )


def _generators(device: torch.device) -> list[Tensor]:
    cards = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *cards]
