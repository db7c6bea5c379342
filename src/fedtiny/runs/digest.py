"""A seal on tensors and the text beside them."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digest_of(tensors: Mapping[str, NDArray[Any]], text: str) -> str:
    """What changes with any tensor and with the text beside them."""
    found = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(np.ascontiguousarray(tensors[name]).data)
    return found.hexdigest()
