"""Lies in a file of tensors, under a checksum that whoever made them has computed again."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from fedtiny.export import packed
from fedtiny.files import digest_of, metadata_of

Tensors = dict[str, np.ndarray]
DEEP = 900  # tables within tables: JSON that is read, and then too deep for what reads it
HUGE = (float("nan"), float("inf"), 3e38, -1e30)


def open_forged(path: Path) -> tuple[Tensors, Any]:
    """The tensors of a file, and what is written beside them if that is signed."""
    data = path.read_bytes()
    tensors, beside = load(data), metadata_of(data)
    if packed.METADATA in beside:
        tensors.pop(packed.DIGEST, None)
        return tensors, json.loads(beside[packed.METADATA])
    if "fedtiny" in beside:
        signed = json.loads(beside["fedtiny"])
        (key,) = signed.keys() - {"digest"}
        return tensors, json.loads(signed[key])
    return tensors, None


def sign(path: Path, tensors: Tensors, told: Any) -> None:
    """Write such a file anew, with a checksum that fits."""
    beside = metadata_of(path.read_bytes())
    tensors = {name: np.array(array, order="C") for name, array in tensors.items()}
    text = told if isinstance(told, str) else json.dumps(told)
    if packed.METADATA in beside:
        digest = np.frombuffer(bytes.fromhex(digest_of(tensors, text)), np.uint8)
        path.write_bytes(save({**tensors, packed.DIGEST: digest}, {packed.METADATA: text}))
    elif told is None:
        path.write_bytes(save(tensors))
    else:
        (key,) = json.loads(beside["fedtiny"]).keys() - {"digest"}
        signed = json.dumps({key: text, "digest": digest_of(tensors, text)})
        path.write_bytes(save(tensors, {"fedtiny": signed}))


def deep_table(depth: int = DEEP) -> dict[str, Any]:
    """A table in a table, so many times."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def _gone(tensors: Tensors, name: str, draw: random.Random) -> None:
    del tensors[name]


def _short(tensors: Tensors, name: str, draw: random.Random) -> None:
    tensors[name] = tensors[name].ravel()[: draw.choice([0, 1, -1])]


def _long(tensors: Tensors, name: str, draw: random.Random) -> None:
    tensors[name] = np.concatenate([tensors[name].ravel()] * 2)


def _kind(tensors: Tensors, name: str, draw: random.Random) -> None:
    kinds = ["float32", "int64", "uint8", "float64", "float16", "bool", "int32"]
    with np.errstate(all="ignore"):
        tensors[name] = tensors[name].astype(draw.choice(kinds))


def _shape(tensors: Tensors, name: str, draw: random.Random) -> None:
    shape = draw.choice([(1, -1), (-1, 1), (-1,), (1, 1, 1, -1)])
    tensors[name] = tensors[name].reshape(shape)


def _one_value(tensors: Tensors, name: str, draw: random.Random) -> None:
    array = tensors[name].copy()
    if array.size:
        values = [0, 1, 99, *(HUGE if array.dtype.kind == "f" else (7,))]
        array.reshape(-1)[draw.randrange(array.size)] = draw.choice(values)
    tensors[name] = array


def _all_values(tensors: Tensors, name: str, draw: random.Random) -> None:
    values = HUGE if tensors[name].dtype.kind == "f" else (0, 1)
    tensors[name] = np.full_like(tensors[name], draw.choice(values))


def _another(tensors: Tensors, name: str, draw: random.Random) -> None:
    tensors["method.more"] = tensors[name]
    tensors["more"] = tensors[name]


def _own(tensors: Tensors, name: str, draw: random.Random) -> None:
    """What a method of one's own may keep: any value, in arrays that are no model."""
    tensors["method.best_score"] = np.full(1, draw.choice([*HUGE, float("-inf")]))


def _swapped(tensors: Tensors, name: str, draw: random.Random) -> None:
    other = draw.choice(sorted(tensors))
    tensors[name], tensors[other] = tensors[other], tensors[name]


def empty_device(tensors: Tensors) -> None:
    """Give the second device's samples of a partition to the first."""
    offsets, table = tensors["offsets"].copy(), tensors["table"].copy()
    offsets[1] = offsets[2]
    table[0], table[1] = table[0] + table[1], 0
    tensors["offsets"], tensors["table"] = offsets, table


def _without_samples(tensors: Tensors, name: str, draw: random.Random) -> None:
    empty_device(tensors) if "offsets" in tensors else _all_values(tensors, name, draw)


LIES: list[Callable[[Tensors, str, random.Random], None]] = [
    *(_gone, _short, _long, _kind, _shape, _one_value, _all_values, _another, _swapped),
    *(_own, _without_samples),
]


def forge(path: Path, draw: random.Random, changed: Callable[[Any, random.Random], str]) -> str:
    """Change a tensor, or what is written beside the tensors, and sign it; says what."""
    tensors, told = open_forged(path)
    if told is not None and draw.random() < 0.35:
        what = changed(told, draw)
    elif isinstance(told, dict) and draw.random() < 0.1:
        inner = draw.choice(sorted(told))
        told[inner] = deep_table()
        what = f"{inner} is deep"
    else:
        name, lie = draw.choice(sorted(tensors)), draw.choice(LIES)
        lie(tensors, name, draw)
        what = f"{lie.__name__} {name}"
    if told is not None and "kinds" in told and draw.random() < 0.9:
        told["kinds"] = {n: f"{tensors[n].dtype}{tensors[n].shape}" for n in sorted(tensors)}
    sign(path, tensors, told)
    return f"forged: {what}"
