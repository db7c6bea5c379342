"""All that a server receives in many rounds, and what it can make of it."""

import numpy as np
import pytest

from fedtiny.privacy.secagg import shamir
from fedtiny.privacy.secagg.ciphers import KEY_BYTES
from fedtiny.privacy.secagg.device import own_seed, sent_by, sign
from fedtiny.privacy.secagg.server import COMMITMENT_BYTES
from fedtiny.privacy.secagg.terms import MASKED, SEEDS, SHARES, Message

from .parties import Fleet

COUNT, SIZE, ROUNDS = 6, 1500, 60
DEVIATIONS = 6  # keys are new in every test run: one in a billion is as far out


class Recorded:
    """Rounds of the same updates, in each of which one device is too late; and every message.

    Its vector arrives too, after the others told the seeds of their masks with it.
    """

    def __init__(self):
        self.fleet = Fleet(COUNT)
        ramps = np.arange(SIZE, dtype=np.uint32)[:, None] * (1000 + 100 * np.arange(COUNT))
        self.updates = list(ramps.T.astype(np.uint32))
        self.terms, self.masked, self.seeds, self.shares, self.late = {}, {}, {}, {}, {}
        self.bytes = bytearray()
        for number in range(1, ROUNDS + 1):
            self.play(number, number % COUNT)

    def play(self, number, late):
        fleet = self.fleet
        fleet.seen.clear()
        self.terms[number], self.late[number] = fleet.terms(number), late
        fleet.sum(number, self.updates, dropped=(late,))
        own = fleet.devices[late].masked(
            self.terms[number], self.updates[late], number, self.terms[number].request
        )
        fleet.through(own)
        for data in fleet.seen:
            for kind, held in ((MASKED, self.masked), (SEEDS, self.seeds), (SHARES, self.shares)):
                if data[0] == kind:
                    message = Message.from_bytes(data, kind)
                    held[number, message.device] = message
                    entries = message.entries.values()
                    self.bytes += b"".join(bytes(own)[: KEY_BYTES - 1] for own in entries)

    def words(self, number, device):
        body = self.masked[number, device].body[COMMITMENT_BYTES:]
        return np.frombuffer(body, np.uint32).copy()

    def without_own_mask(self, number, device):
        """A survivor's vector as the server sees it once it has joined the shares of its seed."""
        needed = self.terms[number].needed
        told = {
            peer: shamir.from_bytes(message.entries[device])
            for (round, peer), message in self.shares.items()
            if round == number and device in message.entries
        }
        secret = self.fleet.ciphers.joined(dict(sorted(told.items())[:needed]))
        found = self.words(number, device)
        seed = own_seed(self.fleet.ciphers, self.terms[number], secret)
        self.fleet.ciphers.add_stream(found, seed, -1)
        return found

    def told_about(self, number):
        """By peer, the seed of its mask with the late device of a round."""
        late = self.late[number]
        return {
            peer: bytes(message.entries[late])
            for (round, peer), message in self.seeds.items()
            if round == number
        }

    def without(self, vector, device, seeds):
        """A vector of a device less the masks of these seeds, by peer."""
        found = vector.copy()
        for peer, seed in seeds.items():
            self.fleet.ciphers.add_stream(found, seed, -sign(device, peer))
        return found


@pytest.fixture(scope="module")
def recorded():
    return Recorded()


def correlation(one, other):
    return float(np.corrcoef(one.astype(np.float64), other.astype(np.float64))[0, 1])


def assert_unrelated(vectors, update):
    """Neither one of the vectors nor their mean correlates with an update."""
    found = np.array([correlation(own, update) for own in vectors])
    assert np.abs(found).max() < DEVIATIONS / np.sqrt(SIZE)
    assert abs(found.mean()) < DEVIATIONS / np.sqrt(SIZE * len(found))
    mean = np.mean([own.astype(np.float64) for own in vectors], axis=0)
    assert abs(correlation(mean, update)) < DEVIATIONS / np.sqrt(SIZE)


@pytest.mark.parametrize("device", range(COUNT))
def test_no_masked_vector_correlates_with_an_update(recorded, device):
    """Nor the mean of all rounds, in which an update stays and masks do not."""
    for other in range(COUNT):
        vectors = [recorded.words(number, device) for number in range(1, ROUNDS + 1)]
        assert_unrelated(vectors, recorded.updates[other])


@pytest.mark.parametrize("device", range(COUNT))
def test_without_its_own_mask_a_vector_is_still_hidden(recorded, device):
    """The server knows the own masks of survivors: those that devices share are left."""
    lived = [number for number, late in recorded.late.items() if late != device]
    vectors = [recorded.without_own_mask(number, device) for number in lived]
    assert_unrelated(vectors, recorded.updates[device])


def test_a_vector_that_comes_too_late_is_hidden_by_its_own_mask(recorded):
    """The server knows the masks that it shares with all others: its own is left."""
    for device in range(COUNT):
        rounds = [number for number, late in recorded.late.items() if late == device]
        vectors = [
            recorded.without(recorded.words(number, device), device, recorded.told_about(number))
            for number in rounds
        ]
        assert all(len(recorded.told_about(number)) == COUNT - 1 for number in rounds)
        assert_unrelated(vectors, recorded.updates[device])


def test_seeds_of_one_round_unmask_no_other(recorded):
    """Of a device that was late in some rounds: all seeds told about it, against all rounds."""
    device = 3
    late = [number for number, own in recorded.late.items() if own == device]
    lived = [number for number in recorded.late if number not in late]
    update = recorded.updates[device]
    for number in lived:
        open_vector = recorded.without_own_mask(number, device)
        tried = [
            recorded.without(open_vector, device, recorded.told_about(other)) for other in late
        ]
        assert_unrelated(tried, update)
        assert not any(np.array_equal(own, update) for own in tried)
    seeds = [seed for number in recorded.late for seed in recorded.told_about(number).values()]
    assert len(set(seeds)) == len(seeds) == ROUNDS * (COUNT - 1)


def test_seeds_of_the_same_round_would_unmask_it(recorded):
    """So that the tests above could fail: devices that told all would give an update away."""
    fleet, number, device = Fleet(COUNT), 1, 3
    terms = fleet.terms(number)
    message = fleet.devices[device].masked(terms, recorded.updates[device], number, terms.request)
    exchange = fleet.devices[device]._open
    found = np.frombuffer(message.body[COMMITMENT_BYTES:], np.uint32).copy()
    for peer in terms.graph[device]:
        seed = fleet.devices[device]._keys(exchange, peer)[0]
        fleet.ciphers.add_stream(found, seed, -sign(device, peer))
    secret = {
        peer: shamir.from_bytes(
            fleet.ciphers.decrypted(
                fleet.devices[device]._keys(exchange, peer)[1],
                entry,
                sent_by(device, terms),
            )
        )
        for peer, entry in message.entries.items()
    }
    joined = fleet.ciphers.joined(dict(sorted(secret.items())[: terms.needed]))
    fleet.ciphers.add_stream(found, own_seed(fleet.ciphers, terms, joined), -1)
    assert np.array_equal(found, recorded.updates[device])


def test_keys_shares_and_seeds_look_random(recorded):
    """Every byte value is as frequent in all entries of all messages (chi-square).

    The last byte of a share is left out: shares are below 2^255.
    """
    counts = np.bincount(np.frombuffer(bytes(recorded.bytes), np.uint8), minlength=256)
    expected = counts.sum() / 256
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert expected > 300
    assert statistic < 255 + 8 * np.sqrt(2 * 255)
