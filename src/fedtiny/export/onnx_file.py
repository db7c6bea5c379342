"""A model as an ONNX graph, with sparse or with plain initializers.

The graph takes pixels from 0 to 1 and normalises them itself. Runtimes make sparse initializers
dense when they load the graph: the file is small, but nothing runs faster.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.export import checks
from fedtiny.export.arithmetic import adaptively_pooled
from fedtiny.export.network import Floats, Norm, TinyModel, Weights
from fedtiny.extras import require
from fedtiny.graph.ir import Kind, Node

OPSET = 17
IR_VERSION = 9
SPARSE_BELOW = 1 / 3  # kept share of a layer below which values with positions are smaller
INPUT, OUTPUT = "image", "logits"


def onnx_bytes(model: TinyModel, *, plain: bool = False) -> bytes:
    """The bytes of an ONNX file."""
    data: bytes = _Graph(model, plain=plain).proto().SerializeToString()
    return data


def plain_size(model: TinyModel) -> int:
    """Bytes of the plain file, give or take a few dozen a layer, without making it."""
    sparse = [weights for weights in model.net.weights.values() if is_sparse(weights)]
    more = sum(4 * weights.size - 12 * len(weights.values) for weights in sparse)
    return len(onnx_bytes(model)) + more


def is_sparse(weights: Weights) -> bool:
    """Whether values with positions are smaller than all the weights of a layer."""
    return len(weights.values) < SPARSE_BELOW * weights.size


class _Graph:
    """An ONNX graph under construction."""

    def __init__(self, model: TinyModel, *, plain: bool) -> None:
        self.onnx = require("onnx", extra="onnx")
        self.model, self.plain = model, plain
        self.shapes = checks.shapes(model.net.graph)
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.sparse: list[Any] = []

    def proto(self) -> Any:
        """The whole model."""
        helper, floats = self.onnx.helper, self.onnx.TensorProto.FLOAT
        names: list[str] = []
        for number, node in enumerate(self.model.net.graph.nodes):
            names.append(self._step(node, [names[i] for i in node.inputs], f"step{number}"))
        self._add("Identity", [names[-1]], OUTPUT)
        image = helper.make_tensor_value_info(INPUT, floats, ["N", *self.model.shape])
        logits = helper.make_tensor_value_info(OUTPUT, floats, ["N", len(self.model.classes)])
        graph = helper.make_graph(
            self.nodes, "fedtiny", [image], [logits], self.initializers,
            sparse_initializer=self.sparse,
        )  # fmt: skip
        opset = [helper.make_opsetid("", OPSET)]
        made = helper.make_model(graph, opset_imports=opset, producer_name="fedtiny")
        made.ir_version = IR_VERSION
        self.onnx.checker.check_model(made)
        return made

    def _step(self, node: Node, read: list[str], out: str) -> str:
        net = self.model.net
        match node.kind:
            case Kind.INPUT:
                return self._normalised(out)
            case Kind.CONVOLUTION:
                inputs = [*read, *self._weights(node.name, net.weights[node.name])]
                return self._add("Conv", inputs, out, **_sides(node))
            case Kind.LINEAR:
                inputs = [*read, *self._weights(node.name, net.weights[node.name])]
                return self._add("Gemm", inputs, out, transB=1)
            case Kind.BATCH_NORM:
                norm = net.norms[node.name]
                inputs = [*read, *self._norm(node.name, norm)]
                return self._add("BatchNormalization", inputs, out, epsilon=norm.epsilon)
            case Kind.RELU:
                return self._add("Relu", read, out)
            case Kind.ADD:
                return self._add("Add", read, out)
            case Kind.MAX_POOL:
                return self._add("MaxPool", read, out, **_sides(node))
            case Kind.MEAN_POOL:
                counted = int(node.count_padding)
                return self._add(
                    "AveragePool", read, out, count_include_pad=counted, **_sides(node)
                )
            case Kind.ADAPTIVE_POOL:
                return self._adaptive_pool(node, read[0], out)
            case Kind.FLATTEN:
                return self._add("Flatten", read, out, axis=1)
        return self._add("Identity", read, out)

    def _add(self, operator: str, inputs: list[str], out: str, **attributes: Any) -> str:
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [out], **attributes))
        return out

    def _array(self, name: str, array: NDArray[Any]) -> str:
        self.initializers.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def _normalised(self, out: str) -> str:
        """The image with the data set's mean at 0 and its std at 1."""
        mean, std = (
            np.array(part, dtype=np.float32).reshape(-1, 1, 1)
            for part in (self.model.normalisation.mean, self.model.normalisation.std)
        )
        self._add("Sub", [INPUT, self._array("mean", mean)], f"{out}.centred")
        return self._add("Div", [f"{out}.centred", self._array("std", std)], out)

    def _weights(self, name: str, weights: Weights) -> list[str]:
        weight = f"{name}.weight"
        if is_sparse(weights) and not self.plain:
            self._sparse(weight, weights)
        else:
            self._array(weight, weights.dense())
        if weights.bias is None:
            return [weight]
        return [weight, self._array(f"{name}.bias", weights.bias)]

    def _sparse(self, name: str, weights: Weights) -> None:
        from_array = self.onnx.numpy_helper.from_array
        values = from_array(weights.values, name)
        positions = from_array(weights.positions, f"{name}.positions")
        self.sparse.append(
            self.onnx.helper.make_sparse_tensor(values, positions, list(weights.shape))
        )

    def _norm(self, name: str, norm: Norm) -> list[str]:
        parts: dict[str, Floats] = {"scale": norm.gamma, "bias": norm.beta}
        parts |= {"mean": norm.mean, "variance": norm.variance}
        return [self._array(f"{name}.{part}", values) for part, values in parts.items()]

    def _adaptive_pool(self, node: Node, read: str, out: str) -> str:
        """Means over windows; where there are several, by products with matrices of shares."""
        if node.size == (1, 1):
            return self._add("GlobalAveragePool", [read], out)
        _, *sides = self.shapes[node.inputs[0]]
        rows, columns = (_shares(*pair) for pair in zip(sides, node.size, strict=True))
        across = self._array(f"{out}.columns", columns.T.copy())
        self._add("MatMul", [read, across], f"{out}.across")
        return self._add("MatMul", [self._array(f"{out}.rows", rows), f"{out}.across"], out)


def _shares(side: int, parts: int) -> Floats:
    """The matrix [parts, side] that takes the means of one line of pixels."""
    line = np.eye(side, dtype=np.float32).reshape(side, 1, side, 1)
    return adaptively_pooled(line, (parts, 1)).reshape(side, parts).T.copy()


def _sides(node: Node) -> dict[str, list[int]]:
    return {
        "kernel_shape": list(node.kernel),
        "strides": list(node.stride),
        "pads": [*node.padding, *node.padding],
    }
