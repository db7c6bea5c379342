"""The four named sets from tiny Parquet files of their schemas."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedtiny.data import load
from fedtiny.data.hub import root_folder, split_files
from fedtiny.errors import DataError

NAMED = ["cifar10", "cifar100", "cinic10", "svhn"]
ONE_FILE = "train-00000-of-00001.parquet"


@pytest.mark.parametrize("name", NAMED)
def test_a_named_set_is_read_as_written(name: str, make_split, tmp_path: Path) -> None:
    train = make_split(name, "train", (7, 5))
    test = make_split(name, "test", (10,))
    data = load(name)
    assert np.array_equal(data.train.images, train)
    assert np.array_equal(data.test.images, test)
    assert data.train.labels.tolist() == [*range(10), 0, 1]
    assert data.classes[:2] == (f"{name} 0", f"{name} 1")
    assert len(data.classes) == (100 if name == "cifar100" else 10)
    assert data.flips == (name != "svhn")
    assert data.crop_padding == 4


def test_a_second_load_reads_the_cache(make_split, tmp_path: Path, monkeypatch) -> None:
    make_split("cifar10", "train")
    make_split("cifar10", "test")
    first = load("cifar10")
    monkeypatch.setattr("fedtiny.data.image_files.decode", None)
    monkeypatch.setattr("fedtiny.data.image_files.require", None)
    assert np.array_equal(load("cifar10").train.images, first.train.images)


def test_changed_files_are_decoded_again(make_split, write_parquet, png, tmp_path: Path) -> None:
    images = make_split("cifar10", "train")
    make_split("cifar10", "test")
    load("cifar10")
    changed = 255 - images[:3]
    path = tmp_path / "data" / "cifar10" / ONE_FILE
    write_parquet(path, "cifar10", list(map(png, changed)), [0, 1, 2])
    assert np.array_equal(load("cifar10").train.images, changed)


def test_the_validation_split_of_cinic10_is_kept_out(make_split) -> None:
    for split, count in [("train", 12), ("validation", 11), ("test", 10)]:
        make_split("cinic10", split, (count,), below="data")
    data = load("cinic10")
    assert (len(data.train), len(data.test)) == (12, 10)


def test_svhn_takes_cropped_digits_and_no_extra(make_split) -> None:
    for split, count in [("train", 12), ("test", 10), ("extra", 9)]:
        make_split("svhn", split, (count,), below="cropped_digits")
        make_split("svhn", split, (5,), below="full_numbers")
    data = load("svhn")
    assert (len(data.train), len(data.test)) == (12, 10)


def test_files_are_also_found_in_the_root_itself(make_split, tmp_path: Path) -> None:
    make_split("cifar10", "train")
    make_split("cifar10", "test")
    assert len(load("cifar10", root=tmp_path / "data" / "cifar10").train) == 12


def test_hidden_folders_are_passed_over(make_split) -> None:
    make_split("cifar10", "train", (4,), below=".cache/download")
    make_split("cifar10", "train", (12,), below="plain_text")
    make_split("cifar10", "test")
    assert len(load("cifar10").train) == 12


def test_missing_files_name_the_folder_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refusal:
        load("cinic10")
    assert str(tmp_path / "data" / "cinic10") in str(refusal.value)
    assert "fedtiny data get cinic10" in str(refusal.value)
    assert "--data.root" in str(refusal.value)


def test_a_missing_split_is_named(make_split) -> None:
    make_split("svhn", "train")
    with pytest.raises(DataError, match="no test files of svhn"):
        load("svhn")


def test_a_missing_shard_is_an_error(make_split, tmp_path: Path) -> None:
    make_split("cifar10", "train", (4, 4, 4))
    (tmp_path / "data" / "cifar10" / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(DataError, match="lacks file 1 of the 3 train files"):
        load("cifar10")


def test_shards_of_two_downloads_are_an_error(make_split) -> None:
    make_split("cifar10", "train", (4, 4))
    make_split("cifar10", "train", (8,))
    with pytest.raises(DataError, match="two downloads"):
        load("cifar10")


def test_two_folders_with_the_same_split_are_an_error(make_split) -> None:
    make_split("cifar10", "train", below="one")
    make_split("cifar10", "train", below="two")
    with pytest.raises(DataError, match="keep one of the folders"):
        load("cifar10")


def test_shards_with_a_hash_in_their_name_are_found(make_split, tmp_path: Path) -> None:
    make_split("cifar10", "train")
    folder = tmp_path / "data" / "cifar10"
    hashed = (folder / ONE_FILE).rename(folder / "train-00000-of-00001-a09b74b3ef9c3b56.parquet")
    assert split_files(folder.parent, "cifar10", "train", "plain_text") == [hashed]


def test_the_root_is_the_argument_then_the_setting_then_data(monkeypatch, tmp_path: Path) -> None:
    assert root_folder("here") == Path("here")
    assert root_folder() == tmp_path / "data"
    monkeypatch.delenv("FEDTINY_DATA")
    assert root_folder() == Path("data")


def one_train_file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "cifar10" / ONE_FILE


def test_classes_are_numbers_where_the_file_names_none(
    make_split, write_parquet, png, random_images, tmp_path: Path
) -> None:
    make_split("cifar10", "test")
    for split in ("train", "test"):
        path = tmp_path / "data" / "cifar10" / f"{split}-00000-of-00001.parquet"
        write_parquet(path, "cifar10", [png(random_images(1)[0])], [3], named=False)
    assert load("cifar10").classes == tuple("0123456789")


def test_a_corrupt_image_is_named(write_parquet, png, random_images, tmp_path: Path) -> None:
    whole = png(random_images(1)[0])
    path = one_train_file(tmp_path)
    write_parquet(path, "cifar10", [whole] * 5 + [whole[:100]], [0] * 6)
    with pytest.raises(DataError, match=r"row 5 of .*train-00000-of-00001.parquet cannot be dec"):
        load("cifar10")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_image_without_bytes_is_named(write_parquet, tmp_path: Path) -> None:
    write_parquet(one_train_file(tmp_path), "cifar10", [None], [0])
    with pytest.raises(DataError, match=r"row 0 of .* holds no image bytes"):
        load("cifar10")


def test_mixed_sizes_are_an_error(write_parquet, png, random_images, tmp_path: Path) -> None:
    images = [png(random_images(1)[0]), png(random_images(1, size=16)[0])]
    write_parquet(one_train_file(tmp_path), "cifar10", images, [0, 1])
    with pytest.raises(DataError, match=r"row 1 of .* is 16x16 where the first image is 32x32"):
        load("cifar10")


@pytest.mark.parametrize("label", [10, -1, None])
def test_a_label_outside_the_classes_is_named(
    label, write_parquet, png, random_images, tmp_path: Path
) -> None:
    images = list(map(png, random_images(2)))
    write_parquet(one_train_file(tmp_path), "cifar10", images, [0, label])
    with pytest.raises(DataError, match=f"row 1 of .* has label {label}"):
        load("cifar10")


def test_another_set_is_not_taken_for_this_one(make_split, tmp_path: Path) -> None:
    make_split("cifar100", "train")
    folder = (tmp_path / "data" / "cifar100").rename(tmp_path / "mine")
    with pytest.raises(DataError, match="100 classes where 10 belong"):
        load("cifar10", root=folder)


def test_a_file_without_the_columns_is_an_error(tmp_path: Path) -> None:
    path = one_train_file(tmp_path)
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"text": ["hello"]}), path)
    with pytest.raises(DataError, match=r"image column .* but has text"):
        load("cifar10")


def test_a_broken_parquet_file_is_named(make_split, tmp_path: Path) -> None:
    make_split("cifar10", "train")
    path = one_train_file(tmp_path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="not a readable Parquet file"):
        load("cifar10")


def test_an_empty_parquet_file_is_an_error(write_parquet, tmp_path: Path) -> None:
    write_parquet(one_train_file(tmp_path), "cifar10", [], [])
    with pytest.raises(DataError, match="hold no images"):
        load("cifar10")


def test_the_folder_of_one_set_does_not_pass_for_another(make_split, tmp_path: Path) -> None:
    for split in ("train", "test"):
        make_split("cifar10", split)
    folder = tmp_path / "data" / "cifar10"
    assert load("cifar10", folder).name == "cifar10"
    with pytest.raises(DataError, match="no train files of svhn"):
        load("svhn", folder)
