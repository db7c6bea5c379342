"""Work on large arrays: every value once, whatever the number of threads."""

import threading

import numpy as np
import pytest

from fedtiny.sparse import mean as means
from fedtiny.sparse.robust_mean import RobustMean, WeightedMean, median


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    monkeypatch.setattr(means, "THREADS", request.param)
    monkeypatch.setattr(means, "CHUNK", 7)
    monkeypatch.setattr(means, "LARGE", 50)
    return request.param


@pytest.mark.parametrize("size", [0, 1, 7, 49, 50, 1000])
def test_every_value_is_worked_on_once(threads, size):
    done = np.zeros(size, dtype=np.int64)

    def count(piece):
        done[piece] += 1

    means.in_chunks(size, count)
    assert (done == 1).all()


def test_only_large_arrays_are_given_to_threads(threads):
    workers = set()
    for size in (49, 5000):
        means.in_chunks(size, lambda _: workers.add(threading.current_thread().name))
        assert (workers == {threading.current_thread().name}) == (size == 49 or threads == 1)


def test_what_goes_wrong_in_a_piece_comes_out(threads):
    with pytest.raises(ZeroDivisionError):
        means.in_chunks(1000, lambda piece: 1 // (piece.start - 70))


@pytest.mark.parametrize("kind", [WeightedMean, lambda: RobustMean(median)])
def test_a_mean_has_the_same_bits_with_any_number_of_threads(threads, monkeypatch, kind):
    draw = np.random.default_rng(0)
    replies = [draw.normal(size=(40, 50)).astype(np.float32) for _ in range(3)]

    def found():
        mean = kind()
        for weight, reply in enumerate(replies, start=1):
            mean.add({"x": reply}, weight)
        return mean.dense()["x"].tobytes()

    ours = found()
    monkeypatch.setattr(means, "LARGE", 1 << 20)
    assert ours == found()
