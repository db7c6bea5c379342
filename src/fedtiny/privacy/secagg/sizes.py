"""How many bytes secure aggregation takes, without an exchange."""

from fedtiny.privacy.secagg import graph, shamir
from fedtiny.privacy.secagg.ciphers import KEY_BYTES, SIGNATURE_BYTES
from fedtiny.privacy.secagg.quantize import Scales
from fedtiny.privacy.secagg.server import COMMITMENT_BYTES, SHARE_BYTES
from fedtiny.privacy.secagg.terms import Message

_EMPTY = Message(0, 0, 0).size
_NAME = 8  # bytes by which an entry names a device


def down(devices: int, neighbors: int, parts: int) -> int:
    """What a device gets beside the request: terms, keys of neighbors, shares to decrypt."""
    count = graph.degree(devices, neighbors)
    scales = len(Scales((0,) * parts, (1.0,) * parts, 1, devices).to_bytes())
    terms = _EMPTY + _NAME * devices + scales
    keys = _EMPTY + count * (_NAME + KEY_BYTES + SIGNATURE_BYTES)
    return terms + keys + _EMPTY + count * (_NAME + SHARE_BYTES)


def up(devices: int, neighbors: int, numbers: int) -> int:
    """What a device sends in place of its reply: the masked vector, and shares to unmask by."""
    count = graph.degree(devices, neighbors)
    shares = count * (_NAME + SHARE_BYTES)
    vector = 4 * numbers
    return 2 * _EMPTY + COMMITMENT_BYTES + vector + shares + count * (_NAME + shamir.BYTES)
