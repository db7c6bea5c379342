"""How large a model is in every format, beside the dense model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from fedtiny.errors import FedTinyError
from fedtiny.export.c_source import flash_bytes
from fedtiny.export.network import TinyModel, Values
from fedtiny.export.onnx_file import onnx_bytes, plain_size
from fedtiny.export.packed import packed

BYTES = 4  # of a float32
MAX_CLAIMED = 1 << 53  # bytes that a card may claim: a larger number is no exact float
VALUES: tuple[Values, ...] = ("fp32", "fp16", "int8")
C_VALUES: tuple[Values, ...] = ("fp32", "int8")


@dataclass(frozen=True)
class Size:
    """A format, its number of bytes, or why it is not to be had."""

    format: str
    bytes: int | None
    remark: str = ""


def dense_bytes(model: TinyModel) -> int:
    """Bytes of the model before pruning, as its card tells them, or else of its own full shape."""
    claimed = model.card.get("dense_bytes")
    if type(claimed) is int and 0 < claimed < MAX_CLAIMED:
        return claimed
    return BYTES * sum(map(prod, model.net.graph.weight_shapes.values()))


def all_sizes(model: TinyModel) -> Iterator[Size]:
    """The size of every format, the dense model's first."""
    dense = dense_bytes(model)
    yield Size("dense (torch)", dense, "every weight in float32")
    yield _size("onnx --plain", plain_size, model)
    yield _size("onnx", onnx_bytes, model, remark="made dense by runtimes")
    for values in VALUES:
        yield _size(f"packed --values {values}", packed, model, values)
    for values in C_VALUES:
        yield _size(f"c --values {values}", flash_bytes, model, values, remark="flash")


def _size(
    format: str, measure: Callable[..., int | bytes], *arguments: object, remark: str = ""
) -> Size:
    try:
        found = measure(*arguments)
    except FedTinyError as error:
        return Size(format, None, str(error))
    return Size(format, found if isinstance(found, int) else len(found), remark)
