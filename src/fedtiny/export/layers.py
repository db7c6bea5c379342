"""Weights and norms of a network as the tensors of a packed file, and back.

A layer has `values` (float32, float16, or int8 with a float32 scale for each filter that keeps a
weight), `positions` unless it keeps all its weights (bytes, as `federation.wire.indices` codes
them), and perhaps a `bias`; a norm has its four parts. Every tensor is flat.
"""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ModelError
from fedtiny.export.lowered import quantise
from fedtiny.export.network import Values
from fedtiny.federation.wire.indices import coded, read_positions
from fedtiny.federation.wire.stream import Reader
from fedtiny.graph.ir import Graph, Kind
from fedtiny.graph.weights import Floats, Lowered, Norm, Weights

Tensors = dict[str, NDArray[Any]]
DTYPES = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}
LARGEST_FP16 = np.float32(65504)
NORM_PARTS = ("gamma", "beta", "mean", "variance")


def to_tensors(net: Lowered, values: Values) -> Tensors:
    """All of a network's arrays, by name."""
    tensors: Tensors = {}
    for name, weights in net.weights.items():
        tensors |= {f"{name}.{part}": a for part, a in _parts(weights, values).items()}
    for name, norm in net.norms.items():
        tensors |= {f"{name}.{part}": a for part, a in zip(NORM_PARTS, norm.parts, strict=True)}
    return tensors


def layer_bytes(net: Lowered, values: Values) -> dict[str, int]:
    """Number of bytes that each layer's arrays take in a packed file."""
    return {
        name: sum(array.nbytes for array in _parts(weights, values).values())
        for name, weights in net.weights.items()
    }


def _parts(weights: Weights, values: Values) -> Tensors:
    parts: Tensors = _coded_values(weights, values)
    if weights.indices is not None:
        code = b"".join(coded(weights.indices.astype(np.int32), weights.size))
        parts["positions"] = np.frombuffer(code, np.uint8)
    if weights.bias is not None:
        parts["bias"] = weights.bias
    return parts


def _coded_values(weights: Weights, values: Values) -> Tensors:
    if values == "int8":
        small = quantise(weights)
        return {"values": small.values, "scales": small.scales[_used(weights)]}
    if values == "fp16":
        return {"values": weights.values.clip(-LARGEST_FP16, LARGEST_FP16).astype(np.float16)}
    return {"values": weights.values}


def from_tensors(tensors: Tensors, graph: Graph, values: Any) -> Lowered:
    """What `to_tensors` was given, of tensors that may not fit or hold what they should."""
    if values not in DTYPES:
        raise ModelError("its values are of no known kind")
    left, shapes = dict(tensors), graph.weight_shapes
    weights = {
        node.name: _weights(left, node.name, shapes[node.name], values, node.bias)
        for node in graph.layers.values()
    }
    norms = {
        node.name: _norm(left, node.name, shape[0], node.epsilon)
        for node, shape in zip(graph.nodes, graph.shapes, strict=True)
        if node.kind == Kind.BATCH_NORM
    }
    if left:
        raise ModelError(f"nothing in it uses {sorted(left)[0]!r:.60}")
    return Lowered(graph, weights, norms)


def _weights(
    tensors: Tensors, name: str, shape: tuple[int, ...], values: Values, bias: bool
) -> Weights:
    indices = None
    if f"{name}.positions" in tensors:
        reader = Reader(_taken(tensors, f"{name}.positions", np.uint8).data)
        indices = read_positions(reader, prod(shape))
        reader.finish()
    count = prod(shape) if indices is None else len(indices)
    found = Weights(
        shape,
        None if indices is None else indices.astype(np.int64),
        _taken(tensors, f"{name}.values", DTYPES[values], count).astype(np.float32),
        _taken(tensors, f"{name}.bias", np.float32, shape[0]) if bias else None,
    )
    if values != "int8":
        return found
    used = _used(found)
    scales = np.zeros(shape[0], dtype=np.float32)
    scales[used] = _taken(tensors, f"{name}.scales", np.float32, len(used))
    with np.errstate(over="ignore"):  # what becomes infinite is refused later
        return replace(found, values=found.values * scales[found.filters])


def _used(weights: Weights) -> NDArray[np.int64]:
    """The filters that keep a weight; the others need no scale."""
    return np.unique(weights.filters)


def _norm(tensors: Tensors, name: str, size: int, epsilon: float) -> Norm:
    gamma, beta, mean, variance = (
        _taken(tensors, f"{name}.{part}", np.float32, size) for part in NORM_PARTS
    )
    return Norm(gamma, beta, mean, variance, epsilon)


def _taken(tensors: Tensors, name: str, dtype: type, count: int | None = None) -> Floats:
    """A tensor that is there, flat, of this kind and length; it is taken out of the rest."""
    if name not in tensors:
        raise ModelError(f"it lacks {name!r:.60}")
    found = tensors.pop(name)
    if found.dtype != dtype or found.shape != (found.size if count is None else count,):
        raise ModelError(f"{name!r:.60} is not what the network needs")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise ModelError(f"{name!r:.60} holds NaN or infinity")
    return found
