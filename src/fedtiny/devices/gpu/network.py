"""A network whose values live in a few static buffers."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedtiny.devices.engine import Rule, is_decayed, under
from fedtiny.devices.gpu.layout import Layout
from fedtiny.devices.gpu.stand_ins import KeyedDropout, playable
from fedtiny.devices.torch_layers import norms
from fedtiny.errors import ModelError
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

GROWTH = 4  # from a thousandth of the weights to all of them it takes five steps


@dataclass(frozen=True, eq=False)
class Placed:
    """A theta's values and their places, ready on the GPU."""

    mask: Mask
    vector: Tensor
    slots: Tensor


class Network:
    """One copy of the model, computing on views of buffers that never move.

    Growing and dropping rewrites places, never a tensor, so a step captured once stays right
    whatever the mask becomes. `vector` is what is trained, `slots` says where each of its
    weights goes in the flat buffer; beyond the kept ones both are padding. With room for a full
    mask only (`full`), the vector has the flat buffer's own order, and a step looks up no place.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.layout = layout
        self.device = device
        self.dtype = dtype
        self.module = playable(model).to(device)
        _check_norms(self.module)
        self.keys = [m.key for m in self.module.modules() if isinstance(m, KeyedDropout)]
        for name, counter in self.module.named_buffers():
            if name.endswith("num_batches_tracked"):
                counter.data = counter.data.cpu()  # read by the host at every measurement
        self._trained, self._measured = (
            torch.from_numpy(order).to(device) for order in layout.dense_order
        )
        self._dense_slots = torch.from_numpy(layout.dense_slots).to(device)
        self.flat = torch.zeros(layout.slots, dtype=dtype, device=device)
        buffers = dict(self.module.named_buffers())
        self.statistics = {name: buffers[name] for name in layout.statistics}
        self._replace({name: layout.view(name, self.flat) for name in layout.weights})
        self._mask: Mask | None = None
        self._placed: Placed | None = None
        self.full, self.capacity = False, -1
        self.vector, self.slots = torch.empty(0), torch.empty(0, dtype=torch.int64)
        self.reserve(0)

    def _replace(self, tensors: dict[str, Tensor]) -> None:
        """Let the module compute on these tensors."""
        for name, tensor in tensors.items():
            owner, _, attribute = name.rpartition(".")
            module = self.module.get_submodule(owner)
            trained = getattr(module, attribute).requires_grad
            setattr(module, attribute, nn.Parameter(tensor, requires_grad=trained))

    @property
    def mask(self) -> Mask:
        """The mask of what is loaded."""
        assert self._mask is not None
        return self._mask

    @property
    def fixed(self) -> int:
        """Trained values that every theta has: all but kept weights of prunable layers."""
        return len(self._trained)

    def reserve(self, kept: int) -> bool:
        """Make room to train so many kept weights; whether buffers had to move."""
        full = kept == self.layout.param_spec.prunable_count
        if full == self.full and kept <= self.capacity:
            return False
        self._allocate(self._room(kept), full)
        return True

    def reserve_like(self, other: "Network") -> None:
        """Make room for what another network of the same layout has room for."""
        if self.full != other.full or self.capacity < other.capacity:
            self._allocate(other.capacity, other.full)

    def _allocate(self, room: int, full: bool) -> None:
        """Take buffers with room for so many kept weights."""
        self._mask = None
        self.full, self.capacity = full, room
        own, dense = self.layout.own_size, len(self._dense_slots)
        size = self.layout.slots if full else dense + room
        self.vector = torch.zeros(own + size, device=self.device)
        self.slots = torch.full(
            (dense + room,), self.layout.nowhere, dtype=torch.int64, device=self.device
        )
        self.slots[:dense] = self._dense_slots
        starts, views = 0, {}
        for name, shape in self.layout.own.items():
            size = torch.Size(shape).numel()
            views[name] = self.vector[starts : starts + size].view(shape)
            starts += size
        self._replace(views)

    def places(self, kept: int) -> Tensor:
        """Where the vector has what is trained of a theta with so many kept weights."""
        own, count = self.layout.own_size, self.fixed + kept
        places = torch.arange(count, device=self.device)
        if self.full:
            places[own:] = own + self.slots[: count - own]
        return places

    def _room(self, kept: int) -> int:
        """Places for a mask that grows: few sizes, since every new one is compiled anew."""
        room = max(0, self.capacity) or kept
        while room < kept:
            room *= GROWTH
        return min(room, self.layout.param_spec.prunable_count)

    def place(self, theta: Theta, like: Placed | None = None) -> Placed:
        """Bring a theta to where this network is; `like` may know the places of its mask."""
        vector = torch.from_numpy(theta.vector.copy()).to(self.device)
        if like and like.mask is theta.mask:
            slots = like.slots
        else:
            slots = torch.from_numpy(self.layout.kept_slots(theta.mask)).to(self.device)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # other lanes may read it
        return Placed(theta.mask, vector, slots)

    @torch.no_grad()
    def put(self, placed: Placed) -> None:
        """Compute with these values from now on; there must be room for them."""
        kept = len(placed.slots)
        if placed.mask is not self._mask:
            known = self.fixed - self.layout.own_size
            self.flat.zero_()
            self.slots[known : known + kept] = placed.slots
            self.slots[known + kept :] = self.layout.nowhere
            self._mask = placed.mask
        self._placed = placed  # other lanes let go of it while this one may still be reading
        self._fill(self.vector, placed.vector, kept)
        self.measure(placed.vector[kept:][self._measured], [*self.layout.statistics])
        self.spread()

    def _fill(self, vector: Tensor, values: Tensor, kept: int) -> None:
        """Write what is trained of a theta's values where the vector has it."""
        trained = torch.cat([values[kept:][self._trained], values[:kept]])
        vector.zero_()[self.places(kept)] = trained

    @torch.no_grad()
    def vector_of(self, theta: Theta) -> Tensor:
        """What is trained of a theta, as the vector has it under the mask of now."""
        values = torch.from_numpy(under(self.mask, theta).vector.copy()).to(self.device)
        vector = torch.zeros_like(self.vector)
        self._fill(vector, values, self.mask.count)
        return vector

    def decayed(self, rule: Rule) -> Tensor | None:
        """1 for each value of the vector that decays, 0 for others; None if all do."""
        if rule.decay_norms:
            return None
        undecayed = {n for n, s in self.layout.param_spec.dense.items() if not is_decayed(s, rule)}
        return self.at_vector(self.marked(undecayed)).to(torch.float32)

    @torch.no_grad()
    def follow(self, other: "Network") -> None:
        """Compute with the values of another network of the same layout, in this precision."""
        self.reserve_like(other)
        self.flat.zero_()
        self.vector.zero_()[: len(other.vector)] = other.vector
        self.slots.fill_(self.layout.nowhere)[: len(other.slots)] = other.slots
        names = [*self.layout.statistics]
        self.measure(other.measured(names), names)
        self._mask = other.mask
        self.spread()

    def marked(self, without: Collection[str]) -> Tensor:
        """True for all values but those of some parameters: own ones first, then places."""
        own = [
            torch.full((torch.Size(shape).numel(),), name not in without)
            for name, shape in self.layout.own.items()
        ]
        places = torch.ones(self.layout.slots, dtype=torch.bool)
        for name in self.layout.weights:
            self.layout.view(name, places).fill_(name not in without)
        return torch.cat([*own, places]).to(self.device)

    def at_vector(self, marked: Tensor) -> Tensor:
        """Such marks for each value of the vector, under the mask of now."""
        own, places = marked.split([self.layout.own_size, self.layout.slots])
        return torch.cat([own, self.gathered(places)])

    def gathered(self, places: Tensor) -> Tensor:
        """What lies at the places of the vector's weights."""
        return places if self.full else places.index_select(0, self.slots)

    def spread(self) -> None:
        """Write the trained weights to where the network reads them."""
        weights = self.vector[self.layout.own_size :].to(self.dtype)
        if self.full:
            self.flat.copy_(weights)
        else:
            self.flat.index_copy_(0, self.slots, weights)

    @torch.no_grad()
    def measure(self, values: Tensor, names: Sequence[str]) -> None:
        """Set some of the statistics, given one after the other."""
        if not names:
            return
        tensors = [self.statistics[name] for name in names]
        parts = values.split([tensor.numel() for tensor in tensors])
        shaped = [p.view(t.shape) for p, t in zip(parts, tensors, strict=True)]
        torch._foreach_copy_(tensors, shaped)

    @torch.no_grad()
    def measured(self, names: Sequence[str]) -> Tensor:
        """Some of the statistics, one after the other."""
        flat = [self.statistics[name].reshape(-1) for name in names]
        return torch.cat(flat) if flat else torch.empty(0, device=self.device)

    @torch.no_grad()
    def theta(self) -> Theta:
        """The values as they are now."""
        kept = self.mask.count
        dense = torch.empty(len(self._trained) + len(self._measured), device=self.device)
        trained = self.vector[self.places(kept)]
        dense[self._trained] = trained[: self.fixed]
        dense[self._measured] = self.measured([*self.layout.statistics])
        vector = torch.cat([trained[self.fixed :], dense])
        return Theta(self.mask, fetched(vector).numpy())

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the module computes with, by name."""
        counters = "num_batches_tracked"
        named = (*self.module.named_parameters(), *self.module.named_buffers())
        return {name: tensor for name, tensor in named if not name.endswith(counters)}

    @contextmanager
    def computing(self) -> Iterator[nn.Module]:
        """The module, in the precision of the computation."""
        with precision(self.device, self.dtype):
            yield self.module

    def set_keys(self, seed: int) -> None:
        """Draw dropout from this seed, each layer by a key that no other comes to by stepping."""
        mixed = np.random.SeedSequence(seed).generate_state(len(self.keys), np.uint64)
        for key, bits in zip(self.keys, mixed.view(np.int64).tolist(), strict=True):
            key.fill_(bits)


def fetched(values: Tensor) -> Tensor:
    """A tensor on the host; page-locked memory, which torch uses again, spares a slow copy."""
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values)


@contextmanager
def precision(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Convolutions and linear layers in this precision."""
    reduced = dtype != torch.float32
    with torch.autocast(device.type, dtype=dtype if reduced else torch.bfloat16, enabled=reduced):
        yield


def _check_norms(model: nn.Module) -> None:
    for name, norm in norms(model).items():
        if norm.momentum is None:
            raise ModelError(
                f"batch-norm layer '{name}' counts its batches (momentum None), which a recorded "
                "step cannot; give it a momentum or use --simulator reference"
            )
