"""A model with int8 activations in NumPy: the same integers as its C code, to the bit.

Sums of products of integers are worked out in float64, which holds them exactly.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ExportError
from fedtiny.export.c_steps import Step
from fedtiny.export.integer_norms import Integers, Norm
from fedtiny.export.integers import (
    CONSTANT_SHIFT,
    RAW_SHIFT,
    SHIFT,
    TERM_SHIFT,
    Arithmetic,
    Layer,
    rounded,
)
from fedtiny.export.network import TinyModel, filters_first
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.export.quantize import LEAST, MOST, TABLES, is_logits
from fedtiny.graph.arithmetic import AXES, FORMS
from fedtiny.graph.arrays import Floats
from fedtiny.graph.ir import Kind
from fedtiny.graph.windows import (
    by_channel,
    convolved,
    convolved_transposed,
    counted,
    mean_pooled,
)

LARGEST_RAW = 1e6  # of a measured value in 256ths of a step
LARGEST_MEAN = 1 << 54


class IntegerModel(NumpyModel):
    """A trained model with int8 activations: call it with images.

    Args:
        model: What a packed file with int8 activations holds.
    """

    def __init__(self, model: TinyModel) -> None:
        super().__init__(model)
        self.arithmetic = Arithmetic(model)

    def _classified(self, images: NDArray[Any]) -> Floats:
        pixels = self.arithmetic.pixels
        if images.dtype == np.uint8:
            channels = np.arange(len(pixels)).reshape(-1, 1, 1, 1)
            return self._run(pixels[channels, images.swapaxes(0, 1)])
        return self._run(self._measured(images.swapaxes(0, 1)))

    def logits(self, normalised: Floats) -> Floats:
        """Logits of images that are normalized already, all at once."""
        return self._run(rounded(normalised.swapaxes(0, 1), self.arithmetic.qparams[0]))

    def _measured(self, values: NDArray[Any]) -> NDArray[np.int8]:
        """Measured values as integers; what C does, too, in float32."""
        mean, factor = (by_channel(part, values.astype(np.float32)) for part in self.arithmetic.raw)
        fine = (values.astype(np.float32) - mean) * factor
        fine = np.where(fine > -LARGEST_RAW, fine, np.float32(-LARGEST_RAW)).clip(max=LARGEST_RAW)
        half = 1 << (RAW_SHIFT - 1)
        steps = (fine.astype(np.int32) + half) >> RAW_SHIFT
        return _cut_off(steps + self.arithmetic.qparams[0].zero_point, LEAST, MOST)

    @cached_property
    def _layers(self) -> dict[int, Layer]:
        steps = self.arithmetic.steps
        layers = [s for s in steps if s.convolves or s.action == "connect"]
        return {step.gives: self.arithmetic.layer(step) for step in layers}

    def _run(self, image: NDArray[np.int8]) -> Floats:
        steps = self.arithmetic.steps
        values: dict[int, NDArray[np.int8]] = {0: image}
        last = {v: i for i, step in enumerate(steps) for v in (*step.reads, step.gives)}
        for number, step in enumerate(steps[1:], start=1):
            read = [values[value] for value in step.reads]
            if is_logits(step, steps):
                layer = self._layers[step.gives]
                sums = self._sums(step, layer, read[0]).astype(np.float32)
                return (sums * by_channel(layer.scales, sums))[:, :, 0, 0].T
            values[step.gives] = self._step(step, read, image.shape[1])
            for done in {*step.reads, step.gives}:
                if last[done] == number and number + 1 < len(steps):
                    values.pop(done, None)
        held = self.arithmetic.qparams[steps[-1].gives]
        integers = values[steps[-1].gives].astype(np.float32) - np.float32(held.zero_point)
        return (integers * np.float32(held.scale))[:, :, 0, 0].T

    def _step(self, step: Step, read: list[NDArray[np.int8]], images: int) -> NDArray[np.int8]:
        if step.gives in self._layers:
            return self._layer(step, *read)
        if step.action in TABLES:
            looked_up: NDArray[np.int8] = self.arithmetic.table(step)[read[0].astype(int) - LEAST]
            return looked_up
        if step.action == "constant":
            _, rows, columns = self.model.net.graph.shapes[step.gives]
            values = self.arithmetic.constant(step).reshape(-1, 1, rows, columns)
            return np.broadcast_to(values, (len(values), images, rows, columns))
        if step.action in COMPUTED:
            return COMPUTED[step.action](self, step, *map(self._centred, step.reads, read))
        if step.action == "max_pool":
            return self._largest(step, read[0])
        moved: NDArray[np.int8] = FORMS[step.node.kind](self.model.net, step.node, *read)
        return moved

    def _largest(self, step: Step, read: NDArray[np.int8]) -> NDArray[np.int8]:
        found = FORMS[step.node.kind](self.model.net, step.node, read.astype(np.float64))
        return found.astype(np.int8)

    def _centred(self, value: int, integers: NDArray[np.int8]) -> Integers:
        return integers.astype(np.int64) - self.arithmetic.qparams[value].zero_point

    def _sums(self, step: Step, layer: Layer, read: NDArray[np.int8]) -> Integers:
        values = self._centred(step.reads[0], read).astype(np.float64)
        form = convolved
        if step.node.kind == Kind.TRANSPOSED_CONVOLUTION:
            form = convolved_transposed
        sums = form(values, step.node, filters_first(step.node, layer.weights)).astype(np.int64)
        return sums + by_channel(layer.biases, sums)

    def _layer(
        self, step: Step, read: NDArray[np.int8], other: NDArray[np.int8] | None = None
    ) -> NDArray[np.int8]:
        layer = self._layers[step.gives]
        sums = self._sums(step, layer, read)
        scaled = sums * by_channel(layer.multipliers, sums) + layer.start
        if other is not None:
            scaled += (other.astype(np.int64) << (SHIFT - TERM_SHIFT)) * layer.other
        return _cut_off(scaled >> SHIFT, *self.arithmetic.limits(step))

    def _added(self, step: Step, first: Integers, second: Integers) -> NDArray[np.int8]:
        scaled = first * self.arithmetic.ratio(step, 0) + second * self.arithmetic.ratio(step, 1)
        scaled += self.arithmetic.start(step.gives, TERM_SHIFT)
        return _cut_off(scaled >> TERM_SHIFT, *self.arithmetic.limits(step))

    def _multiplied(self, step: Step, first: Integers, second: Integers) -> NDArray[np.int8]:
        scaled = first * second * self.arithmetic.product(step) + self.arithmetic.start(step.gives)
        return _cut_off(scaled >> SHIFT, *self.arithmetic.limits(step))

    def _multiplied_matrices(
        self, step: Step, first: Integers, second: Integers
    ) -> NDArray[np.int8]:
        sums = (first.astype(np.float64) @ second.astype(np.float64)).astype(np.int64)
        scaled = sums * self.arithmetic.product(step) + self.arithmetic.start(step.gives)
        return _cut_off(scaled >> SHIFT, *self.arithmetic.limits(step))

    def _group_norm(self, step: Step, read: Integers) -> NDArray[np.int8]:
        norm = self.arithmetic.norm(step)
        groups = read.reshape(step.node.groups, -1, *read.shape[1:])
        return _scaled_units(norm, norm.units(groups, (1, 3, 4)).reshape(read.shape))

    def _layer_norm(self, step: Step, read: Integers) -> NDArray[np.int8]:
        norm = self.arithmetic.norm(step)
        return _scaled_units(norm, norm.units(read, (0,)))

    def _softened(self, step: Step, read: Integers) -> NDArray[np.int8]:
        scaled = self.arithmetic.softmax(step).scaled(read, AXES[step.node.axis])
        return _cut_off(scaled >> TERM_SHIFT, LEAST, MOST)

    def _mean_pool(self, step: Step, read: Integers) -> NDArray[np.int8]:
        counts = np.rint(counted(read[:1, :1].astype(np.float64), step.node)).astype(np.int64)
        means = mean_pooled(read.astype(np.float64), step.node)
        return self._means(step, np.rint(means * counts).astype(np.int64), counts)

    def _adaptive_pool(self, step: Step, read: Integers) -> NDArray[np.int8]:
        counts = np.ones((1, 1, 1, 1), dtype=np.int64)
        sums = read
        for axis, parts in zip((2, 3), step.node.size, strict=True):
            side = read.shape[axis]
            cuts = [(i * side // parts, -(-(i + 1) * side // parts)) for i in range(parts)]
            found = [sums.take(range(*cut), axis).sum(axis, keepdims=True) for cut in cuts]
            sums = np.concatenate(found, axis)
            sizes = np.array([end - start for start, end in cuts])
            counts = counts * sizes.reshape([-1 if i == axis else 1 for i in range(4)])
        return self._means(step, sums, counts)

    def _means(self, step: Step, sums: Integers, counts: Integers) -> NDArray[np.int8]:
        """Sums by counts, at the scale of the result; a half is rounded up."""
        ratio = self.arithmetic.ratio(step, 0)
        if int(counts.max()) * 2 * -LEAST * max(ratio, 1 << TERM_SHIFT) > LARGEST_MEAN:
            raise ExportError("a pool's windows are too large for int8 activations")
        divisors = counts << TERM_SHIFT
        shifted = self.arithmetic.qparams[step.gives].zero_point - LEAST
        found = (sums * ratio + shifted * divisors + (divisors >> 1)) // divisors
        return _cut_off(found + LEAST, LEAST, MOST)


COMPUTED: dict[str, Callable[..., NDArray[np.int8]]] = {
    "add": IntegerModel._added,
    "multiply": IntegerModel._multiplied,
    "multiply_planes": IntegerModel._multiplied,
    "multiply_matrices": IntegerModel._multiplied_matrices,
    "group_norm": IntegerModel._group_norm,
    "layer_norm": IntegerModel._layer_norm,
    "softmax": IntegerModel._softened,
    "mean_pool": IntegerModel._mean_pool,
    "adaptive_pool": IntegerModel._adaptive_pool,
}


def _scaled_units(norm: Norm, units: Integers) -> NDArray[np.int8]:
    scaled = units * by_channel(norm.multipliers, units) + norm.start
    scaled += by_channel(norm.shifts, units) << (SHIFT - CONSTANT_SHIFT)
    return _cut_off(scaled >> SHIFT, LEAST, MOST)


def _cut_off(values: Integers | NDArray[np.int32], low: int, high: int) -> NDArray[np.int8]:
    return values.clip(low, high).astype(np.int8)
