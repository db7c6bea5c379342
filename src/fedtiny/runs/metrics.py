"""One JSON line a round."""

import json
from typing import Any

from fedtiny.errors import RunError
from fedtiny.runs.folder import RunFolder, append_line, write_atomically

Record = dict[str, Any]


def append(folder: RunFolder, record: Record) -> None:
    """Add a round's line."""
    append_line(folder.metrics, json.dumps(record))


def read(folder: RunFolder) -> list[Record]:
    """Every whole line; a last line that a kill cut off is left out."""
    if not folder.metrics.exists():
        return []
    records: list[Record] = []
    lines = folder.metrics.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise RunError(f"line {number} of {folder.metrics} is damaged") from error
    return records


def keep_before(folder: RunFolder, round: int) -> list[Record]:
    """Forget lines that the checkpoint does not know of, so that no round stands twice."""
    records = [record for record in read(folder) if record["round"] < round]
    text = "".join(json.dumps(record) + "\n" for record in records)
    write_atomically(folder.metrics, text.encode())
    return records
