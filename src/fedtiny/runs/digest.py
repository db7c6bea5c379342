"""Tensors with a text beside them in one file, and a checksum on both."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load


def digest_of(tensors: Mapping[str, NDArray[Any]], text: str) -> str:
    """What changes with any tensor and with the text beside them."""
    found = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(np.ascontiguousarray(tensors[name]).data)
    return found.hexdigest()


def with_text(data: bytes, key: str) -> tuple[dict[str, NDArray[Any]], Any]:
    """The tensors of a safetensors file, and what its metadata has under a key.

    Of bytes that are no such file it raises whatever comes: SafetensorError, LookupError,
    TypeError, ValueError or RecursionError.
    """
    tensors = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, header["__metadata__"][key]
