"""The launches of a training step: what each kernel is given."""

from collections.abc import Iterable, Mapping
from ctypes import Structure
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from fedtiny.devices.gpu.sparse.arguments import Conv, Norm, Plane, View, address
from fedtiny.devices.gpu.sparse.lowering import (
    Buffer,
    Collect,
    Convolution,
    ConvolutionGradient,
    Elementwise,
    Forward,
    NormGradient,
    Value,
)
from fedtiny.devices.gpu.sparse.memory import Activations
from fedtiny.devices.gpu.sparse.taps import Taps, max_items
from fedtiny.devices.gpu.sparse.tiles import SPARE, Tile
from fedtiny.graph.ir import Kind

THREADS = 512
DEEP_THREADS = 384  # of a gradient with many positions a lane, which wants registers
SMALL = 256
TENSOR_CORE_TAPS = 32
WORDS_A_BLOCK = 1024
MAX_SHARED = 8  # blocks that share a tile, each of which loads it
MANY = 4  # devices that are worth two blocks for each that a GPU has at a time
KINDS = {
    **{"add": 0, Kind.ADD: 0, Kind.MAX_POOL: 1, Kind.MEAN_POOL: 2},
    **{"norm": 3, "features": 4, Kind.ADAPTIVE_POOL: 5},
}
"""Of elementwise steps, as cuda/elementwise.cuh numbers them."""


@dataclass(frozen=True)
class Launch:
    """A kernel and what it is given; its grid has the devices as the last axis."""

    kernel: str
    grid: tuple[int, int]
    threads: int
    args: Structure
    shared: int = 0
    body: str = ""
    """Of a kernel that is made for this launch, what it calls."""
    blocks: int = 1
    """Blocks that a multiprocessor has at a time, at least."""
    slots: int = 0
    """Blocks that the GPU has at a time, if blocks may share what a tile asks for."""

    def shape(self, devices: int) -> tuple[int, int, int]:
        """The grid for so many devices: where they are few, more blocks share a tile."""
        tiles, shared = self.grid
        if self.slots:
            waves = 2 if devices >= MANY else 1
            shared = min(MAX_SHARED, max(1, -(-waves * self.slots // (tiles * devices))))
        return tiles, shared, devices


@dataclass(eq=False)
class Work:
    """The tensors of a convolution: its taps in both orders, its work, its weights' gradients.

    `dense` is one that is never pruned.
    """

    step: Convolution
    tile: Tile
    back: Tile
    room: int
    dense: bool
    limit: int
    devices: int
    device: torch.device

    def __post_init__(self) -> None:
        self.taps, self.back_taps = self._taps(), self._taps()
        source = self.step.source.channels
        classes = self.classes
        items = source * classes
        if self.only_weights:
            items = max_items(source, self.stride, self.room)
        self.work = self._integers(self.step.buffer.channels, 4)
        self.back_work = self._integers(items, 4)
        self.place = self._integers(self.room) - 1
        shape = (self.devices, self.back.tiles, self.room)
        self.part = torch.zeros(shape, device=self.device)

    def _integers(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    def _taps(self) -> Tensor:
        return self._integers(self.devices * self.room + 16, 2)  # some behind the end are read

    def put(self, taps: Taps) -> None:
        """Work on these taps."""
        for held, offsets in ((self.taps, taps.offsets), (self.back_taps, taps.back_offsets)):
            each = held[: self.devices * self.room].view(self.devices, self.room, 2)
            each[:, : len(offsets), 0] = torch.from_numpy(offsets).to(self.device)
        self.work.copy_(torch.from_numpy(taps.work))
        self.back_work.zero_()[: len(taps.back_work)] = torch.from_numpy(taps.back_work)
        self.place.fill_(-1)[: len(taps.place)] = torch.from_numpy(taps.place)

    @property
    def only_weights(self) -> bool:
        """Whether nobody wants the gradient of what it reads: the image's."""
        return self.step.source.maker is None

    @property
    def fits_tensor_cores(self) -> bool:
        """Whether it is a product of dense matrices on whole tiles: the first layer."""
        node, tiles = self.step.nodes[0], (self.tile, self.back)
        taps = self.step.source.channels * node.kernel[0] * node.kernel[1]
        return (
            self.only_weights
            and self.dense
            and len(self.step.nodes) == 1
            and self.stride == 1
            and self.step.source.buffer.size == self.step.buffer.size
            and taps <= TENSOR_CORE_TAPS
            and self.step.buffer.channels % 16 == 0
            and self.step.buffer.channels <= THREADS // 2  # a warp for sixteen filters
            and max(self.dense_shared) <= self.limit
            and all(t.exact and t.images == 1 and t.pitch % 4 == 0 and not t.left for t in tiles)
            and self.tile.rows == self.back.rows
            and self.tile.columns % 8 == 0
        )

    @property
    def dense_shared(self) -> tuple[int, int]:
        """Bytes of shared memory on the tensor cores, forward and backward (tensor_cores.cuh)."""
        warps, filters = THREADS // 32, self.step.buffer.channels
        weights, sums = filters * 20 * 4, warps * filters * 8
        products = warps * 16 * TENSOR_CORE_TAPS * 4
        both = self.tile.shared + self.back.shared
        return self.tile.shared + weights + sums, max(both, products)

    @property
    def stride(self) -> int:
        """Of the convolution."""
        return self.step.nodes[0].stride[0]

    @property
    def classes(self) -> int:
        """Kinds of positions of the input, by where a stride leaves them."""
        return self.stride * self.stride

    @property
    def threads(self) -> tuple[int, int]:
        """Of a block, forward and backward."""
        there, back = (THREADS * 2 // self.blocks(tile) for tile in (self.tile, self.back))
        return there, DEEP_THREADS if self.back.depth >= 8 else back

    def blocks(self, tile: Tile) -> int:
        """Blocks that a multiprocessor has room for."""
        return 2 if tile.shared <= self.limit // 2 - SPARE else 1

    @property
    def slots(self) -> tuple[int, int]:
        """Warps that share the work of a tile, forward and backward."""
        there, back = self.threads
        return there // 32, back // 32


class Builder:
    """Makes the launches of a network's steps."""

    def __init__(
        self,
        forward: Forward,
        activations: Activations,
        works: Mapping[Convolution, Work],
        places: Mapping[str, int],
        values: Tensor,
        gradient: Tensor,
        freeze_bn: Tensor,
        batch: int,
        word: str,
    ) -> None:
        self.forward = forward
        self.activations = activations
        self.works = works
        self.places = places
        self.values = values
        self.gradient = gradient
        self.freeze_bn = freeze_bn
        self.batch = batch
        self.word = word
        size = forward.features.channels * prod(forward.features.buffer.size)
        area = prod(forward.features.buffer.size) if forward.mean else 1
        shape = (activations.devices, batch, size // area)
        self.features = torch.zeros(shape, device=activations.device)
        self.features_gradient = torch.zeros_like(self.features)

    @cached_property
    def _part(self) -> Tensor:
        """Room for the sums of any step."""
        values = [4 * w.tile.tiles * w.step.buffer.channels for w in self.works.values()]
        values += [
            4 * w.back.tiles * w.classes * w.step.source.channels for w in self.works.values()
        ]
        most = max(out.channels for step in self.forward.steps for out in step.outs)
        values.append(4 * self.activations.images * most)
        return torch.zeros(self.activations.devices * max(values), device=self.activations.device)

    def convolution(self, step: Convolution) -> list[Launch]:
        """A convolution, and the coefficients that its sums give."""
        work, source, out = self.works[step], step.source, step.buffer
        mode = "AFFINE" if source.shifted else "PLAIN"
        args = self._conv(work.tile, source.channels, source.buffer, out)
        args.source = self.activations.view(source)
        args.items, args.room, args.step = out.channels, work.room, 1
        args.sums, args.part = int(step.normed), address(self._part)
        args.taps, args.work = address(work.taps), address(work.work)
        if work.fits_tensor_cores and self.word == "Bf16Pair":
            launch = self._dense_convolution(work, args, mode)
        else:
            body = f"convolve<{work.tile.cpp(self.word)}, {mode}>(args);"
            launch = self._tiled("convolve", work, work.tile, work.threads[0], args, body)
        tiles = work.tile.tiles
        return [launch, *(self._norm(out, tiles) for out in step.outs if out.shifted)]

    def _dense_convolution(self, work: Work, args: Conv, mode: str) -> Launch:
        node, filters = work.step.nodes[0], work.step.buffer.channels
        numbers = (filters, work.step.source.channels, *node.kernel, node.padding[1])
        body = f"dense_convolve<{work.tile.cpp(self.word)}, {mode}, {_listed(numbers)}>(args);"
        shared = work.dense_shared[0]
        return Launch("convolve", (work.tile.tiles, 1), THREADS, args, shared, body)

    def _conv(self, tile: Tile, channels: int, source: Buffer, out: Buffer) -> Conv:
        args = Conv(channels=channels, images=self.activations.images, classes=1)
        args.height, args.width = source.size
        args.tiles_x, args.tiles_y = tile.tiles_x, tile.tiles_y
        args.out_height, args.out_width = out.size
        args.out = address(self.activations.tensor(out))
        args.out_channels, args.out_stride = out.channels, out.channels * prod(out.size)
        return args

    def _tiled(
        self, name: str, work: Work, tile: Tile, threads: int, args: Conv, body: str
    ) -> Launch:
        blocks = work.blocks(tile)
        slots = blocks * self.activations.multiprocessors
        return Launch(name, (tile.tiles, 1), threads, args, tile.shared, body, blocks, slots)

    def _norm(self, value: Value, tiles: int) -> Launch:
        args = self._norm_args(value)
        args.part, args.tiles = address(self._part), tiles
        args.of, args.first = value.buffer.channels, value.first
        return Launch("norm_forward", (-(-value.channels // 32), 1), 1024, args)

    def _norm_args(self, value: Value) -> Norm:
        node, devices = value.norm, self.activations
        args = Norm(channels=value.channels, plain=int(node is None))
        args.count = float(self.batch * prod(value.buffer.size))
        args.theta, args.values = address(self.values), self.values.shape[1]
        args.gradient, args.dense = address(self.gradient), self.gradient.shape[1]
        args.frozen = address(self.freeze_bn)
        args.bias = self.places.get(value.bias, -1)
        name = node.name if node else ""
        args.scale = self.places.get(f"{name}.weight", -1)
        args.shift = self.places.get(f"{name}.bias", -1)
        args.mean = self.places.get(f"{name}.running_mean", -1)
        args.variance = self.places.get(f"{name}.running_var", -1)
        if node:
            args.epsilon, args.momentum = node.epsilon, node.momentum
        skipped = 4 * value.first
        args.coef = address(devices.coefs(value.buffer), skipped)
        args.gradient_coef = address(devices.coefs(value.buffer, "gradient"), skipped)
        args.coefs = value.buffer.channels
        return args

    def elementwise(self, step: Elementwise) -> list[Launch]:
        """A sum, a copy or a pool."""
        out, sources = step.out, step.sources
        args = self._plane(out.buffer)
        args.kind = KINDS[step.kind]
        args.a = self.activations.view(sources[0])
        if len(sources) > 1:
            args.b = self.activations.view(sources[1])
        args.out = address(self.activations.tensor(out.buffer))
        args.floor = 0.0 if out.relu_stored else float("-inf")
        if step.kind != Kind.ADD:
            self._window(args, step, sources[0].buffer)
        if step.kind == Kind.ADD and len(sources) == 2 and prod(out.buffer.size) % 4 == 0:
            size = out.channels * prod(out.buffer.size)
            grid = (-(-size // 4 // SMALL), self.activations.images)
            return [Launch("added", grid, SMALL, args, body=f"added<{self.word}>(args);")]
        if out.norm is not None:
            args.sums, args.part = 1, address(self._part)
        launch = self._grouped("combined", args)
        return [launch, *([self._norm(out, launch.grid[1])] if out.shifted else [])]

    def _plane(self, buffer: Buffer) -> Plane:
        args = Plane(channels=buffer.channels, images=self.activations.images, area=1)
        args.height, args.width = buffer.size
        args.stride = buffer.channels * prod(buffer.size)
        args.group = max(1, WORDS_A_BLOCK // prod(buffer.size))
        return args

    def _grouped(self, name: str, args: Plane) -> Launch:
        grid = (args.channels, -(-self.activations.images // args.group))
        return Launch(name, grid, SMALL, args, body=f"{name}<{self.word}>(args);")

    def _window(self, args: Plane, step: Elementwise, other: Buffer) -> None:
        node = step.node
        args.in_height, args.in_width = other.size
        args.kernel_y, args.kernel_x = node.kernel
        args.step_y, args.step_x = node.stride
        args.pad_y, args.pad_x = node.padding
        args.count_padding = int(node.count_padding)

    def head_features(self) -> Launch:
        """What the head reads, in fp32."""
        value = self.forward.features
        args = self._featured(value)
        args.a = self.activations.view(value)
        args.features = address(self.features)
        grid = (-(-self.features.shape[2] // SMALL), self.activations.images)
        return Launch("featured", grid, SMALL, args, body=f"featured<{self.word}>(args);")

    def _featured(self, value: Value) -> Plane:
        args = self._plane(Buffer(value.channels, value.buffer.size))
        args.area = prod(value.buffer.size) if self.forward.mean else 1
        return args

    def gradients(self, step: ConvolutionGradient) -> list[Launch]:
        """The gradients of a convolution."""
        convolution, work = step.step, self.works[step.step]
        source, out = convolution.source, convolution.buffer
        args = self._conv(work.back, out.channels, out, Buffer(source.channels, source.buffer.size))
        args.out = address(self.activations.tensor(step.out)) if step.out else None
        args.source, mode = self._output_gradient(args, convolution), "PLAIN"
        if convolution.normed:
            mode = "GRADIENT"
        args.input = self.activations.view(source, relu=step.final)
        args.items, args.room = len(work.back_work), work.room
        args.step, args.classes = work.stride, work.classes
        args.taps, args.work = address(work.back_taps), address(work.back_work)
        args.weight_part = address(work.part)
        if step.more:
            args.more = address(self.activations.tensor(step.more))
            args.more_stride = step.more.channels * prod(step.more.size)
        self._sums(args, step.norms)
        if work.fits_tensor_cores and self.word == "Bf16Pair":
            return [self._dense_gradients(work, args, mode)]
        only = str(step.out is None).lower()
        body = f"gradients<{work.back.cpp(self.word)}, {mode}, {only}>(args);"
        return [self._tiled("gradients", work, work.back, work.threads[1], args, body)]

    def _dense_gradients(self, work: Work, args: Conv, mode: str) -> Launch:
        node, shared = work.step.nodes[0], work.dense_shared[1]
        tiles = f"{work.back.cpp(self.word)}, {work.tile.cpp(self.word)}"
        numbers = (node.channels, work.step.source.channels, *node.kernel, node.padding[1])
        body = f"dense_gradients<{tiles}, {mode}, {_listed(numbers)}>(args);"
        blocks = 2 if shared <= work.limit // 2 - SPARE else 1
        return Launch("gradients", (work.back.tiles, 1), THREADS, args, shared, body, blocks)

    def _output_gradient(self, args: Conv, step: Convolution) -> View:
        """How the gradient of a convolution's output is read; of two outputs in two parts."""
        made = [out.gradient for out in step.outs]
        assert all(made)
        buffers = [buffer for buffer in made if buffer]
        if not step.normed:
            return self.activations.plain(buffers[0])
        args.g1 = address(self.activations.tensor(buffers[0]))
        args.g1_stride = buffers[0].channels * prod(buffers[0].size)
        args.split = buffers[0].channels
        if len(buffers) > 1:
            args.g2 = address(self.activations.tensor(buffers[1]))
            args.g2_stride = buffers[1].channels * prod(buffers[1].size)
        everything = Value(step.buffer, step.buffer.channels)
        return self.activations.raw(everything, "gradient")

    def _sums(self, args: Conv | Plane, norms: tuple[Value, ...]) -> None:
        args.sums, args.gradient_part = int(bool(norms)), address(self._part)
        if norms:
            args.norm1 = self.activations.raw(norms[0])
        if len(norms) > 1:
            args.norm2 = self.activations.raw(norms[1])

    def collect(self, step: Collect) -> list[Launch]:
        """The gradient of a value from what is no convolution."""
        value = step.value
        args = self._featured(value) if step.kind == "features" else self._plane(step.out)
        args.out = address(self.activations.tensor(step.out))
        args.a = self.activations.view(value, relu=step.final)
        args.kind = KINDS[step.step.kind if step.step else step.kind]
        args.features = address(self.features_gradient)
        if step.kind == "norm":
            args.a = self.activations.raw(value, "gradient")
        if step.gradient:
            args.g1 = address(self.activations.tensor(step.gradient))
            args.g1_stride = step.gradient.channels * prod(step.gradient.size)
        if step.step:
            self._window(args, step.step, step.step.out.buffer)
        if step.more:
            args.g2 = address(self.activations.tensor(step.more))
            args.g2_stride = step.more.channels * prod(step.more.size)
        self._sums(args, step.norms)
        return [self._grouped("collected", args)]

    def norm_gradient(self, step: NormGradient) -> list[Launch]:
        """The gradient of a batch norm's own parameters."""
        args = self._norm_args(step.value)
        args.gradient_part, args.which = address(self._part), step.which
        after = step.after
        if isinstance(after, ConvolutionGradient):
            work = self.works[after.step]
            args.tiles, args.of = work.back.tiles * work.classes, after.step.source.channels
        else:
            group = self._plane(after.out).group
            args.tiles = -(-self.activations.images // group)
            args.of = after.out.channels
        return [Launch("norm_backward", (-(-step.value.channels // 32), 1), 1024, args)]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
