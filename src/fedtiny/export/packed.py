"""The packed model: one small file with everything that is needed to use a model.

A safetensors file; `docs/packed.md` has its layout. Reading one trusts nothing in it: a length is
checked before anything is made from it, and what does not fit ends in one sentence.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save

from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError, FedTinyError, ModelError
from fedtiny.export.activation_records import activations_of, records_of
from fedtiny.export.network import (
    Reads,
    TinyModel,
    Values,
    filters_first,
    quantise,
    turned_shape,
)
from fedtiny.extras import require
from fedtiny.federation.wire.indices import Reader, coded, read_positions
from fedtiny.files import MAX_TENSORS, digest_of, exact_json, read_file, with_text
from fedtiny.graph.arrays import Floats, Lowered, Norm, Weights
from fedtiny.graph.ir import UNTRUSTED, Graph, Kind, Node
from fedtiny.graph.node import NORMS
from fedtiny.graph.records import MAX_NAME, is_name, nodes_of, packed_records

if TYPE_CHECKING:
    from fedtiny.export.torch_model import PackedNetwork

Tensors = dict[str, NDArray[Any]]
FORMAT = 1
WITH_ACTIVATIONS = 2
"""The format of a model with int8 activations; others have the first."""
INPUT = ("mean", "std")
LARGEST = 1e9  # of a mean or std, and of what one divides by
METADATA, DIGEST = "fedtiny.packed", "digest"
DTYPES = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}
LARGEST_FP16 = np.float32(65504)
NORM_PARTS = ("gamma", "beta", "mean", "variance")


def load(path: Path | str) -> "PackedNetwork":
    """The network of a packed file or of a run folder, ready for pixels that are not normalized.

    Args:
        path: A packed file, as `fedtiny run` and :meth:`fedtiny.Result.export` write it, or the
            folder of a finished run.

    Returns:
        An `nn.Module` that takes samples as they were trained on, byte images also as floats from 0
        to 1, and gives logits. `reads` says which: `bytes`, `floats` (of images) or `values` (of
        sequences and tables). `classes` has the names of the classes, `card` says where the model
        comes from.

    Raises:
        ExportError: This is no packed model, or a damaged one.

    Example:
        >>> import torch
        >>> config = fedtiny.Config(model="small", width=2, rounds=1, workers=1)
        >>> network = fedtiny.load(fedtiny.run(config, out="runs/packed").export("packed"))
        >>> network(torch.zeros(5, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([5, 10])
        >>> network.card["method"]
        'fedtiny'
    """
    require("torch", extra="torch")
    from fedtiny.export.torch_model import PackedNetwork

    model = shipped(path)
    if model.activations is not None:
        raise ExportError(
            f"{path} has int8 activations, which torch does not compute as it does; load it with "
            "fedtiny.export.numpy_model.load"
        )
    return PackedNetwork(model).eval()


def shipped(path: Path | str) -> TinyModel:
    """The model of a packed file, or of a run folder; only a folder costs more imports."""
    if not Path(path).is_dir():
        return read(path)
    from fedtiny.export.source import tiny_model

    return tiny_model(path)


def packed(model: TinyModel, values: Values = "fp32") -> bytes:
    """The bytes of a packed file; the same model always gives the same."""
    _check(model.net.graph)  # what could not be read is not written
    model.net.check_values()
    values = "int8" if model.activations is not None else values
    tensors = to_tensors(model, values)
    text = json.dumps(_header(model, values), separators=(",", ":"))
    tensors[DIGEST] = np.frombuffer(bytes.fromhex(digest_of(tensors, text)), np.uint8)
    data: bytes = save(tensors, {METADATA: text})
    return data


def _check(graph: Graph) -> None:
    graph.check_limits(UNTRUSTED)
    graph.check_all_needed()


def read(path: Path | str) -> TinyModel:
    """The model of a packed file."""
    try:
        data = read_file(Path(path), MAX_TENSORS)
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror}") from error
    return unpacked(data, str(path))


def unpacked(data: bytes, name: str = "the file") -> TinyModel:
    """The model that these bytes hold, which may be no packed file at all."""
    try:
        tensors, text = with_text(data, METADATA)
    except (SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ExportError(
            f"{name} is not a packed model, or only a part of one; make one with: "
            "fedtiny export DIR --format packed"
        ) from error
    try:
        return _checked(tensors, text)
    except (FedTinyError, KeyError, TypeError, ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, FedTinyError) else "its description is incomplete"
        raise ExportError(f"{name} is a damaged packed model ({why}); export it again") from error


def _header(model: TinyModel, values: Values) -> dict[str, Any]:
    """What stands beside the tensors."""
    integers = model.activations
    return {
        "format": FORMAT if integers is None else WITH_ACTIVATIONS,
        "values": values,
        **({} if integers is None else {"activations": records_of(integers)}),
        "steps": packed_records(model.net.graph.nodes),
        "reads": model.reads,
        "input": {part: list(map(float, getattr(model.normalisation, part))) for part in INPUT},
        "classes": [_printable(name) for name in model.classes],
        "card": _printable_all(model.card),
    }


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:MAX_NAME]


def _printable_all(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_printable(str(name)): _printable_all(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_printable_all(each) for each in value]
    return _printable(value) if isinstance(value, str) else value


def _checked(tensors: Tensors, text: str) -> TinyModel:
    header = exact_json(text)
    if header["format"] not in (FORMAT, WITH_ACTIVATIONS):
        read = f"{FORMAT} and {WITH_ACTIVATIONS}"
        raise ModelError(f"it has format {header['format']!r:.20}; this version reads {read}")
    checksum = tensors.pop(DIGEST)
    if checksum.tobytes().hex() != digest_of(tensors, text):
        raise ModelError("its checksum does not fit")
    graph = Graph(nodes_of(header["steps"], training=False, most=UNTRUSTED.nodes))
    _check(graph)
    with_activations = header["format"] == WITH_ACTIVATIONS
    net = from_tensors(tensors, graph, header["values"], turned=with_activations)
    net.check_values()
    normalisation = _normalisation(header["input"], channels=graph.shapes[0][0])
    usual = "values" if graph.shapes[0][1] == 1 else "bytes"  # of a file that does not say it
    reads = header.get("reads", usual)
    if reads not in get_args(Reads):
        raise ModelError("it was trained on nothing that is known")
    names, card, count = header["classes"], header["card"], graph.shapes[-1][0]
    if not isinstance(names, list) or len(names) != count or not all(map(is_name, names)):
        raise ModelError(f"it does not name its {count} classes")
    if not isinstance(card, dict) or _printable_all(card) != card:
        raise ModelError("its model card cannot be shown")
    integers = None
    if with_activations:
        if header["values"] != "int8":
            raise ModelError("its activations are int8, and its weights are not")
        integers = activations_of(header["activations"], graph)
    return TinyModel(net, normalisation, tuple(names), card, header["values"], integers, reads)


def _normalisation(record: Any, channels: int) -> Preparation:
    mean, std = (record[part] for part in INPUT)
    for numbers in (mean, std):
        if not isinstance(numbers, list) or len(numbers) != channels:
            raise ModelError("its normalization does not fit its input")
        if not all(type(n) is float and abs(n) <= LARGEST for n in numbers):
            raise ModelError("its normalization is not made of numbers that can be used")
    if min(std) < 1 / LARGEST:
        raise ModelError("its normalization divides by nothing")
    return Preparation(tuple(mean), tuple(std))


# The arrays of a network as flat tensors. A layer has `values` (float32, float16, or int8 with a
# float32 scale for each filter that keeps a weight), `positions` unless it keeps all its weights
# (bytes, as `federation.wire.indices` codes them), and perhaps a `bias`; a norm has its parts, four
# of batch norm and two of others; a learned tensor has `values` in float32. With int8 activations a
# transposed convolution is written as the convolution that it is, so that scales are its filters'.


def to_tensors(model: TinyModel, values: Values) -> Tensors:
    """All of a network's arrays, by name."""
    tensors: Tensors = {}
    for name, weights in _written(model):
        tensors |= {f"{name}.{part}": a for part, a in _parts(weights, values).items()}
    for name, norm in model.net.norms.items():
        tensors |= {f"{name}.{part}": a for part, a in zip(NORM_PARTS, norm.parts)}  # noqa: B905
    return tensors | {f"{name}.values": array for name, array in model.net.parameters.items()}


def layer_bytes(model: TinyModel, values: Values) -> dict[str, int]:
    """Number of bytes that each layer's arrays take in a packed file."""
    return {
        name: sum(array.nbytes for array in _parts(weights, values).values())
        for name, weights in _written(model)
    }


def _written(model: TinyModel) -> Iterator[tuple[str, Weights]]:
    """Weights as the file has them: with int8 activations those of a filter are always together."""
    nodes = {node.name: node for node in model.net.graph.layers.values()}
    for name, weights in model.net.weights.items():
        turned = model.activations is not None
        yield name, filters_first(nodes[name], weights) if turned else weights


def _parts(weights: Weights, values: Values) -> Tensors:
    parts: Tensors = {"values": weights.values}
    if values == "int8":
        small, scales = quantise(weights)
        parts = {"values": small, "scales": scales[_used(weights)]}
    if values == "fp16":
        parts["values"] = weights.values.clip(-LARGEST_FP16, LARGEST_FP16).astype(np.float16)
    if weights.indices is not None:
        code = b"".join(coded(weights.indices.astype(np.int32), weights.size))
        parts["positions"] = np.frombuffer(code, np.uint8)
    if weights.bias is not None:
        parts["bias"] = weights.bias
    return parts


def from_tensors(tensors: Tensors, graph: Graph, values: Any, *, turned: bool) -> Lowered:
    """What `to_tensors` was given, of tensors that may not fit or hold what they should."""
    if values not in DTYPES:
        raise ModelError("its values are of no known kind")
    left, shapes = dict(tensors), graph.weight_shapes
    layers = {node.name: node for node in graph.layers.values()}
    weights = {}
    for name, node in layers.items():
        shape = turned_shape(node, shapes[name]) if turned else shapes[name]
        found = _weights(left, node, shape, values)
        weights[name] = filters_first(node, found) if turned else found
    norms, parameters = {}, {}
    for node, shape in zip(graph.nodes, graph.shapes, strict=True):
        if node.kind in NORMS and node.name not in norms:
            parts = NORM_PARTS if node.kind == Kind.BATCH_NORM else NORM_PARTS[:2]
            taken = (_taken(left, f"{node.name}.{part}", np.float32, shape[0]) for part in parts)
            norms[node.name] = Norm(*taken, epsilon=node.epsilon)
        if node.kind == Kind.PARAMETER and node.name not in parameters:
            parameters[node.name] = _taken(left, f"{node.name}.values", np.float32, prod(shape))
    if left:
        raise ModelError(f"nothing in it uses {sorted(left)[0]!r:.60}")
    return Lowered(graph, weights, norms, parameters)


def _weights(tensors: Tensors, node: Node, shape: tuple[int, ...], values: Values) -> Weights:
    indices, name = None, node.name
    if f"{name}.positions" in tensors:
        reader = Reader(_taken(tensors, f"{name}.positions", np.uint8).data)
        indices = read_positions(reader, prod(shape))
        reader.finish()
    count = prod(shape) if indices is None else len(indices)
    found = Weights(
        shape,
        None if indices is None else indices.astype(np.int64),
        _taken(tensors, f"{name}.values", DTYPES[values], count).astype(np.float32),
        _taken(tensors, f"{name}.bias", np.float32, node.channels) if node.bias else None,
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
