"""What the server is about to unmask, written down before it does.

With noise on devices a sum counts as seen once devices are asked to unmask it, whether or not the
server lives to use it. A run that is continued asks the same question of the same devices, gets the
same noisy numbers and must sum the same of them; a question that differs is one more release.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtiny.errors import RunError
from fedtiny.files import (
    MAX_LINES,
    append_line,
    parse_json,
    read_file,
    sync_folder,
    write_atomically,
)

FIELDS: dict[str, type] = {"release": int, "question": str, "left_out": dict, "shows": bool}


class QuestionJournal:
    """By release of a run, the questions that were unmasked, and who was left out of each."""

    def __init__(self, path: Path) -> None:
        self._path, data = path, b""
        with suppress(FileNotFoundError):
            data = read_file(path, MAX_LINES)
        complete, _, torn = data.rpartition(b"\n")
        if torn:
            write_atomically(path, complete and complete + b"\n")
        try:
            self._lines = [_parsed(line) for line in complete.splitlines()]
        except ValueError as error:
            raise RunError(
                f"{path} is damaged, which says what devices have told: put back a copy of it, "
                "or begin another run"
            ) from error

    def note(self, release: int, question: bytes, left_out: Mapping[int, str], shows: bool) -> None:
        """Write down that seeds of who is left out are asked for, or shares, which show a sum."""
        named = {str(device): why for device, why in left_out.items()}
        line = {"release": release, "question": question.hex(), "left_out": named, "shows": shows}
        if line not in self._lines:
            append_line(self._path, json.dumps(line))
            sync_folder(self._path.parent)
            self._lines.append(line)

    def left_out(self, question: bytes) -> dict[int, str]:
        """Who was left out of the sum when a question was asked before."""
        for line in reversed(self._lines):
            if line["question"] == question.hex():
                return {int(device): why for device, why in line["left_out"].items()}
        return {}

    def sums(self, release: int) -> int:
        """How many sums were shown in the place of one release."""
        return len(self._shown(release))

    def has_another(self, release: int, question: bytes) -> bool:
        """Whether sums were shown in the place of one release, and none to this question."""
        shown = self._shown(release)
        return bool(shown) and question.hex() not in shown

    def _shown(self, release: int) -> set[str]:
        lines = (line for line in self._lines if line["release"] == release and line["shows"])
        return {line["question"] for line in lines}


def _parsed(data: bytes) -> dict[str, Any]:
    """A line as it was written."""
    line = parse_json(data)
    if not isinstance(line, dict) or {name: type(own) for name, own in line.items()} != FIELDS:
        raise ValueError("this is no line of the journal")
    return line
