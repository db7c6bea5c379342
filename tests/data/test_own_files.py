"""Data sets out of a file: arrays, tables and images, with who has which sample."""

import csv
import io
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedtiny.data import Columns, load, npz
from fedtiny.errors import DataError

from .tiny_parquet import ENCODED_IMAGE, png, random_images

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(40, 3, 7)), np.arange(40) % 4
USERS = np.arange(40) % 5


@pytest.fixture(autouse=True)
def _cached_here(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTINY_CACHE", str(tmp_path / "cache"))


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


def table(path, rows, header=("a", "b", "user", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


ROWS = [(i / 7, -i, f"u{i % 3}", ("walk", "run")[i % 2]) for i in range(30)]


def test_arrays_may_declare_their_layout_classes_and_devices(tmp_path):
    names = ["a", "b", "c", "d"]
    parts = {"x_train": X, "y_train": Y, "x_test": X[:8], "y_test": Y[:8]}
    path = write(tmp_path / "own.npz", **parts, layout="NCT", classes=names, device_ids=USERS)
    data = load("file", path)
    assert (data.name, data.input_shape, data.classes) == ("own", (3, 7), tuple(names))
    assert (len(data.train), len(data.test), len(data.partition)) == (40, 8, 5)


def test_of_arrays_without_a_test_set_a_fifth_is_held_out_with_its_owners(tmp_path):
    path = write(tmp_path / "own.npz", x=X, y=Y, device_ids=USERS)
    data = load("file", path, layout="NCT")
    assert (len(data.train), len(data.test)) == (32, 8)
    assert np.bincount(data.test.labels).tolist() == [2, 2, 2, 2]
    owner = {X[i].astype(np.float32).tobytes(): USERS[i] for i in range(40)}
    for user, device in enumerate(data.partition.devices):
        assert {owner[data.train.images[i].tobytes()] for i in device} == {user}


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"x": X, "y": Y}, "--data.layout for a file"),
        ({"x": X}, "needs the arrays x_train, y_train, x_test, y_test, or x and y, but has x"),
        ({"x": X, "y": Y, "layout": "NCT", "device_ids": [1]}, r"shape \[1\], labels \[40\]"),
        ({"x": X, "y": Y / 2, "layout": "NCT"}, "regression targets are not supported"),
        ({"x": X, "y": np.eye(40), "layout": "NCT"}, "multi-label targets are not supported"),
        ({"x": X, "y": np.arange(40), "layout": "NCT"}, "regression targets are not supported"),
        ({"x": X, "y": Y[:, None], "layout": "NCT"}, r"give labels\.ravel\(\)"),
        ({"x": X, "y": Y, "layout": "NTX"}, "which is none of NCHW, NHWC, NHW, NCT, NTC, NF"),
        ({"x": X[1:], "y": Y, "layout": "NCT"}, "as many labels in y as samples in x"),
        ({"x": np.array(1), "y": np.array(1)}, "as many labels in y as samples in x"),
        ({"x": X, "y": Y * 10**15, "layout": "NCT"}, "labels go up to .* 100,000 at most"),
        ({"x": X * 1e300, "y": Y, "layout": "NCT"}, r"numbers below 1e\+18; scale them"),
        ({"x": X, "y": Y, "layout": "NCT", "classes": np.array(3)}, "labels must be from 0 to 0"),
    ],
)
def test_arrays_that_do_not_say_enough_are_refused(tmp_path, arrays, complaint):
    with pytest.raises(DataError, match=complaint):
        load("file", write(tmp_path / "own.npz", **arrays))


def test_an_archive_that_cannot_be_opened_is_refused(tmp_path):
    """Zip files may be encrypted, or packed in a way that nobody knows."""
    path = write(tmp_path / "own.npz", x=X, y=Y)
    whole = path.read_bytes()
    for change in ({6: 1, 8: 1}, {8: 99, 10: 99}):  # flags, method
        data = bytearray(whole)
        for mark, offset in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 1)):
            place = data.find(mark)
            where, value = list(change.items())[offset]
            data[place + where] = value
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"is not a readable \.npz file"):
            load("file", path)


def forged(path, **headers):
    """An .npz file whose arrays have such headers, over four bytes each."""
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, (shape, kind) in headers.items():
            member = io.BytesIO()
            told = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(member, told)
            archive.writestr(f"{name}.npy", member.getvalue() + bytes(4))
    return path


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((10**12,), "|u1"), ((1 << 40, 1 << 40), "<f4"), ((10**12,), "<U0"), ((-1, 4), "|u1")],
)
def test_arrays_that_claim_more_than_there_is_are_refused(tmp_path, shape, kind):
    path = forged(tmp_path / "own.npz", x=(shape, kind), y=((4,), "|u1"))
    with pytest.raises(DataError, match=r"is not a readable \.npz file"):
        load("file", path)


@pytest.mark.parametrize("free", [10**8, None])
def test_arrays_that_expand_beyond_memory_are_refused(tmp_path, monkeypatch, free):
    """A small file with 400 MB of zeros."""
    path = tmp_path / "own.npz"
    with (
        ZipFile(path, "w", ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as member,
    ):
        for _ in range(24):
            member.write(bytes(1 << 24))
    assert path.stat().st_size < 1 << 22
    monkeypatch.setattr(npz, "free_memory", lambda: free)
    monkeypatch.setattr(npz, "MAX_ARRAYS", 10**8)
    with pytest.raises(DataError, match=r"no memory for the 402,\d+,\d+ bytes of the arrays in"):
        load("file", path)


def test_names_of_classes_do_nothing_to_a_terminal(tmp_path):
    rows = [(i, i, "u", "a\x1b[2J" if i % 2 else "b") for i in range(30)]
    data = load("file", table(tmp_path / "own.csv", rows), columns=Columns(device="user"))
    assert data.classes == ("a?[2J", "b")
    names = np.array(["a\n", "b", "c", "d"])
    path = write(tmp_path / "own.npz", x=X, y=Y, layout="NCT", classes=names)
    assert load("file", path).classes == ("a?", "b", "c", "d")


def test_a_table_has_features_classes_and_users(tmp_path):
    path = table(tmp_path / "own.csv", ROWS)
    data = load("file", path, columns=Columns(device="user"))
    assert (data.layout, data.input_shape, data.classes) == ("NF", (2,), ("run", "walk"))
    assert (len(data.train), len(data.test), len(data.partition)) == (24, 6, 3)
    row = np.array(ROWS[0][:2], np.float32)
    assert any((image[:, 0, 0] == row).all() for image in data.train.images) or any(
        (image[:, 0, 0] == row).all() for image in data.test.images
    )


def test_numbered_classes_go_by_their_value_and_a_folder_has_train_and_test(tmp_path):
    header = ("x", "kind")
    table(tmp_path / "train.csv", [(i, 10 + i % 3) for i in range(9)], header)
    table(tmp_path / "test.csv", [(i, "9.0") for i in range(2)], header)
    data = load("file", tmp_path, columns=Columns(label="kind"))
    assert data.classes == ("9", "10", "11", "12")
    assert data.train.labels.tolist() == [1, 2, 3] * 3
    assert data.test.labels.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("rows", "columns", "complaint"),
    [
        (ROWS, Columns(label="kind"), r"no column 'kind' .*--data\.label-column"),
        (ROWS, Columns(device="who"), r"no column 'who' .*--data\.device-column"),
        (ROWS, None, "column 'user' of .* holds 'u0', which is no number, in row 1"),
        ([(1, 2, 3, 0), (1, " ", 3, 1)], None, "column '.*' of .* holds nothing, in row 2"),
        ([(1, 2, 3, 0.5)], None, r"holds 0\.5: regression targets are not supported"),
        ([(1, 2, 3)], None, "row 1 of .* has 3 values, its header 4"),
        ([], None, "rows below it"),
    ],
)
def test_a_table_that_does_not_serve_is_refused(tmp_path, rows, columns, complaint):
    with pytest.raises(DataError, match=complaint):
        load("file", table(tmp_path / "own.csv", rows), columns=columns)


def test_parquet_may_hold_a_table(tmp_path):
    columns = {name: [row[i] for row in ROWS] for i, name in enumerate(("a", "b", "user", "label"))}
    pq.write_table(pa.table(columns), tmp_path / "own.parquet")
    found = load("file", tmp_path / "own.parquet", columns=Columns(device="user"))
    same = load("file", table(tmp_path / "own.csv", ROWS), columns=Columns(device="user"))
    np.testing.assert_allclose(found.train.images, same.train.images, rtol=1e-6)
    assert found.classes == same.classes
    assert [d.tolist() for d in found.partition.devices] == [
        d.tolist() for d in same.partition.devices
    ]


def test_parquet_may_hold_images_with_writers(tmp_path):
    images = random_images(12, size=8)
    structs = [{"bytes": png(image), "path": "x.png"} for image in images]
    columns = {
        "image": pa.array(structs, ENCODED_IMAGE),
        "writer": pa.array([f"w{i % 2}" for i in range(12)]),
        "character": pa.array([i % 3 for i in range(12)]),
    }
    pq.write_table(pa.table(columns), tmp_path / "own.parquet")
    named = Columns(label="character", device="writer")
    data = load("file", tmp_path / "own.parquet", columns=named)
    assert (data.layout, data.shape, data.classes) == ("NCHW", (3, 8, 8), ("0", "1", "2"))
    assert data.crop_padding == 1
    writer = {image.tobytes(): i % 2 for i, image in enumerate(images)}
    for number, device in enumerate(data.partition.devices):
        assert {writer[data.train.images[i].tobytes()] for i in device} == {number}


def test_what_is_for_a_file_is_refused_elsewhere(tmp_path):
    with pytest.raises(DataError, match=r"are for --data\.name file, not for 'digits'"):
        load("digits", layout="NCT")
    with pytest.raises(DataError, match=r"no \.npz, \.csv or \.parquet file"):
        load("file", tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        load("file", tmp_path / "bad.npz")
    with pytest.raises(DataError, match="array device_ids"):
        load("file", write(tmp_path / "x.npz", x=X, y=Y), columns=Columns(device="user"))


def test_a_flag_does_not_overrule_what_a_file_declares(tmp_path):
    path = write(tmp_path / "own.npz", x=X, y=Y, layout="NCT")
    with pytest.raises(DataError, match=r"declares the layout NCT, and --data\.layout NTC"):
        load("file", path, layout="NTC")
    assert load("file", path, layout="NCT").layout == "NCT"
