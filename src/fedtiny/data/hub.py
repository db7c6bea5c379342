"""Fetch a named set from the hub, where a network is there and the user asks for it."""

from pathlib import Path

from fedtiny.data.known import KNOWN, KnownSet
from fedtiny.data.layout import root_folder, split_files
from fedtiny.errors import DataError
from fedtiny.extras import require

SPLITS = ("train", "test")


def get(name: str, root: str | Path | None = None) -> Path:
    """Download the training and test files of a set into ROOT/NAME, and give that folder.

    ROOT is the one given, else ``$FEDTINY_DATA``, else ``data``.
    """
    known = _fetchable(name)
    folder = root_folder(root) / name
    _download(known, folder)
    for split in SPLITS:
        split_files(folder.parent, name, split, known.config)
    return folder


def _fetchable(name: str) -> KnownSet:
    if name == "digits":
        raise DataError("digits comes with scikit-learn; there is nothing to fetch")
    if name not in KNOWN:
        raise DataError(f"the hub has no set called {name!r} here; it has {', '.join(KNOWN)}")
    return KNOWN[name]


def _download(known: KnownSet, folder: Path) -> None:
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
