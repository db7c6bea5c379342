"""Load a data set by its name."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedtiny.data import parquet
from fedtiny.data.cache import Cache, content_key
from fedtiny.data.digits import digits
from fedtiny.data.folder import folder, own_images
from fedtiny.data.images import DataSet, ImageSet
from fedtiny.data.known import KNOWN
from fedtiny.data.layout import root_folder, split_files
from fedtiny.errors import DataError
from fedtiny.suggest import did_you_mean


def names() -> dict[str, str]:
    """The named sets and what each holds in one line."""
    described = {name: known.description for name, known in KNOWN.items()}
    return {"digits": "1,797 handwritten digits of 8x8 pixels, without any download", **described}


def load(name: str, root: str | Path | None = None, cache: str | Path | None = None) -> DataSet:
    """A named set, or ``folder`` for the images by class in the folder ``root``.

    Named sets are read from Parquet files below ROOT/NAME (``root``, else ``$FEDTINY_DATA``,
    else ``data``) and decoded once into ``cache`` (else ``$FEDTINY_CACHE``, else
    ``~/.cache/fedtiny``). Of CINIC-10's three splits the validation split is kept out: as in
    the paper, runs train on the training split and are measured on the test split.

    >>> load("digits").train.shape
    (1, 8, 8)
    """
    if name == "digits":
        return digits()
    if name == "folder":
        return folder(root_folder(root), Cache.at(cache))
    if name in KNOWN:
        return _known_set(name, root_folder(root), Cache.at(cache))
    raise DataError(_unknown(name))


def _known_set(name: str, root: Path, cache: Cache) -> DataSet:
    known = KNOWN[name]
    train, test = (_split(name, root, split, cache) for split in ("train", "test"))
    return DataSet(name, train, test, known.mean, known.std, known.flips, known.crop_padding)


def _split(name: str, root: Path, split: str, cache: Cache) -> ImageSet:
    known = KNOWN[name]
    files = split_files(root, name, split, known.config)
    return _rows(files, f"{name} {split}", known.n_classes, cache)


def _rows(files: Sequence[Path], what: str, n_classes: int, cache: Cache) -> ImageSet:
    key = content_key(f"parquet {n_classes}", ((str(i), f) for i, f in enumerate(files)))
    return cache.get(key, partial(parquet.decoding, files, what, n_classes))


def load_own(path: Path, classes: tuple[str, ...], cache: str | Path | None = None) -> ImageSet:
    """The images that a device has itself: a Parquet file, a folder of such, or one by class.

    Labels mean these classes; a folder need not have all of them.
    """
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if path.is_dir() and not files:
        return own_images(path, classes, Cache.at(cache))
    if not all(file.is_file() and file.suffix == ".parquet" for file in files):
        raise DataError(f"{path} is neither a Parquet file nor a folder")
    found = _rows(files, path.name, len(classes), Cache.at(cache))
    if found.classes not in (classes, tuple(map(str, range(len(classes))))):
        raise DataError(f"{path} names other classes than {', '.join(classes)}")
    return replace(found, classes=classes)


def _unknown(name: str) -> str:
    available = [*names(), "folder"]
    guess = did_you_mean(name, available, cutoff=0.5)
    return f"there is no data set {name!r} among {', '.join(available)}{guess}"
