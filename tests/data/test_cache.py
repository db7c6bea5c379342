"""The cache is whole or not there, whatever happens while it is written."""

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtiny.data.cache import Cache, Decoding, content_key
from fedtiny.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4), dtype=np.uint8)
LABELS = np.arange(10, dtype=np.int64) % 2


def decoding() -> Decoding:
    halves = [(IMAGES[:5], LABELS[:5]), (IMAGES[5:], LABELS[5:])]
    return Decoding("ten images", 10, ("cat", "dog"), iter(halves))


def must_not_decode() -> Decoding:
    raise AssertionError("decoded although the cache holds it")


def fails_while_decoding() -> Decoding:
    def batches():
        yield IMAGES[:5], LABELS[:5]
        raise DataError("row 5 is damaged")

    return Decoding("ten images", 10, ("cat", "dog"), batches())


OTHER_PROCESS = """
import os, sys
from pathlib import Path
import numpy as np
from fedtiny.data import cache
from fedtiny.data.cache import Decoding

folder, dies = sys.argv[1:]

def batches():
    images = np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4), dtype=np.uint8)
    labels = np.arange(10, dtype=np.int64) % 2
    yield images[:5], labels[:5]
    if dies == "decoding":
        os._exit(9)
    yield images[5:], labels[5:]

if dies == "renaming":
    cache.publish = lambda staging, entry: os._exit(9)
decoding = Decoding("ten images", 10, ("cat", "dog"), batches())
cache.Cache(Path(folder)).get("key", lambda: decoding)
"""


def another_process(folder: Path, dies: str = "never") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", OTHER_PROCESS, str(folder), dies])


def check_whole(cache: Cache) -> None:
    kept = cache.get("key", must_not_decode)
    assert np.array_equal(kept.images, IMAGES)
    assert np.array_equal(kept.labels, LABELS)
    assert kept.classes == ("cat", "dog")


def test_images_are_decoded_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "cache")
    assert np.array_equal(cache.get("key", decoding).images, IMAGES)
    check_whole(cache)
    assert [path.name for path in cache.folder.iterdir()] == ["key"]


def test_images_are_mapped_and_suit_torch_without_a_warning(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    kept = cache.get("key", decoding)
    assert isinstance(kept.images, np.memmap)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = torch.from_numpy(kept.images)
    tensor[0] = 7
    check_whole(cache)  # writing reached this process only


@pytest.mark.parametrize("moment", ["decoding", "renaming"])
def test_a_process_that_dies_leaves_no_entry(tmp_path: Path, moment: str) -> None:
    assert another_process(tmp_path, dies=moment).wait() == 9
    assert [path.name.startswith(".key-") for path in tmp_path.iterdir()] == [True]
    cache = Cache(tmp_path)
    cache.get("key", decoding)
    check_whole(cache)


def test_a_failed_decoding_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 5"):
        Cache(tmp_path).get("key", fails_while_decoding)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_swept_after_a_day(tmp_path: Path) -> None:
    old, recent = tmp_path / ".key-old", tmp_path / ".key-recent"
    old.mkdir()
    recent.mkdir()
    two_days_ago = time.time() - 2 * 24 * 60 * 60
    os.utime(old, (two_days_ago, two_days_ago))
    Cache(tmp_path).get("key", decoding)
    assert recent.exists()
    assert not old.exists()


def truncate(entry: Path) -> None:
    images = entry / "images.npy"
    os.truncate(images, images.stat().st_size - 1)


def lose_labels(entry: Path) -> None:
    (entry / "labels.npy").unlink()


def lose_manifest(entry: Path) -> None:
    (entry / "manifest.json").unlink()


def cut_manifest(entry: Path) -> None:
    os.truncate(entry / "manifest.json", 10)


def age_format(entry: Path) -> None:
    manifest = json.loads((entry / "manifest.json").read_text())
    (entry / "manifest.json").write_text(json.dumps({**manifest, "format": 0}))


def other_shape(entry: Path) -> None:
    np.save(entry / "images.npy", IMAGES.reshape(10, 3, 2, 8))


def flip(name: str):
    def damage(entry: Path) -> None:
        data = bytearray((entry / name).read_bytes())
        data[-1] ^= 1
        (entry / name).write_bytes(data)

    return damage


def other_class(entry: Path) -> None:
    text = (entry / "manifest.json").read_text()
    (entry / "manifest.json").write_text(text.replace("cat", "cut"))


def become_a_file(entry: Path) -> None:
    for path in entry.iterdir():
        path.unlink()
    entry.rmdir()
    entry.write_text("in the way")


@pytest.mark.parametrize(
    "damage",
    [
        *(truncate, lose_labels, lose_manifest, cut_manifest, age_format, other_shape),
        *(flip("images.npy"), flip("labels.npy"), other_class, become_a_file),
    ],
)
def test_a_damaged_entry_is_decoded_anew(tmp_path: Path, damage, capsys) -> None:
    cache = Cache(tmp_path)
    cache.get("key", decoding)
    damage(tmp_path / "key")
    with pytest.raises(AssertionError, match="decoded although"):
        cache.get("key", must_not_decode)
    assert f"the cache entry {tmp_path / 'key'} is damaged" in capsys.readouterr().err
    cache.get("key", decoding)
    check_whole(cache)
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_two_processes_at_once_both_end_fine(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def decoding_while_another_finishes() -> Decoding:
        assert another_process(tmp_path).wait() == 0
        return decoding()

    cache.get("key", decoding_while_another_finishes)
    check_whole(cache)
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_many_processes_at_once_all_end_fine(tmp_path: Path) -> None:
    together = [another_process(tmp_path) for _ in range(4)]
    assert [process.wait() for process in together] == [0] * 4
    check_whole(Cache(tmp_path))


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="FEDTINY_CACHE"):
        Cache(tmp_path / "file" / "cache").get("key", decoding)


def test_where_the_cache_is(tmp_path: Path, monkeypatch) -> None:
    assert Cache.at(tmp_path / "mine").folder == tmp_path / "mine"
    assert Cache.at().folder == tmp_path / "cache"
    monkeypatch.delenv("FEDTINY_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Cache.at().folder == tmp_path / ".cache" / "fedtiny"


def test_the_key_follows_content_and_not_place(tmp_path: Path) -> None:
    for name, content in [("a", b"one"), ("b", b"one"), ("c", b"two")]:
        (tmp_path / name).write_bytes(content)
    key = content_key("kind", [("0", tmp_path / "a")])
    assert key == content_key("kind", [("0", tmp_path / "b")])
    assert key != content_key("kind", [("0", tmp_path / "c")])
    assert key != content_key("kind", [("1", tmp_path / "a")])
    assert key != content_key("other", [("0", tmp_path / "a")])
