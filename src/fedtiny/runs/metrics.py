"""One JSON line a round."""

import json
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
