"""What an honest device refuses, and what a server can do with all that it sees."""

from dataclasses import replace

import numpy as np
import pytest

from fedtiny.privacy.secagg import ciphers
from fedtiny.privacy.secagg.device import SecureDevice, own_seed, statement
from fedtiny.privacy.secagg.graph import fewest_summed
from fedtiny.privacy.secagg.terms import KEYS, MASKED, Message, Terms

from .parties import RUN, Fleet, drawn_vectors, refusal, true_sum


@pytest.fixture
def fleet():
    return Fleet(10)


def opened(fleet, number=1):
    """Every device has sent its masked vector."""
    terms, vectors = fleet.terms(number), drawn_vectors(10)
    sent = {
        device: own.masked(terms, vectors[device], number, terms.request)
        for device, own in fleet.devices.items()
    }
    return terms, vectors, sent


def relayed(sent, device, peers):
    return {peer: sent[peer].entries[device] for peer in peers}


def test_a_forged_key_is_refused(fleet):
    mine = ciphers.ExchangeKey()
    forged = mine.public + ciphers.SigningKey().signed(statement(RUN, 3, mine.public))
    victim = fleet.devices[0]
    said = refusal(lambda: victim.meet(Message(KEYS, 0, 0, {3: forged})))
    assert said == "the key of device 3 is not signed by its node"


def test_a_key_of_another_run_is_refused():
    signers = {device: ciphers.SigningKey() for device in range(3)}
    fleet = Fleet(3)
    fleet.directory.update({device: own.public for device, own in signers.items()})
    key = ciphers.ExchangeKey().public
    old = key + signers[1].signed(statement(b"another run 1234", 1, key))
    said = refusal(lambda: fleet.devices[0].meet(Message(KEYS, 0, 0, {1: old})))
    assert said == "the key of device 1 is not signed by its node"


def test_a_key_handed_on_under_another_name_is_refused(fleet):
    key = fleet.devices[5].key().entries[5]
    said = refusal(lambda: fleet.devices[0].meet(Message(KEYS, 0, 0, {3: key})))
    assert said == "the key of device 3 is not signed by its node"


def test_a_copied_key_gives_no_mask_of_another_pair(fleet):
    """Device 2, in league with the server, shows the key of device 8 as its own.

    Else device 5 would add and take away one mask, and telling the seed of 2 would tell that of 8.
    """
    copied = fleet.devices[8].key().entries[8][: ciphers.KEY_BYTES]
    entry = copied + fleet.devices[2]._signer.signed(statement(RUN, 2, copied))
    fleet.devices[5].meet(Message(KEYS, 0, 5, {2: entry}))
    opened(fleet)
    (told,) = fleet.devices[5].seeds(1, [2]).entries.values()
    (other,) = fleet.devices[8].seeds(1, [5]).entries.values()
    assert told != other
    _, _, sent = opened(fleet, 2)
    misled = relayed(sent, 8, [0, 1, 2, 3, 4, 6, 7, 9]) | {5: sent[5].entries[2]}
    assert refusal(lambda: fleet.devices[8].shares(2, misled)) == "a share was changed on its way"


def test_an_invented_device_is_refused(fleet):
    key = fleet.devices[5].key().entries[5]
    said = refusal(lambda: fleet.devices[0].meet(Message(KEYS, 0, 0, {77: key})))
    assert said == "device 77 is not in the list of nodes"
    terms = fleet.terms(1, (0, 1, 2, 77))
    vector = drawn_vectors(1)[0]
    said = refusal(lambda: fleet.devices[0].masked(terms, vector, 1, terms.request))
    assert said == "device 77 is not in the list of nodes"


def test_the_seed_and_the_share_of_one_peer_are_never_told_both(fleet):
    _, _, sent = opened(fleet)
    victim = fleet.devices[0]
    victim.seeds(1, [4])
    every = list(range(1, 10))
    said = refusal(lambda: victim.shares(1, relayed(sent, 0, every)))
    assert said == "of device 4 the shared seed was told: its share is not told too"
    rest = [peer for peer in every if peer != 4]
    assert set(victim.shares(1, relayed(sent, 0, rest)).entries) == set(rest)
    for late in ([5], [4]):
        said = refusal(lambda late=late: victim.seeds(1, late))
        assert said == "this device is not in exchange 1, or is done"


def test_a_replayed_stage_is_refused(fleet):
    terms, vectors, sent = opened(fleet)
    victim = fleet.devices[0]
    said = refusal(lambda: victim.masked(terms, vectors[0], 1, terms.request))
    assert said == "exchange 1 is over: this device was in 1"
    victim.seeds(1, [4])
    assert refusal(lambda: victim.seeds(1, [4])).endswith("or were told before")
    peers = [1, 2, 3, 5, 6, 7, 8, 9]
    victim.shares(1, relayed(sent, 0, peers))
    said = refusal(lambda: victim.shares(1, relayed(sent, 0, peers)))
    assert said == "this device is not in exchange 1, or is done"


def test_a_share_that_is_sent_back_to_its_sender_is_refused(fleet):
    _, _, sent = opened(fleet)
    back = relayed(sent, 0, range(1, 10)) | {4: sent[0].entries[4]}
    assert refusal(lambda: fleet.devices[0].shares(1, back)) == "a share was changed on its way"


def test_the_same_request_is_answered_once(fleet):
    """Else two sums, with and without one device, would tell its vector."""
    terms, vectors, _ = opened(fleet)
    again = Terms(RUN, 2, 1, terms.request, tuple(range(9)), 40, terms.threshold, b"x")
    said = refusal(lambda: fleet.devices[0].masked(again, vectors[0], 1, terms.request))
    assert said == "this device has answered the same request before"


def test_no_mask_serves_twice_for_the_same_question(fleet):
    terms = fleet.terms(1)
    again = [terms, replace(terms, number=2), replace(terms, run=b"another run 1234")]
    assert len({own.question for own in again}) == 1
    assert len({own.digest for own in again}) == 3


def test_a_peer_with_a_new_key_ends_the_exchange_and_is_in_the_next(fleet):
    """Else seeds and shares of an exchange would be of other keys than its masks."""
    opened(fleet)
    anew = fleet.devices[4] = SecureDevice(
        *(4, RUN, fleet.devices[4]._signer, fleet.directory, fleet.ciphers),
        neighbors=40,
        threshold=fleet.threshold,
    )
    keys = {k: own.key().entries[k] for k, own in fleet.devices.items()}
    for own in fleet.devices.values():
        own.meet(Message(KEYS, 0, own.device, keys))
    said = refusal(lambda: fleet.devices[0].seeds(1, [4]))
    assert said == "this device is not in exchange 1, or is done"
    vectors = drawn_vectors(10)
    total, survivors = fleet.sum(2, vectors)
    assert anew.device in survivors
    assert np.array_equal(total, true_sum(vectors, survivors))


def test_a_wrong_round_is_refused(fleet):
    terms, vector = fleet.terms(1), drawn_vectors(1)[0]
    for round, request in ((2, terms.request), (1, terms.request + 1)):
        said = refusal(lambda told=(round, request): fleet.devices[0].masked(terms, vector, *told))
        assert said == "the terms are those of another run, round or request"
    opened(fleet, number=3)
    assert "not in exchange 2" in refusal(lambda: fleet.devices[0].seeds(2, [4]))
    assert "not in exchange 2" in refusal(lambda: fleet.devices[0].shares(2, {}))


@pytest.mark.parametrize(
    ("participants", "changes", "said"),
    [
        ((0, 1), {}, "2 devices take part, and a sum of fewer than 3 hides nobody"),
        ((0, 1, 1, 2), {}, "the participants are not in order, or one is there twice"),
        ((1, 2, 3), {}, "this device is not among the participants"),
        (None, {"neighbors": 1}, "1 neighbors with a threshold of 0.666667 do not hide"),
        (None, {"threshold": 0.3}, "40 neighbors with a threshold of 0.3 do not hide"),
        (None, {"neighbors": 4}, "are less than the 40 and 0.666667 that this device"),
        (None, {"threshold": 0.5}, "are less than the 40 and 0.666667 that this device"),
    ],
)
def test_terms_that_isolate_a_device_are_refused(fleet, participants, changes, said):
    terms, vector = fleet.terms(1, participants, **changes), drawn_vectors(1)[0]
    assert said in refusal(lambda: fleet.devices[0].masked(terms, vector, 1, terms.request))


def test_masks_cancel_only_among_devices_that_were_asked_the_same(fleet, monkeypatch):
    """A server that asks one device something else gets neither its share nor a sum with it."""
    owns, new_shares = {}, ciphers.Cryptography.new_shares

    def recorded(self, holders, threshold):
        secret, shares = new_shares(self, holders, threshold)
        owns[len(owns)] = secret
        return secret, shares

    monkeypatch.setattr(ciphers.Cryptography, "new_shares", recorded)
    vectors = drawn_vectors(10)
    for number, contexts in ((1, [b"a" * 32] * 10), (2, [b"b" * 32, *[b"a" * 32] * 9])):
        owns.clear()
        told = [fleet.terms(number, context=context) for context in contexts]
        total, sent = np.zeros(50, np.uint32), {}
        for k, own in fleet.devices.items():
            sent[k] = own.masked(told[k], vectors[k], number, told[k].request)
            total += np.frombuffer(sent[k].body[32:], np.uint32)
            fleet.ciphers.add_stream(total, own_seed(fleet.ciphers, told[k], owns[k]), -1)
        same = total == true_sum(vectors, range(10))
        assert same.all() if number == 1 else not same.any()
    assert len({own.digest for own in told}) == 2
    said = refusal(lambda: fleet.devices[5].shares(2, relayed(sent, 5, [0, 1, 2, 3, 4, 6, 7, 8])))
    assert said == "a share was changed on its way"


def test_a_device_takes_part_only_among_as_many_as_its_owner_wants(fleet):
    signer = ciphers.SigningKey()
    fleet.directory[0], vector = signer.public, drawn_vectors(1)[0]
    least = {"neighbors": 40, "threshold": fleet.threshold, "participants": 8}
    wary = SecureDevice(0, RUN, signer, fleet.directory, fleet.ciphers, **least)
    wary.meet(Message(KEYS, 0, 0, {k: fleet.devices[k].key().entries[k] for k in range(1, 10)}))
    few, enough = fleet.terms(1, tuple(range(7))), fleet.terms(1, tuple(range(8)))
    said = refusal(lambda: wary.masked(few, vector, 1, few.request))
    assert said == "7 devices take part, and this one takes part with 8 or more"
    assert wary.masked(enough, vector, 1, enough.request).device == 0


def test_a_server_that_says_all_neighbors_dropped_out_learns_nothing(fleet):
    _, _, sent = opened(fleet)
    victim = fleet.devices[0]
    said = refusal(lambda: victim.seeds(1, [1, 2, 3]))
    assert said == "6 of the neighbors of device 0 are left, and 7 are needed"
    victim.seeds(1, [1, 2])
    assert refusal(lambda: victim.seeds(1, [3])).startswith("6 of the neighbors")
    assert refusal(lambda: victim.shares(1, relayed(sent, 0, [3, 4]))).startswith("2 of the")


@pytest.mark.parametrize("alive", [(), (3,), (3, 4, 5, 6), (3, 4, 5, 6, 7, 8), tuple(range(3, 10))])
def test_telling_neighbors_different_things_does_not_unmask_a_device(fleet, alive):
    """The server wants device 0: shares from who hears that it lives, seeds from the others.

    It tells device 0 that as many neighbors dropped out as it believes, so only these tell both.
    """
    terms, _, sent = opened(fleet)
    seeds, shares = set(fleet.devices[0].seeds(1, [1, 2]).entries), set()
    for peer in range(1, 10):
        own = fleet.devices[peer]
        if peer in (1, 2, *alive):
            others = [other for other in range(10) if other != peer]
            shares |= {peer} if 0 in own.shares(1, relayed(sent, peer, others)).entries else set()
        else:
            seeds |= {peer} if 0 in own.seeds(1, [0]).entries else set()
    assert seeds & shares == {1, 2}
    assert len(shares) < terms.needed or len(seeds) < len(terms.graph[0])


@pytest.mark.parametrize("other", [True, False])
def test_a_share_that_was_changed_or_sent_elsewhere_is_refused(fleet, other):
    _, _, sent = opened(fleet)
    entry = sent[3].entries[5] if other else bytes(60)
    told = relayed(sent, 0, list(range(1, 10))) | {3: entry}
    said = refusal(lambda: fleet.devices[0].shares(1, told))
    assert said == "a share was changed on its way"


def test_messages_of_another_form_are_refused():
    message = Message(MASKED, 1, 2, {3: b"abc"}, b"body")
    data = message.to_bytes()
    assert Message.from_bytes(data, MASKED).entries == {3: b"abc"}
    for bad in (data[:5], data[:-1], data + b"x", b"\xff" * len(data)):
        assert refusal(lambda bad=bad: Message.from_bytes(bad, MASKED))
    assert refusal(lambda: Message.from_bytes(data, KEYS))


def correlation(one, other):
    return float(np.corrcoef(one.astype(np.float64), other.astype(np.float64))[0, 1])


def test_nothing_that_the_server_sees_correlates_with_an_update():
    """Over 60 rounds of the same update: masked vectors are independent of it and of each other."""
    fleet = Fleet(4)
    ramp = (np.arange(4000, dtype=np.uint32) * 1000) + 7
    vectors = [ramp + device for device in range(4)]
    vectors = [own.astype(np.uint32) for own in vectors]
    correlations, between, high, before = [], [], [], None
    for number in range(1, 61):
        fleet.seen.clear()
        total, survivors = fleet.sum(number, vectors)
        assert np.array_equal(total, true_sum(vectors, survivors))
        for data in fleet.seen[:4]:
            body = Message.from_bytes(data, MASKED).body[32:]
            words = np.frombuffer(body, np.uint32)
            correlations.append(correlation(words, ramp))
            high.append((words >> 31).mean())
        first = np.frombuffer(Message.from_bytes(fleet.seen[0], MASKED).body[32:], np.uint32)
        between += [] if before is None else [correlation(first, before)]
        before = first
    limit = 5 / np.sqrt(4000)
    assert max(map(abs, correlations)) < limit
    assert abs(np.mean(correlations)) < limit / np.sqrt(240)
    assert max(map(abs, between)) < limit
    assert np.mean(high) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(240 * 4000))


def test_no_sum_has_fewer_devices_than_noise_is_scaled_for(fleet):
    """The worst that a server can do about device 0: neighbors that must be in a sum with it."""
    terms, _, sent = opened(fleet)
    spare = terms.degree - terms.needed
    believed_gone = range(1, 1 + spare)  # who hears that device 0 dropped out
    known = {peer for peer in believed_gone if 0 in fleet.devices[peer].seeds(1, [0]).entries}
    every = range(10)
    shares = 0
    for peer in range(1 + spare, 10):
        others = [other for other in every if other != peer]
        told = fleet.devices[peer].shares(1, relayed(sent, peer, others)).entries
        shares += 0 in told
    assert shares == terms.needed
    known |= set(fleet.devices[0].seeds(1, list(range(9, 9 - spare, -1))).entries)
    hidden = set(terms.graph[0]) - known
    assert len(hidden) + 1 == fewest_summed(10, terms.neighbors, terms.threshold)
    assert refusal(lambda: fleet.devices[0].seeds(1, [min(hidden)])).endswith("are needed")
