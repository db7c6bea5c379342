"""Work on large arrays: every value once, whatever the number of threads."""

import threading

import numpy as np
import pytest

from fedtiny.sparse import pieces
from fedtiny.sparse.mean import WeightedMean
from fedtiny.sparse.middle import Middle, median


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    monkeypatch.setattr(pieces, "THREADS", request.param)
    monkeypatch.setattr(pieces, "PIECE", 7)
    monkeypatch.setattr(pieces, "LARGE", 50)
    return request.param


@pytest.mark.parametrize("size", [0, 1, 7, 49, 50, 1000])
def test_every_value_is_worked_on_once(threads, size):
    done = np.zeros(size, dtype=np.int64)

    def count(piece):
        done[piece] += 1

    pieces.in_pieces(size, count)
    assert (done == 1).all()


def test_only_large_arrays_are_given_to_threads(threads):
    workers = set()
    for size in (49, 5000):
        pieces.in_pieces(size, lambda _: workers.add(threading.current_thread().name))
        assert (workers == {threading.current_thread().name}) == (size == 49 or threads == 1)


def test_what_goes_wrong_in_a_piece_comes_out(threads):
    with pytest.raises(ZeroDivisionError):
        pieces.in_pieces(1000, lambda piece: 1 // (piece.start - 70))


@pytest.mark.parametrize("kind", [WeightedMean, lambda: Middle(median)])
def test_a_mean_has_the_same_bits_with_any_number_of_threads(threads, monkeypatch, kind):
    draw = np.random.default_rng(0)
    replies = [draw.normal(size=(40, 50)).astype(np.float32) for _ in range(3)]

    def found():
        mean = kind()
        for weight, reply in enumerate(replies, start=1):
            mean.add({"x": reply}, weight)
        return mean.dense()["x"].tobytes()

    ours = found()
    monkeypatch.setattr(pieces, "LARGE", 1 << 20)
    assert ours == found()
