"""The models of benchmarks/models, trained on CIFAR-10: small, exact and within their limits."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedtiny import data
from fedtiny.errors import FedTinyError
from fedtiny.export.calibration import MAX_MEASURED
from fedtiny.export.packed import shipped

from .test_board import board, needs_board

FILES = sorted(board.MODELS.glob("*.packed"))
MOST_BYTES, MOST_LOST = 300_000, 0.005
SPARSE = "resnet18"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_files_are_small_and_integers_cost_little(file):
    card = shipped(file).card
    assert file.stat().st_size < MOST_BYTES
    assert card["data"] == "cifar10"
    assert card["float_accuracy"] - card["accuracy"] <= MOST_LOST


def test_both_networks_are_there():
    assert {shipped(file).card["model"] for file in FILES} == {"resnet18", "resnet8"}


@needs_board
@pytest.mark.slow
def test_resnet18_keeps_within_its_limits_on_a_board(monkeypatch, tmp_path):
    monkeypatch.setattr(board, "BOARDS", board.BOARDS[:1])
    subject = board.trained(SPARSE, None)
    rows = [*board.measure(SPARSE, subject.integers, subject.test.images[:2], tmp_path)]
    assert [row.level for row in rows] == ["-O2", "-O3"]
    assert [(row.agrees, row.excess) for row in rows] == [(True, [])] * 2
    assert rows[0].ram < 50_000
    assert replace(rows[0], instructions=30_000_001).excess == ["instructions"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_accuracy_on_test_images_is_that_of_the_card(tmp_path):
    """The card has that of NumPy."""
    try:
        test = data.load("cifar10").test
    except FedTinyError:
        pytest.skip("needs CIFAR-10 below FEDTINY_DATA")
    chosen = test.subset(np.linspace(0, len(test) - 1, MAX_MEASURED).astype(np.int64))
    subject = replace(board.trained(SPARSE, None), test=chosen, is_real=True)
    assert board.accuracy(subject, tmp_path) == subject.integers.card["accuracy"]
