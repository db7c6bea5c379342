"""Find the Parquet files of a set, as the hub lays them out, and see that none is missing."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from fedtiny.data.known import KNOWN
from fedtiny.errors import DataError

SHARD = re.compile(r"(?P<split>\w+)-(?P<number>\d+)-of-(?P<count>\d+)(-[0-9a-f]+)?\.parquet")


def root_folder(root: str | Path | None = None) -> Path:
    """The folder of the data sets: the one given, else ``$FEDTINY_DATA``, else ``data``."""
    return Path(root or os.environ.get("FEDTINY_DATA") or "data").expanduser()


def split_files(root: Path, name: str, split: str, config: str) -> list[Path]:
    """The shards of one split, in order, from ROOT/NAME or from ROOT itself.

    Where several folders below ROOT/NAME hold the split, the one called ``config`` is taken.
    """
    found = _below(root / name, split)
    if not found and root.name not in KNOWN.keys() - {name}:  # never another set's files
        found = _shards(root.glob("*.parquet"), split)
    if not found:
        raise DataError(
            f"no {split} files of {name} in {root / name}: run `fedtiny data get {name}`, "
            "or point --data.root at the folder that holds them"
        )
    return _complete(_from_one_folder(found, config), split)


def _below(folder: Path, split: str) -> list[Path]:
    visible = (
        path
        for path in folder.rglob("*.parquet")
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    return _shards(visible, split)


def _shards(paths: Iterable[Path], split: str) -> list[Path]:
    matches = ((SHARD.fullmatch(path.name), path) for path in paths)
    return sorted(path for match, path in matches if match and match["split"] == split)


def _from_one_folder(found: list[Path], config: str) -> list[Path]:
    folders = sorted({path.parent for path in found})
    if len(folders) > 1:
        folders = [folder for folder in folders if folder.name == config] or folders
    if len(folders) > 1:
        listed = " and ".join(map(str, folders))
        raise DataError(f"the same files are in {listed}; keep one of the folders")
    return [path for path in found if path.parent == folders[0]]


def _complete(shards: list[Path], split: str) -> list[Path]:
    numbers, counts = zip(*map(_number_and_count, shards), strict=True)
    expected = range(max(counts))
    missing = sorted(set(expected) - set(numbers))
    if missing:
        raise DataError(
            f"{shards[0].parent} lacks file {missing[0]} of the {max(counts)} {split} files "
            "(they are numbered from 0); fetch it again"
        )
    if list(numbers) != list(expected) or len(set(counts)) > 1:
        raise DataError(f"{shards[0].parent} mixes {split} files of two downloads; keep one")
    return shards


def _number_and_count(shard: Path) -> tuple[int, int]:
    match = SHARD.fullmatch(shard.name)
    assert match
    return int(match["number"]), int(match["count"])
