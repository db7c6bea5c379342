"""Digits, folders of images, and names."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtiny.data import DIGITS, load, names
from fedtiny.errors import DataError


def test_digits_are_scikit_learns() -> None:
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    with np.load(DIGITS) as file:
        ours = dict(file)
    assert set(ours) == {"images", "labels"}
    assert {array.dtype for array in ours.values()} == {np.dtype(np.uint8)}
    assert np.array_equal(ours["images"], theirs.images)
    assert np.array_equal(ours["labels"], theirs.target)


def test_digits_are_what_they_were_when_scikit_learn_brought_them() -> None:
    data = load("digits")
    assert data.shape == (1, 8, 8)
    assert data.classes == tuple("0123456789")
    assert (len(data.train), len(data.test)) == (1438, 359)
    assert (data.flips, data.crop_padding) == (False, 0)
    digest = hashlib.sha256()
    for part in (data.train, data.test):
        assert (part.images.dtype, part.labels.dtype) == (np.uint8, np.int64)
        digest.update(part.images.tobytes() + part.labels.tobytes())
    assert digest.hexdigest() == "36cd28426672873af408e196df3537a75c8d51c0a12b8072032e3fadc72c76c1"


def test_digits_need_no_scikit_learn() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None; from fedtiny.data import load; "
        "print(load('digits').train.images.sum(), sorted(m for m in sys.modules if 'PIL' in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(load("digits").train.images.sum()), "[]"]


def test_every_digit_is_held_out_alike_and_always_the_same() -> None:
    first, second = load("digits"), load("digits")
    assert np.array_equal(first.test.images, second.test.images)
    counts = np.bincount(first.test.labels) / np.bincount(first.train.labels)
    assert np.allclose(counts, 0.25, atol=0.01)


def test_digits_become_32x32_for_models_that_need_it() -> None:
    data = load("digits").resized(32)
    assert data.shape == (1, 32, 32)
    assert data.crop_padding == 0


def test_names_are_described_and_an_unknown_one_gets_a_guess() -> None:
    assert list(names()) == ["digits", "cifar10", "cifar100", "cinic10", "svhn"]
    assert all(names().values())
    with pytest.raises(DataError, match=r"cifar10, .*folder, file; did you mean 'cifar10'\?"):
        load("cifar-10")
    with pytest.raises(DataError, match=r"folder, file$"):
        load("qqqq")


def save(path: Path, colour: int, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (colour,) * 3 if mode == "RGB" else colour).save(path)


def test_a_folder_with_train_and_test(tmp_path: Path) -> None:
    save(tmp_path / "train" / "dog" / "b.png", 10)
    save(tmp_path / "train" / "cat" / "deep" / "a.PNG", 20)
    save(tmp_path / "train" / "cat" / "grey.png", 30, mode="L")
    save(tmp_path / "test" / "dog" / "c.bmp", 40)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".hidden").mkdir()
    data = load("folder", root=tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.shape == (3, 4, 6)
    assert data.train.images[:, 1, 0, 0].tolist() == [20, 30, 10]
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.test.labels.tolist() == [1]
    assert data.mean == pytest.approx((20 / 255,) * 3)


def test_a_folder_of_classes_is_split_80_to_20(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for index in range(10):
            save(tmp_path / name / f"{index}.png", index)
    data = load("folder", root=tmp_path)
    assert np.bincount(data.train.labels).tolist() == [8, 8]
    assert np.bincount(data.test.labels).tolist() == [2, 2]
    both = [*data.train.images[:, 0, 0, 0], *data.test.images[:, 0, 0, 0]]
    assert sorted(both) == sorted([*range(10), *range(10)])
    assert np.array_equal(load("folder", root=tmp_path).test.images, data.test.images)


def test_a_changed_folder_is_decoded_again(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save(tmp_path / split / "cat" / "a.png", 1)
    load("folder", root=tmp_path)
    save(tmp_path / "train" / "cat" / "a.png", 2)
    assert load("folder", root=tmp_path).train.images.max() == 2


def only_train(root: Path) -> None:
    save(root / "train" / "cat" / "a.png", 1)


def unknown_test_class(root: Path) -> None:
    save(root / "train" / "cat" / "a.png", 1)
    save(root / "test" / "owl" / "a.png", 1)


def no_images(root: Path) -> None:
    (root / "cat").mkdir(parents=True)


def one_image(root: Path) -> None:
    save(root / "cat" / "a.png", 1)


def mixed_sizes(root: Path) -> None:
    save(root / "train" / "cat" / "a.png", 1)
    save(root / "train" / "cat" / "b.png", 1, size=(5, 5))
    save(root / "test" / "cat" / "a.png", 1)


def broken_image(root: Path) -> None:
    save(root / "train" / "cat" / "a.png", 1)
    save(root / "test" / "cat" / "a.png", 1)
    (root / "train" / "cat" / "a.png").write_bytes(b"no image")


def deep_image(root: Path) -> None:
    save(root / "test" / "cat" / "a.png", 1)
    save(root / "train" / "cat" / "a.png", 1000, mode="I;16")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda root: None, "no folder"),
        (only_train, "both train/ and test/"),
        (unknown_test_class, "class 'owl'"),
        (no_images, "holds no images"),
        (one_image, "2 images or more"),
        (mixed_sizes, r"b\.png is 5x5"),
        (broken_image, r"a\.png cannot be decoded"),
        (deep_image, "more than 8 bits"),
    ],
)
def test_a_folder_that_does_not_serve_is_refused(make, complaint: str, tmp_path: Path) -> None:
    make(tmp_path / "images")
    with pytest.raises(DataError, match=complaint):
        load("folder", root=tmp_path / "images")


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ("torch", "pyarrow", "PIL", "sklearn", "huggingface_hub", "rich")
    code = f"import sys, fedtiny.data.hub; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
