"""A model as an ONNX graph, with sparse or with plain initializers.

The graph takes pixels from 0 to 1 and normalises them itself. Runtimes make sparse initializers
dense when they load the graph: the file is small, but nothing runs faster.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from fedtiny.export.network import TinyModel
from fedtiny.export.onnx_forms import FORMS
from fedtiny.export.onnx_steps import INPUT, Steps
from fedtiny.extras import require
from fedtiny.graph.arrays import Weights
from fedtiny.graph.ir import Kind, Node

OPSET = 17
IR_VERSION = 9
SPARSE_BELOW = 1 / 3  # kept share of a layer below which values with positions are smaller
OUTPUT = "logits"


def onnx_bytes(model: TinyModel, *, plain: bool = False) -> bytes:
    """The bytes of an ONNX file."""
    data: bytes = OnnxGraph(model, plain=plain).proto().SerializeToString()
    return data


def plain_size(model: TinyModel) -> int:
    """Bytes of the plain file, give or take a few dozen a layer, without making it."""
    sparse = [weights for weights in model.net.weights.values() if is_sparse(weights)]
    more = sum(4 * weights.size - 12 * len(weights.values) for weights in sparse)
    return len(onnx_bytes(model)) + more


def is_sparse(weights: Weights) -> bool:
    """Whether values with positions are smaller than all the weights of a layer."""
    return len(weights.values) < SPARSE_BELOW * weights.size


class OnnxGraph(Steps):
    """An ONNX graph under construction."""

    def __init__(self, model: TinyModel, *, plain: bool) -> None:
        super().__init__(require("onnx", extra="onnx"), model.net)
        self.model, self.plain = model, plain
        self.sparse: list[Any] = []

    def proto(self) -> Any:
        """The whole model."""
        helper, floats = self.onnx.helper, self.onnx.TensorProto.FLOAT
        names: list[str] = []
        for number, node in enumerate(self.model.net.graph.nodes):
            names.append(self._step(number, node, [names[i] for i in node.inputs]))
        self.add("Identity", [self.row(names[-1])], OUTPUT)
        image = helper.make_tensor_value_info(INPUT, floats, ["N", *self.model.shape])
        logits = helper.make_tensor_value_info(OUTPUT, floats, ["N", len(self.model.classes)])
        graph = helper.make_graph(
            self.nodes, "fedtiny", [image], [logits], self.initializers,
            sparse_initializer=self.sparse,
        )  # fmt: skip
        opset = [helper.make_opsetid("", OPSET)]
        made = helper.make_model(graph, opset_imports=opset, producer_name="fedtiny")
        made.ir_version = IR_VERSION
        helper.set_model_props(made, {"fedtiny.reads": self.model.reads})
        self.onnx.checker.check_model(made)
        return made

    def _step(self, number: int, node: Node, read: list[str]) -> str:
        out = f"step{number}"
        if node.kind == Kind.INPUT:
            return self._normalised(out)
        arrays = self._weights(node, number) if node.name in self.net.weights else []
        return FORMS[node.kind](self, number, [*read, *arrays], out)

    def _weights(self, node: Node, number: int) -> list[str]:
        """The names of a layer's weights and bias, which join the graph.

        A linear layer over images is a pointwise convolution, whose weights have four axes.
        """
        weights, name = self.net.weights[node.name], f"{node.name}.weight"
        if node.kind == Kind.LINEAR and self.net.graph.shapes[number][1:] != (1, 1):
            weights = replace(weights, shape=(*weights.shape, 1, 1))
            name = f"{name}.pointwise"
        if name not in self.known and is_sparse(weights) and not self.plain:
            self.known.add(name)
            self._sparse(name, weights)
        else:
            self.array(name, weights.dense())
        bias = [] if weights.bias is None else [self.array(f"{node.name}.bias", weights.bias)]
        return [name, *bias]

    def _normalised(self, out: str) -> str:
        """The image with the data set's mean at 0 and its std at 1."""
        mean, std = (
            np.array(part, dtype=np.float32).reshape(-1, 1, 1)
            for part in (self.model.normalisation.mean, self.model.normalisation.std)
        )
        self.add("Sub", [INPUT, self.array("mean", mean)], f"{out}.centred")
        return self.add("Div", [f"{out}.centred", self.array("std", std)], out)

    def _sparse(self, name: str, weights: Weights) -> None:
        from_array = self.onnx.numpy_helper.from_array
        values = from_array(weights.values, name)
        positions = from_array(weights.positions, f"{name}.positions")
        made = self.onnx.helper.make_sparse_tensor(values, positions, list(weights.shape))
        self.sparse.append(made)
