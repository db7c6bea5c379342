"""The integers of a model with int8 activations: what NumPy and C compute with, to the bit.

A result is `(sum * multiplier + start) >> 32`, cut off at both ends: the sum of a layer has 32
bits, the product 64, and `start` holds the zero point and the half that makes it round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtiny.data.transforms import ArrayTransform
from fedtiny.errors import ExportError
from fedtiny.export.c_program import fused
from fedtiny.export.c_steps import Step
from fedtiny.export.integer_norms import (
    LARGEST_GROUP,
    LARGEST_VARIANCE,
    POWER_SHIFT,
    UNIT_SHIFT,
    Integers,
    Norm,
    Softmax,
    fraction_of,
)
from fedtiny.export.network import QParams, TinyModel, filters_first, quantise
from fedtiny.export.quantize import LEAST, MOST, STEPS, is_logits
from fedtiny.graph.arithmetic import FORMS
from fedtiny.graph.arrays import Weights
from fedtiny.graph.ir import Shape

SHIFT = 32
TERM_SHIFT = 24  # of what is added to the sums of a layer, and of means and shares
CONSTANT_SHIFT = 12  # of the biases of filters without weights, and of norms
LARGEST_SUM = (1 << 31) - 1
RAW_SHIFT = 8


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer at one place of the network, its weights as integers, those of filters first.

    `biases` are in steps of the sums; `multipliers` lead from sums to what the layer gives.
    """

    weights: Weights
    biases: Integers
    multipliers: Integers
    scales: NDArray[np.float32]
    """Of the sums."""
    start: int
    other: int
    """What an added value is multiplied by, 0 if there is none."""

    def biases_for(self, zero_point: int) -> Integers:
        """The biases of sums over what is read as it lies, with its zero point."""
        sums = np.zeros(len(self.biases))
        np.add.at(sums, self.weights.filters, self.weights.values)
        return self.biases - zero_point * sums.astype(np.int64)


@dataclass(frozen=True)
class Arithmetic:
    """The integers of every step of a quantized model."""

    model: TinyModel

    @cached_property
    def steps(self) -> list[Step]:
        """Those of the C code, before planes are arranged."""
        return list(fused(self.model.net.graph))

    @property
    def qparams(self) -> Mapping[int, QParams]:
        """By value, but not of logits that are sums of a layer."""
        assert self.model.activations is not None, "a model with int8 activations"
        return self.model.activations

    def limits(self, step: Step) -> tuple[int, int]:
        """Between which integers the results of a step lie."""
        found = self.qparams[step.gives]
        low = LEAST if step.limit == "LINEAR" else found.zero_point
        high = MOST
        if step.limit == "RELU6":
            high = min(MOST, found.zero_point + int(np.rint(6 / found.scale)))
        return low, high

    def start(self, value: int, shift: int = SHIFT) -> int:
        """The zero point of a value and half a step."""
        return (self.qparams[value].zero_point << shift) + (1 << (shift - 1))

    def ratio(self, step: Step, place: int) -> int:
        """What a value that is added, or a mean, is multiplied by."""
        ratio = self.qparams[step.reads[place]].scale / self._scale(step)
        return _checked(step, ratio * 2**TERM_SHIFT)

    def product(self, step: Step) -> int:
        """What the product of two values, or a sum of such, is multiplied by."""
        first, second = (self.qparams[value].scale for value in step.reads)
        terms = self._shape(step.reads[0])[2] if step.action == "multiply_matrices" else 1
        if terms * STEPS**2 > LARGEST_SUM:
            raise ExportError(f"a product of matrices has too many terms for int8: {terms}")
        return _checked(step, first * second / self._scale(step) * 2**SHIFT)

    def _shape(self, value: int) -> Shape:
        return self.model.net.graph.shapes[value]

    def norm(self, step: Step) -> Norm:
        """The integers of a group or layer norm."""
        held, node, out = self.model.net.norms[step.node.name], step.node, self._scale(step)
        channels, rows, columns = self._shape(step.gives)
        is_group = step.action == "group_norm"
        count = channels // node.groups * rows * columns if is_group else channels
        fraction = fraction_of(count)
        steps = count / self.qparams[step.reads[0]].scale
        epsilon = held.epsilon * steps**2 * 2.0**fraction
        if count > LARGEST_GROUP or not epsilon < LARGEST_VARIANCE:
            raise ExportError(f"{node.name!r} reads too many or too small values for int8")
        multipliers = held.gamma.astype(np.float64) / out * 2.0**UNIT_SHIFT
        shifts = held.beta.astype(np.float64) / out * 2.0**CONSTANT_SHIFT
        _checked(step, float(np.abs([multipliers, shifts]).max()))
        return Norm(
            count,
            np.rint(multipliers).astype(np.int64),
            np.rint(shifts).astype(np.int64),
            fraction,
            max(1, round(epsilon)),
            self.start(step.gives),
        )

    def softmax(self, step: Step) -> Softmax:
        """The integers of a softmax."""
        read, out = self.qparams[step.reads[0]].scale, self._scale(step)
        powers = np.rint(np.exp(-read * np.arange(STEPS + 1)) * (1 << POWER_SHIFT))
        _checked(step, 2.0 ** (TERM_SHIFT - POWER_SHIFT) / out)
        start = self.start(step.gives, TERM_SHIFT)
        return Softmax(powers.astype(np.uint16), round(2.0**TERM_SHIFT / out), start)

    def _scale(self, step: Step) -> float:
        return self.qparams[step.gives].scale

    def table(self, step: Step) -> NDArray[np.int8]:
        """What a function of single values gives for each of the 256 integers."""
        read = self.qparams[step.reads[0]]
        values = read.scale * (np.arange(LEAST, MOST + 1) - read.zero_point)
        batch = values.astype(np.float64).reshape(-1, 1, 1, 1)
        return rounded(FORMS[step.node.kind](self.model.net, step.node, batch).reshape(-1),
                       self.qparams[step.gives])  # fmt: skip

    def constant(self, step: Step) -> NDArray[np.int8]:
        """A learned tensor, flat."""
        return rounded(self.model.net.parameters[step.node.name], self.qparams[step.gives])

    def layer(self, step: Step) -> Layer:
        """A layer's integers; a filter without weights has a bias in finer steps."""
        weights = filters_first(step.node, self.model.net.weights[step.node.name])
        final = is_logits(step, self.steps)
        integers, scales = quantise(weights)
        held = Weights(weights.shape, weights.indices, integers.astype(np.float32), None)
        used = np.zeros(weights.shape[0], dtype=bool)
        used[weights.filters[integers != 0]] = True
        out = self._scale(step) if not final else 1.0
        sums = self.qparams[step.reads[0]].scale * scales.astype(np.float64)
        bias = np.zeros(len(sums)) if weights.bias is None else weights.bias.astype(np.float64)
        finest = np.abs(bias) / (1 << 20) if final else np.full(len(sums), out / 2**CONSTANT_SHIFT)
        sums = np.where(used, sums, np.where(finest > 0, finest, 1.0))
        biases = np.rint((bias / sums).clip(-LARGEST_SUM, LARGEST_SUM)).astype(np.int64)
        _check_sums(step, held, biases)
        start, other = (0, 0) if final else (self.start(step.gives), 0)
        if len(step.reads) > 1:
            other = self.ratio(step, 1)
            start -= (self.qparams[step.reads[1]].zero_point << (SHIFT - TERM_SHIFT)) * other
        if not final:
            _checked(step, float(sums.max()) / out * 2.0**SHIFT)
        multipliers = np.rint(0 * sums if final else sums / out * 2.0**SHIFT).astype(np.int64)
        return Layer(held, biases, multipliers, sums.astype(np.float32), start, other)

    @cached_property
    def pixels(self) -> NDArray[np.int8]:
        """The integers of each channel's bytes, [channels, 256]."""
        normal = self.model.normalisation
        every = np.arange(256, dtype=np.uint8).reshape(1, 1, 1, 256)
        images = np.broadcast_to(every, (1, self.model.shape[0], 1, 256))
        normalised = ArrayTransform(normal.mean, normal.std).normalise(images)
        return rounded(normalised.reshape(-1, 256), self.qparams[0])

    @cached_property
    def raw(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What is taken from a measured value, and what the rest is multiplied by, by channel."""
        mean, std = np.array(self.model.normalisation.mean), np.array(self.model.normalisation.std)
        factor = 2**RAW_SHIFT / (std * self.qparams[0].scale)
        return mean.astype(np.float32), factor.astype(np.float32)


def rounded(values: NDArray[np.floating], held: QParams) -> NDArray[np.int8]:
    """The nearest integers, halves to the even one; what lies outside is cut off.

    >>> rounded(np.array([-9.0, 0.0, 0.26, 99.0]), QParams(0.1, 0)).tolist()
    [-90, 0, 3, 127]
    """
    integers = np.rint(values.astype(np.float64) / held.scale) + held.zero_point
    return integers.clip(LEAST, MOST).astype(np.int8)


def _check_sums(step: Step, weights: Weights, biases: Integers) -> None:
    """Refuse a layer whose sums could leave 32 bits, in any order."""
    sizes = np.zeros(len(biases))
    np.add.at(sizes, weights.filters, np.abs(weights.values))
    if (2 * -LEAST * sizes + np.abs(biases) > LARGEST_SUM).any():
        raise ExportError(f"{step.node.name!r} has too many weights a filter for int8 activations")


def _checked(step: Step, multiplier: float) -> int:
    """A multiplier, which has 31 bits."""
    if not multiplier < LARGEST_SUM:
        name = step.node.name or step.node.kind.name.lower()
        raise ExportError(f"{name!r} gives values too small for int8 activations")
    return round(multiplier)
