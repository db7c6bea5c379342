"""A model with int8 activations as ONNX: QuantizeLinear and DequantizeLinear around its steps.

Runtimes fuse such pairs with what lies between into integer operators. Their rounding is their own:
an integer may differ by one from that of NumPy and C.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedtiny.export.c_steps import Step
from fedtiny.export.integers import Arithmetic
from fedtiny.export.network import TinyModel, filters_first
from fedtiny.export.onnx_file import OnnxGraph
from fedtiny.graph.ir import Kind, Node


def onnx_int8_bytes(model: TinyModel) -> bytes:
    """The bytes of an ONNX file of a quantized model."""
    data: bytes = _QuantizedGraph(model).proto().SerializeToString()
    return data


class _QuantizedGraph(OnnxGraph):
    """An ONNX graph under construction whose weights and activations are dequantized integers."""

    def __init__(self, model: TinyModel) -> None:
        super().__init__(model, plain=True)
        self.arithmetic = Arithmetic(model)
        self.layers = dict(self._steps_of_layers())

    def _steps_of_layers(self) -> Iterator[tuple[int, Step]]:
        """The step that each layer's node begins; a sum and a ReLU of the step come after it."""
        numbers = sorted(self.net.graph.layers)
        for step in self.arithmetic.steps:
            if step.node.name in self.net.weights:
                nodes = (n for n in numbers if self.node(n) is step.node and n <= step.gives)
                yield max(nodes), step

    def _step(self, number: int, node: Node, read: list[str]) -> str:
        out = super()._step(number, node, read)
        held = self.arithmetic.qparams.get(number)
        if held is None:
            return out
        scale = self.array(f"{out}.scale", np.array(held.scale, dtype=np.float32))
        zero = self.array(f"{out}.zero", np.array(held.zero_point, dtype=np.int8))
        self.add("QuantizeLinear", [out, scale, zero], f"{out}.integers")
        found = self.add("DequantizeLinear", [f"{out}.integers", scale, zero], f"{out}.held")
        return self.like(found, out)

    def _weights(self, node: Node, number: int) -> list[str]:
        """A layer's weights and bias as integers with their scales, one a filter."""
        layer = self.arithmetic.layer(self.layers[number])
        read = self.arithmetic.qparams[self.layers[number].reads[0]].scale
        name, scales = f"{node.name}.{number}", layer.scales
        bias = self._dequantized(f"{name}.bias", layer.biases.astype(np.int32), scales)
        integers = filters_first(node, layer.weights).dense().astype(np.int8)
        by_filter = (scales / read).astype(np.float32)
        if node.kind == Kind.TRANSPOSED_CONVOLUTION:
            return [self._transposed(f"{name}.weight", node, integers, by_filter), bias]
        if node.kind == Kind.LINEAR and self.net.graph.shapes[number][1:] != (1, 1):
            integers = integers.reshape(*integers.shape, 1, 1)
        return [self._dequantized(f"{name}.weight", integers, by_filter), bias]

    def _transposed(self, name: str, node: Node, integers: Any, scales: Any) -> str:
        """Weights whose second axis is that of the filters; those of groups lie along none."""
        if node.groups == 1:
            return self._dequantized(name, integers, scales, axis=1)
        channels, filters, *_ = integers.shape
        by_group = scales.reshape(node.groups, filters).repeat(channels // node.groups, axis=0)
        factors = self.array(f"{name}.factors", by_group.reshape(channels, filters, 1, 1))
        ones = np.ones(channels, dtype=np.float32)
        return self.add("Mul", [self._dequantized(f"{name}.whole", integers, ones), factors], name)

    def _dequantized(self, name: str, integers: Any, scales: Any, axis: int = 0) -> str:
        arrays = [self.array(f"{name}.integers", integers), self.array(f"{name}.scales", scales)]
        return self.add("DequantizeLinear", arrays, name, axis=axis)
