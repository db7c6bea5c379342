"""One JSON line a round, and numbers out of such plain data."""

import json
from math import isfinite
from typing import Any

from fedtiny.errors import RunError
from fedtiny.files import append_line, plain, write_atomically
from fedtiny.runs.folder import RunFolder

Record = dict[str, Any]


def append(folder: RunFolder, record: Record) -> None:
    """Add a round's line."""
    append_line(folder.metrics, json.dumps(plain(record)))


def read(folder: RunFolder) -> list[Record]:
    """Every whole line; a last line that a kill cut off is left out."""
    if not folder.metrics.exists():
        return []
    records: list[Record] = []
    lines = folder.metrics.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        record = _parsed(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):
            raise RunError(f"line {number} of {folder.metrics} is damaged")
    return records


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("round"), int) else None


def keep_before(folder: RunFolder, round: int) -> list[Record]:
    """Forget lines that the checkpoint does not know of, so that no round stands twice."""
    records = [record for record in read(folder) if record["round"] < round]
    if [record["round"] for record in records] != list(range(round)):
        raise RunError(
            f"{folder.metrics} lacks some of the {round} rounds that the checkpoint has seen; "
            "put the file back as it was"
        )
    text = "".join(json.dumps(record) + "\n" for record in records)
    write_atomically(folder.metrics, text.encode())
    return records


def number(values: Any, key: str) -> float | None:
    """A finite number out of plain data, or nothing."""
    value = values.get(key) if isinstance(values, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def numbers(values: Any, key: str) -> dict[str, float]:
    """The finite numbers of a table within plain data, by name."""
    table = values.get(key) if isinstance(values, dict) else None
    if not isinstance(table, dict):
        return {}
    found = {str(name): number(table, name) for name in table}
    return {name: value for name, value in found.items() if value is not None}


def strings(values: Any, key: str) -> list[str]:
    """The texts of a list within plain data."""
    listed = values.get(key) if isinstance(values, dict) else None
    return [str(item) for item in listed] if isinstance(listed, list) else []
