"""The sum is exact over survivors, whoever drops out when, or there is none."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedtiny.errors import SecureAggregationError
from fedtiny.privacy.secagg import shamir
from fedtiny.privacy.secagg.ciphers import Cryptography, ExchangeKey, KeyStream
from fedtiny.privacy.secagg.graph import draw, threshold
from fedtiny.privacy.secagg.held_vectors import HeldVectors
from fedtiny.privacy.secagg.server import SecureSum

from .parties import Fleet, drawn_vectors, refusal, true_sum


@pytest.mark.parametrize(("count", "neighbors"), [(3, 40), (5, 40), (10, 40), (14, 6)])
def test_without_dropouts_the_sum_is_exact(count, neighbors):
    vectors = drawn_vectors(count)
    fleet = Fleet(count, neighbors)
    for number in (1, 2):
        total, survivors = fleet.sum(number, vectors)
        assert survivors == tuple(range(count))
        assert np.array_equal(total, true_sum(vectors, survivors))


def test_two_of_ten_may_drop_out_before_the_masked_stage():
    fleet, vectors = Fleet(10), drawn_vectors(10)
    total, survivors = fleet.sum(1, vectors, dropped=(0, 7))
    assert survivors == (1, 2, 3, 4, 5, 6, 8, 9)
    assert np.array_equal(total, true_sum(vectors, survivors))


def test_two_of_ten_may_drop_out_before_unmasking_and_still_count():
    fleet, vectors = Fleet(10), drawn_vectors(10)
    fleet.silent_at = {"shares": (2, 3)}
    total, survivors = fleet.sum(1, vectors)
    assert survivors == tuple(range(10))
    assert np.array_equal(total, true_sum(vectors, survivors))


def test_who_drops_out_while_seeds_are_told_does_not_count():
    fleet, vectors = Fleet(10), drawn_vectors(10)
    fleet.silent_at = {"seeds": (4,), "shares": (4,)}
    total, survivors = fleet.sum(1, vectors, dropped=(9,))
    assert survivors == (0, 1, 2, 3, 5, 6, 7, 8)
    assert np.array_equal(total, true_sum(vectors, survivors))


@pytest.mark.parametrize("count", [5, 8])
def test_never_a_wrong_sum(count):
    """Every pair of devices drops out at every pair of stages: exact, or refused."""
    fleet, vectors, number = Fleet(count), drawn_vectors(count), 0
    exact = refused = 0
    for first, second in itertools.combinations(range(count), 2):
        for stages in itertools.product(("masked", "seeds", "shares"), repeat=2):
            number += 1
            lost = {"masked": set(), "seeds": set(), "shares": set()}
            for device, stage in zip((first, second), stages, strict=True):
                lost[stage].add(device)
            fleet.silent_at = {"seeds": lost["seeds"], "shares": lost["seeds"] | lost["shares"]}
            try:
                total, survivors = fleet.sum(number, vectors, lost["masked"])
            except SecureAggregationError:
                refused += 1
                continue
            exact += 1
            assert np.array_equal(total, true_sum(vectors, survivors))
    pairs = 9 * count * (count - 1) // 2
    assert (exact, refused) == ((0, pairs) if count == 5 else (pairs, 0))


def test_with_neighbors_many_may_drop_out():
    fleet, vectors = Fleet(60, neighbors=20), drawn_vectors(60, size=20)
    fleet.silent_at = {"seeds": (5, 6), "shares": (5, 6, 11)}
    total, survivors = fleet.sum(1, vectors, dropped=(0, 30))
    assert set(range(60)) - set(survivors) <= {0, 30, 5, 6}
    assert np.array_equal(total, true_sum(vectors, survivors))


def test_below_the_threshold_the_sum_is_refused():
    fleet, vectors = Fleet(10), drawn_vectors(10)
    said = refusal(lambda: fleet.sum(1, vectors, dropped=(0, 1, 2, 3)))
    assert said == "5 of the neighbors of device 4 are left, and 7 are needed: there is no sum"
    fleet.silent_at = {"shares": (0, 1, 2, 3)}
    said = refusal(lambda: fleet.sum(2, vectors))
    assert "shares of the seed of device" in said
    said = refusal(lambda: fleet.sum(3, vectors, dropped=range(10)))
    assert said == "no device has sent a vector: there is no sum"


def test_a_wrong_share_is_found():
    fleet, vectors = Fleet(4), drawn_vectors(4)
    honest = fleet.shares

    def lying(asked):
        answers = honest(asked)
        answers[1].entries[0] = bytes(32)
        return answers

    fleet.shares = lying
    said = refusal(lambda: fleet.sum(1, vectors))
    assert said == "a share of the seed of device 0 is wrong: there is no sum"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"number": 2}, "a masked vector is of another exchange"),
        ({"device": 77}, "a masked vector is of another exchange"),
        ({"body": b"short"}, "the vector of device 1 has another length"),
        ({"entries": {}}, "device 1 has not sent a share to each neighbor"),
        ({"entries": dict.fromkeys((0, 2, 3), b"x")}, "has not sent a share to each neighbor"),
    ],
)
def test_a_server_refuses_what_is_no_masked_vector(changes, said):
    fleet, vectors = Fleet(4), drawn_vectors(4)
    terms = fleet.terms(1)
    total = SecureSum(terms, 50, fleet.ciphers)
    honest = fleet.devices[1].masked(terms, vectors[1], 1, terms.request)
    assert said in refusal(lambda: total.add(replace(honest, **changes)))
    total.add(honest)
    assert refusal(lambda: total.add(honest)) == "device 1 has sent its vector before"


def test_vectors_beyond_a_limit_wait_in_a_file():
    held, vectors = HeldVectors(in_memory=250), drawn_vectors(5)
    for device, own in enumerate(vectors):
        held.add(device, own.tobytes())
    held.remove(3)
    assert list(held) == [0, 1, 2, 4]
    assert all(np.array_equal(held[device], vectors[device]) for device in held)
    held.close()


def test_without_cryptography_the_sum_is_the_same():
    vectors = drawn_vectors(12)
    sums = []
    for real in (True, False):
        fleet = Fleet(12, real=real)
        fleet.silent_at = {"seeds": (3,), "shares": (3, 5)}
        sums.append(fleet.sum(1, vectors, dropped=(9,)))
    (total, survivors), (plain, same) = sums
    assert survivors == same
    assert np.array_equal(total, plain)


def test_shamir_needs_the_threshold():
    secret = shamir.new_secret()
    shares = shamir.split(secret, range(7), threshold=4)
    for holders in itertools.combinations(range(7), 4):
        assert shamir.join({holder: shares[holder] for holder in holders}) == secret
    for holders in itertools.combinations(range(7), 3):
        assert shamir.join({holder: shares[holder] for holder in holders}) != secret


def test_a_share_of_fewer_says_nothing():
    """With one share less, every secret is possible: there is a polynomial for each."""
    shares = shamir.split(5, (0, 1), threshold=2)
    for secret in (0, 1, 5, shamir.PRIME - 1):
        slope = (shares[0] - secret) % shamir.PRIME
        other = (secret + 2 * slope) % shamir.PRIME
        assert shamir.join({0: shares[0], 1: other}) == secret


@pytest.mark.parametrize(("count", "neighbors"), [(50, 10), (101, 40), (1000, 40)])
def test_a_drawn_graph_joins_all_evenly(count, neighbors):
    devices = tuple(range(100, 100 + count))
    graph = draw(devices, neighbors, b"seed")
    assert set(graph) == set(devices)
    assert all(len(set(own)) == neighbors and device not in own for device, own in graph.items())
    assert all(device in graph[peer] for device, own in graph.items() for peer in own)
    reached, waiting = {100}, [100]
    while waiting:
        new = set(graph[waiting.pop()]) - reached
        reached |= new
        waiting += new
    assert reached == set(devices)
    assert graph != draw(devices, neighbors, b"other")


def test_a_threshold_is_more_than_half():
    assert all(2 * threshold(count, 0.5) > count for count in range(2, 100))


def test_two_devices_derive_the_same_keys_by_hkdf():
    real, (one, other) = Cryptography(), (ExchangeKey(), ExchangeKey())
    found = real.derived(one.secret_with(other.public), b"about")
    assert found == real.derived(other.secret_with(one.public), b"about")
    private = X25519PrivateKey.from_private_bytes(one.private)
    agreed = private.exchange(X25519PublicKey.from_public_bytes(other.public))
    kdf = HKDF(algorithm=SHA512(), length=64, salt=None, info=b"about")
    assert b"".join(found) == kdf.derive(agreed)
    assert [*map(len, found)] == [32, 32]


def test_a_key_stream_is_chacha20():
    """The first block of a zero key and nonce (RFC 8439, appendix A.1)."""
    assert KeyStream(bytes(32)).take(3).tobytes().hex() == "76b8e0ada0f13d90405d6ae5"
