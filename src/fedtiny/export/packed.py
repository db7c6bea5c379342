"""The packed model: one small file with everything that is needed to use a model.

A safetensors file; `docs/packed.md` has its layout. Reading one trusts nothing in it: a length is
checked before anything is made from it, and what does not fit ends in one sentence.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save

from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError, FedTinyError, ModelError
from fedtiny.export import layers
from fedtiny.export.layers import Tensors
from fedtiny.export.network import TinyModel, Values
from fedtiny.files import digest_of, with_text
from fedtiny.graph.ir import UNTRUSTED, Graph
from fedtiny.graph.records import MAX_NAME, is_name, nodes_of, packed_records

FORMAT = 1
INPUT = ("mean", "std")
LARGEST = 1e9  # of a mean or std, and of what one divides by
METADATA, DIGEST = "fedtiny.packed", "digest"


def packed(model: TinyModel, values: Values = "fp32") -> bytes:
    """The bytes of a packed file; the same model always gives the same."""
    _check(model.net.graph)  # what could not be read is not written
    model.net.check_values()
    tensors = layers.to_tensors(model.net, values)
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
        data = Path(path).read_bytes()
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror}") from error
    return unpacked(data, str(path))


def unpacked(data: bytes, name: str = "the file") -> TinyModel:
    """The model that these bytes hold."""
    tensors, text = _opened(data, name)
    try:
        return _checked(tensors, text)
    except (FedTinyError, KeyError, TypeError, ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, FedTinyError) else "its description is incomplete"
        raise ExportError(f"{name} is a damaged packed model ({why}); export it again") from error


def _header(model: TinyModel, values: Values) -> dict[str, Any]:
    """What stands beside the tensors."""
    return {
        "format": FORMAT,
        "values": values,
        "steps": packed_records(model.net.graph.nodes),
        "input": {part: list(map(float, getattr(model.normalisation, part))) for part in INPUT},
        "classes": [_printable(name) for name in model.classes],
        "card": _printable_all(model.card),
    }


def _printable(text: str) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown[:MAX_NAME]


def _printable_all(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_printable(str(name)): _printable_all(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_printable_all(each) for each in value]
    return _printable(value) if isinstance(value, str) else value


def _opened(data: bytes, name: str) -> tuple[Tensors, str]:
    """The tensors and the text of something that may be no packed file at all."""
    try:
        return with_text(data, METADATA)
    except (SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ExportError(
            f"{name} is not a packed model, or only a part of one; make one with: "
            "fedtiny export DIR --format packed"
        ) from error


def _checked(tensors: Tensors, text: str) -> TinyModel:
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise ModelError(f"it has format {header['format']!r:.20}; this version reads {FORMAT}")
    checksum = tensors.pop(DIGEST)
    if checksum.tobytes().hex() != digest_of(tensors, text):
        raise ModelError("its checksum does not fit")
    graph = Graph(nodes_of(header["steps"], training=False, most=UNTRUSTED.nodes))
    _check(graph)
    net = layers.from_tensors(tensors, graph, header["values"])
    net.check_values()
    return TinyModel(
        net,
        _normalisation(header["input"], channels=graph.shapes[0][0]),
        _classes(header["classes"], count=graph.shapes[-1][0]),
        _card(header["card"]),
        header["values"],
    )


def _normalisation(record: Any, channels: int) -> Preparation:
    mean, std = (record[part] for part in INPUT)
    for numbers in (mean, std):
        if not isinstance(numbers, list) or len(numbers) != channels:
            raise ModelError("its normalisation does not fit its input")
        if not all(type(n) is float and abs(n) <= LARGEST for n in numbers):
            raise ModelError("its normalisation is not made of numbers that can be used")
    if min(std) < 1 / LARGEST:
        raise ModelError("its normalisation divides by nothing")
    return Preparation(tuple(mean), tuple(std))


def _classes(names: Any, count: int) -> tuple[str, ...]:
    if not isinstance(names, list) or len(names) != count or not all(map(is_name, names)):
        raise ModelError(f"it does not name its {count} classes")
    return tuple(names)


def _card(card: Any) -> Mapping[str, Any]:
    if not isinstance(card, dict) or _printable_all(card) != card:
        raise ModelError("its model card cannot be shown")
    return card
