"""Numbers of bytes, as people write them."""

import re

from fedtiny.errors import ConfigError

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmg]i?)?b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """A number of bytes; units are powers of a thousand, or of 1024 with an i.

    >>> [parse_size(text) for text in ("3MB", "500 kB", "1.5GB", "64", "1KiB")]
    [3000000, 500000, 1500000000, 64, 1024]
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * UNITS[(match[2] or "").lower()]) if match else 0
    if size < 1:
        raise ConfigError(f"'{text}' is not a size; write for example 3MB, 500kB or 1.5GB")
    return size
