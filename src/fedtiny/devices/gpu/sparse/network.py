"""Several copies of a network under one mask, trained side by side at the kept weights only."""

import numpy as np
import torch
from torch import Tensor

from fedtiny.devices.engine import Adam, Rule
from fedtiny.devices.gpu.sparse.arguments import Segment, Tick, Update, address
from fedtiny.devices.gpu.sparse.head import Head, Values, dropouts
from fedtiny.devices.gpu.sparse.launches import SMALL, Builder, Launch, Work
from fedtiny.devices.gpu.sparse.lowering import Collect, Convolution, ConvolutionGradient
from fedtiny.devices.gpu.sparse.memory import Activations, Layout
from fedtiny.devices.gpu.sparse.plan import Plan
from fedtiny.devices.gpu.sparse.taps import make_taps
from fedtiny.sparse.mask import Mask

RATES = 11  # see the enum in cuda/update.cuh


class SparseNetwork:
    """The buffers and launches of a training step for up to so many devices.

    What a mask changes is data: taps, work and places. Only one that keeps more than there is room
    for moves the buffers.
    """

    def __init__(self, plan: Plan, devices: int, device: torch.device, *, adam: bool) -> None:
        self.plan = plan
        self.devices = devices
        self.device = device
        self.adam = adam
        self.mask: Mask | None = None
        self.layout = Layout(plan.param_spec, plan.groups, (0,) * len(plan.groups))
        self.labels = self._zeros(devices, plan.batch, dtype=torch.int64)
        self.keys = self._zeros(devices, max(1, dropouts(plan.forward.head)), dtype=torch.int64)
        self.losses = self._zeros(devices, plan.batch, dtype=torch.float64)
        self.next = self._zeros(1, dtype=torch.int32)
        self.exact = self._zeros(4, dtype=torch.float64)
        self.rates = self._zeros(RATES)
        self.freeze_bn = self._zeros(1, dtype=torch.int32)
        self.activations = Activations(devices, plan.images, device)

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    @property
    def image_tensor(self) -> Tensor:
        """Where a batch goes."""
        return self.activations.tensor(self.plan.forward.image.buffer)

    def has_room(self, mask: Mask) -> bool:
        """Whether this mask can be used without moving buffers."""
        return self.layout.fits(mask)

    def use(self, mask: Mask) -> None:
        """Compute under this mask from now on; buffers move if it has no room."""
        if mask == self.mask:
            return
        if not self.has_room(mask):
            self._reserve(mask)
        for work, group in zip(self.works.values(), self.layout.groups, strict=True):
            kept = [self.layout.kept(name, mask) for name in group]
            source = work.step.source.channels
            both = (work.tile, work.back)
            work.put(
                make_taps(work.step.nodes, source, kept, both, work.slots, cut=work.only_weights)
            )
        self.moves.copy_(torch.from_numpy(self.layout.moves(mask)))
        self.places = torch.from_numpy(self.layout.places(mask)).to(self.device)
        self.values.zero_()
        self.mask = mask

    def _reserve(self, mask: Mask) -> None:
        """Make room for a mask, and everything that has addresses."""
        before, self.layout = self.layout, self.layout.roomy(mask)
        try:
            self._allocate()
        except torch.OutOfMemoryError:
            self.layout = before
            raise
        self._build()

    def _allocate(self) -> None:
        values, dense = self.layout.values, self.layout.dense
        self.values, self.first = (self._zeros(self.devices, values) for _ in range(2))
        self.second = self._zeros(self.devices, values if self.adam else 1)
        self.received = self._zeros(values)
        self.gradient = self._zeros(self.devices, dense)
        self.moves = self._zeros(dense, dtype=torch.uint8)
        self.works = {
            step: Work(
                step,
                *self.plan.tiles[step],
                room,
                all(name in self.plan.param_spec.dense for name in names),
                self.plan.limit,
                self.devices,
                self.device,
            )
            for step, names, room in zip(
                self.plan.convolutions, self.layout.groups, self.layout.rooms, strict=True
            )
        }

    def _build(self) -> None:
        """The launches of a step, and the kernels that they need."""
        plan = self.plan
        tensors = (self.layout.starts, self.values, self.gradient, self.freeze_bn)
        builder = Builder(
            plan.forward, self.activations, self.works, *tensors, plan.batch, plan.word
        )
        self._builder = builder  # it has the room for sums
        self.there: list[Launch] = []
        for step in plan.forward.steps:
            if isinstance(step, Convolution):
                self.there += builder.convolution(step)
            else:
                self.there += builder.elementwise(step)
        self.there.append(builder.head_features())
        parameters = (self.values, self.gradient, self.layout.starts)
        head = Head(plan.forward.head, *parameters, self.labels, self.losses, self.keys)
        self.head = head.steps(Values(builder.features, builder.features_gradient))
        self.back: list[Launch] = []
        for grad in plan.backward:
            if isinstance(grad, ConvolutionGradient):
                self.back += builder.gradients(grad)
            elif isinstance(grad, Collect):
                self.back += builder.collect(grad)
            else:
                self.back += builder.norm_gradient(grad)
        self.update = self._update()

    def _update(self) -> Update:
        segments = [
            Segment(
                *map(address, (work.part, work.taps, work.back_taps, work.place)),
                *(work.back.tiles, work.room, first, 0),
            )
            for work, first in zip(self.works.values(), self.layout.segments, strict=True)
        ]
        held = b"".join(map(bytes, segments))
        self._segments = torch.frombuffer(bytearray(held), dtype=torch.uint8).to(self.device)
        tensors = (self._segments, self.values, self.gradient, self.first, self.second)
        return Update(
            *map(address, (*tensors, self.received, self.moves, self.rates)),
            *(self.layout.values, self.layout.dense, int(self.adam)),
        )

    @property
    def updates(self) -> list[Launch]:
        """The launches of the optimizer."""
        dense = (-(-self.layout.dense // SMALL), 1)
        return [Launch("update_dense", dense, SMALL, self.update), self._by_segment("update_kept")]

    def _by_segment(self, name: str) -> Launch:
        grid = (-(-max(self.layout.rooms) // SMALL), len(self.works))
        return Launch(name, grid, SMALL, self.update)

    @property
    def spread(self) -> Launch:
        """Brings weights from the values to the taps."""
        return self._by_segment("spread")

    @property
    def tick(self) -> Launch:
        """Counts a step."""
        tensors = (self.next, self.exact, self.rates)
        return Launch("tick", (1, 1), 32, Tick(*map(address, tensors), int(self.adam)))

    def load(self, vector: Tensor, rule: Rule) -> None:
        """Give every device the values of a theta, with a fresh optimizer of this rule."""
        self.values[:, self.places] = vector
        self.received[self.places] = vector
        for tensor in (self.first, self.second, self.losses, self.next):
            tensor.zero_()
        betas = rule.betas if isinstance(rule, Adam) else (rule.momentum, 0.0)
        epsilon = rule.eps if isinstance(rule, Adam) else 0.0
        rest = [value for beta in betas for value in (beta, 1 - beta)]
        norm_decay = rule.weight_decay if rule.decay_norms else 0.0
        rates = [rule.lr, rule.weight_decay, rule.proximal_mu, *rest, epsilon, 0.0, 1.0, norm_decay]
        self.rates.copy_(torch.tensor(rates))
        self.freeze_bn.fill_(rule.freeze_bn)
        self.exact.copy_(torch.tensor([0.0, rule.lr, *betas], dtype=torch.float64))

    def set_keys(self, seeds: list[int]) -> None:
        """Draw each device's dropout from a seed, as `Network.set_keys` does."""
        count = self.keys.shape[1]
        mixed = [np.random.SeedSequence(seed).generate_state(count, np.uint64) for seed in seeds]
        self.keys[: len(seeds)] = torch.from_numpy(np.stack(mixed).view(np.int64))

    def vectors(self, active: int) -> Tensor:
        """The values of the first devices, each as a theta has them."""
        return self.values[:active].index_select(1, self.places)
