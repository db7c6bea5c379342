"""The number of a round in all that is written and shown: the first is 1.

Run folders of version 0.2 and before have the key `round`, which counts from 0, as the schedules of
methods and the keys of random draws do. Such a folder is read as any other and continued with its
own key. The two keys are different, so that one cannot be taken for the other.
"""

from collections.abc import Mapping
from typing import Any

KEY = "round_number"
OLD_KEY = "round"


def round_number(record: Mapping[str, Any]) -> int:
    """Which round a record is of.

    >>> round_number({"round_number": 3}), round_number({"round": 2})
    (3, 3)
    """
    return int(record[KEY] if KEY in record else record[OLD_KEY] + 1)


def numbered(record: Mapping[str, Any]) -> dict[str, Any]:
    """The same record under today's key.

    >>> numbered({"round": 0, "loss": 0.5})
    {'round_number': 1, 'loss': 0.5}
    """
    return {KEY: round_number(record), **_without_number(record)}


def numbered_from_zero(record: Mapping[str, Any]) -> dict[str, Any]:
    """The same record under the old key.

    >>> numbered_from_zero({"round_number": 1, "loss": 0.5})
    {'round': 0, 'loss': 0.5}
    """
    return {OLD_KEY: round_number(record) - 1, **_without_number(record)}


def _without_number(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in (KEY, OLD_KEY)}
