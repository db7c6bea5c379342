"""A model as an ONNX graph, with sparse or with plain initializers.

The graph takes pixels from 0 to 1 and normalises them itself. Runtimes make sparse initializers
dense when they load the graph: the file is small, but nothing runs faster.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.export.network import TinyModel
from fedtiny.extras import require
from fedtiny.graph.arithmetic import Floats, Weights, adaptively_pooled
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
        if node.kind == Kind.INPUT:
            return self._normalised(out)
        if node.kind == Kind.ADAPTIVE_POOL and node.size != (1, 1):
            return self._adaptive_pool(node, read[0], out)
        operator, attributes = FORMS[node.kind]
        return self._add(operator, [*read, *self._arrays(node)], out, **attributes(node))

    def _arrays(self, node: Node) -> list[str]:
        """The names of a node's weights or statistics, which join the graph."""
        net, name = self.model.net, f"{node.name}.weight"
        if node.name in net.norms:
            parts = ("scale", "bias", "mean", "variance")
            named = zip(parts, net.norms[node.name].parts, strict=True)
            return [self._array(f"{node.name}.{part}", values) for part, values in named]
        if node.name not in net.weights:
            return []
        weights = net.weights[node.name]
        if is_sparse(weights) and not self.plain:
            self._sparse(name, weights)
        else:
            self._array(name, weights.dense())
        bias = [] if weights.bias is None else [self._array(f"{node.name}.bias", weights.bias)]
        return [name, *bias]

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

    def _sparse(self, name: str, weights: Weights) -> None:
        from_array = self.onnx.numpy_helper.from_array
        values = from_array(weights.values, name)
        positions = from_array(weights.positions, f"{name}.positions")
        made = self.onnx.helper.make_sparse_tensor(values, positions, list(weights.shape))
        self.sparse.append(made)

    def _adaptive_pool(self, node: Node, read: str, out: str) -> str:
        """Means over several windows, by products with matrices of shares."""
        _, *sides = self.model.net.graph.shapes[node.inputs[0]]
        rows, columns = (_shares(*pair) for pair in zip(sides, node.size, strict=True))
        across = self._array(f"{out}.columns", columns.T.copy())
        self._add("MatMul", [read, across], f"{out}.across")
        return self._add("MatMul", [self._array(f"{out}.rows", rows), f"{out}.across"], out)


def _shares(side: int, parts: int) -> Floats:
    """The matrix [parts, side] that takes the means of one line of pixels."""
    line = np.eye(side, dtype=np.float32).reshape(side, 1, side, 1)
    return adaptively_pooled(line, (parts, 1)).reshape(side, parts).T.copy()


def _window(node: Node) -> dict[str, Any]:
    return {
        "kernel_shape": list(node.kernel),
        "strides": list(node.stride),
        "pads": [*node.padding, *node.padding],
    }


def _counted_window(node: Node) -> dict[str, Any]:
    return {"count_include_pad": int(node.count_padding), **_window(node)}


def _plain(node: Node) -> dict[str, Any]:
    return {}


FORMS: dict[Kind, tuple[str, Callable[[Node], dict[str, Any]]]] = {
    Kind.INPUT: ("Sub", _plain),
    Kind.CONVOLUTION: ("Conv", _window),
    Kind.LINEAR: ("Gemm", lambda node: {"transB": 1}),
    Kind.BATCH_NORM: ("BatchNormalization", lambda node: {"epsilon": node.epsilon}),
    Kind.RELU: ("Relu", _plain),
    Kind.ADD: ("Add", _plain),
    Kind.MAX_POOL: ("MaxPool", _window),
    Kind.MEAN_POOL: ("AveragePool", _counted_window),
    Kind.ADAPTIVE_POOL: ("GlobalAveragePool", _plain),
    Kind.FLATTEN: ("Flatten", lambda node: {"axis": 1}),
    Kind.DROPOUT: ("Identity", _plain),
}
"""ONNX's operator for each operation, and its attributes."""
