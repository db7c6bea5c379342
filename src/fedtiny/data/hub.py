"""The named sets of the hub: what they are, where their Parquet files lie, how they are fetched."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedtiny.errors import DataError
from fedtiny.extras import require
from fedtiny.paths import user_path

SPLITS = ("train", "test")
SHARD = re.compile(r"(?P<split>\w+)-(?P<number>\d+)-of-(?P<count>\d+)(-[0-9a-f]+)?\.parquet")


def _over_255(*values: float) -> tuple[float, ...]:
    return tuple(value / 255 for value in values)


@dataclass(frozen=True)
class KnownSet:
    """A set of 32x32 color images on the hub; ``config`` is the folder that holds it there."""

    description: str
    repository: str
    config: str
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flips: bool = True
    crop_padding: int = 4


KNOWN = {
    "cifar10": KnownSet(
        "60,000 photographs of 10 kinds of animals and vehicles",
        repository="uoft-cs/cifar10",
        config="plain_text",
        n_classes=10,
        mean=_over_255(125.307, 122.950, 113.865),
        std=_over_255(62.993, 62.089, 66.705),
    ),
    "cifar100": KnownSet(
        "60,000 photographs of 100 kinds of things, with their fine labels",
        repository="uoft-cs/cifar100",
        config="cifar100",
        n_classes=100,
        mean=_over_255(129.304, 124.070, 112.434),
        std=_over_255(68.170, 65.392, 70.418),
    ),
    "cinic10": KnownSet(
        "180,000 photographs of CIFAR-10's kinds, most from ImageNet (validation left out)",
        repository="flwrlabs/cinic10",
        config="data",
        n_classes=10,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
    ),
    "svhn": KnownSet(
        "99,289 digits cropped from photographs of house numbers",
        repository="ufldl-stanford/svhn",
        config="cropped_digits",
        n_classes=10,
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        flips=False,
    ),
}


def root_folder(root: str | Path | None = None) -> Path:
    """The folder of the data sets: the one given, else ``$FEDTINY_DATA``, else ``data``."""
    if root:
        return user_path(root, "--data.root")
    return user_path(os.environ.get("FEDTINY_DATA") or "data", "FEDTINY_DATA")


def split_files(root: Path, name: str, split: str, config: str) -> list[Path]:
    """The shards of one split, in order, from ROOT/NAME or from ROOT itself.

    Where several folders below ROOT/NAME hold the split, the one called ``config`` is taken.
    """
    found = _shards(_visible(root / name), split)
    if not found and root.name not in KNOWN.keys() - {name}:  # never another set's files
        found = _shards(root.glob("*.parquet"), split)
    if not found:
        raise DataError(
            f"no {split} files of {name} in {root / name}: run `fedtiny data get {name}`, "
            "or point --data.root at the folder that holds them"
        )
    return _complete(_from_one_folder(found, config), split)


def _visible(folder: Path) -> Iterable[Path]:
    for path in folder.rglob("*.parquet"):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


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
    matches = [match for shard in shards if (match := SHARD.fullmatch(shard.name))]
    numbers = [int(match["number"]) for match in matches]
    counts = {int(match["count"]) for match in matches}
    expected = range(max(counts))
    missing = sorted(set(expected) - set(numbers))
    if missing:
        raise DataError(
            f"{shards[0].parent} lacks file {missing[0]} of the {max(counts)} {split} files "
            "(they are numbered from 0); fetch it again"
        )
    if numbers != list(expected) or len(counts) > 1:
        raise DataError(f"{shards[0].parent} mixes {split} files of two downloads; keep one")
    return shards


def get(name: str, root: str | Path | None = None) -> Path:
    """Download the training and test files of a set into ROOT/NAME; returns that folder.

    ROOT is the one given, else ``$FEDTINY_DATA``, else ``data``.
    """
    if name == "digits":
        raise DataError("digits comes with fedtiny; there is nothing to fetch")
    if name not in KNOWN:
        raise DataError(f"the hub has no set called {name!r} here; it has {', '.join(KNOWN)}")
    known, folder = KNOWN[name], root_folder(root) / name
    hub = require("huggingface_hub", extra="hub")
    try:
        hub.snapshot_download(
            known.repository,
            repo_type="dataset",
            local_dir=folder,
            allow_patterns=[f"{known.config}/{split}-*.parquet" for split in SPLITS],
        )
    except Exception as failed:  # network, disk and hub errors have no common base
        reason = (str(failed).strip() or type(failed).__name__).splitlines()[0]
        raise DataError(
            f"{known.repository} could not be fetched from the hub ({reason}); "
            f"check the network, or copy its Parquet files into {folder}"
        ) from failed
    for split in SPLITS:
        split_files(folder.parent, name, split, known.config)
    return folder
