"""A model with int8 activations as ONNX: QuantizeLinear and DequantizeLinear around its steps.

Runtimes fuse such pairs with what lies between into integer operators. Their rounding is their own:
an integer may differ by one from that of NumPy and C.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedtiny.export.c_steps import Step
from fedtiny.export.integers import Arithmetic
from fedtiny.export.network import TinyModel
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
        shape: tuple[int, ...] = layer.weights.shape
        if node.kind == Kind.LINEAR and self.net.graph.shapes[number][1:] != (1, 1):
            shape = (*shape, 1, 1)
        integers = layer.weights.dense().astype(np.int8).reshape(shape)
        name, scales = f"{node.name}.{number}", layer.scales
        return [
            self._dequantized(f"{name}.weight", integers, (scales / read).astype(np.float32)),
            self._dequantized(f"{name}.bias", layer.biases.astype(np.int32), scales),
        ]

    def _dequantized(self, name: str, integers: Any, scales: Any) -> str:
        arrays = [self.array(f"{name}.integers", integers), self.array(f"{name}.scales", scales)]
        return self.add("DequantizeLinear", arrays, name, axis=0)
