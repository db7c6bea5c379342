"""A device's end of secure aggregation: what it tells, and all that it refuses to tell."""

import hashlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from fedtiny.errors import SecureAggregationError
from fedtiny.privacy.secagg import shamir
from fedtiny.privacy.secagg.ciphers import KEY_BYTES, Ciphers, Words
from fedtiny.privacy.secagg.graph import FEWEST
from fedtiny.privacy.secagg.terms import KEYS, MASKED, SEEDS, SHARES, Message, Terms

Directory = Mapping[int, bytes]
"""By device, the public key of its node: told to nodes out of band, never by the server."""


class Signer(Protocol):
    """A node's own key."""

    def signed(self, text: bytes) -> bytes:
        """The signature of a text."""


@dataclass
class _Exchange:
    """The exchange that a device is in."""

    terms: Terms
    neighbors: tuple[int, ...]
    dropped: set[int] = field(default_factory=set)
    """Neighbors about whom the shared seed was told."""
    keys: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)


class SecureDevice:
    """One device in the exchanges of one run.

    It knows its peers by `directory`, and has settled with their owners what it accepts at least:
    `neighbors`, `threshold` and `participants`. Its key lives as long as this object, or as what
    `state` gives, from which it goes on in another process.
    """

    def __init__(
        self,
        device: int,
        run: bytes,
        signer: Signer,
        directory: Directory,
        ciphers: Ciphers,
        *,
        neighbors: int,
        threshold: float,
        participants: int = FEWEST,
    ) -> None:
        self.device, self.run = device, run
        self._signer, self._directory, self._ciphers = signer, directory, ciphers
        self._neighbors, self._threshold = neighbors, threshold
        self._participants = participants
        self._key = ciphers.new_key()
        self._peers: dict[int, bytes] = {}
        self._secrets: dict[int, bytes] = {}
        self._last = 0
        self._answered: set[int] = set()
        self._open: _Exchange | None = None

    def key(self) -> Message:
        """The public key, signed, for the server to hand on."""
        entry = self._key.public + self._signature
        return Message(KEYS, 0, self.device, {self.device: entry})

    @cached_property
    def _signature(self) -> bytes:
        return self._signer.signed(statement(self.run, self.device, self._key.public))

    def state(self) -> dict[str, Any]:
        """All that must outlive a process, as plain JSON; the key's secret half is in it."""
        exchange = self._open
        return {
            "key": self._key.private.hex(),
            "peers": {str(peer): public.hex() for peer, public in self._peers.items()},
            "last": self._last,
            "answered": sorted(self._answered),
            "open": exchange and exchange.terms.to_plain() | {"dropped": sorted(exchange.dropped)},
        }

    def restore(self, state: Mapping[str, Any], *, renewed: bool = False) -> None:
        """Go on where another process stopped; renewed with a new key, out of any exchange."""
        self._last, self._answered = state["last"], set(state["answered"])
        if renewed:
            return
        self._key = self._ciphers.new_key(bytes.fromhex(state["key"]))
        self._peers = {int(peer): bytes.fromhex(own) for peer, own in state["peers"].items()}
        if found := state["open"]:
            terms = Terms.from_plain(self.run, found)
            self._open = _Exchange(terms, terms.graph[self.device], set(found["dropped"]))

    def meet(self, keys: Message) -> None:
        """Take the keys of peers; one that its owner did not sign for this run is refused.

        One that is known was checked before. A node that was started anew shows another key than
        before, signed as well. It serves for exchanges to come: one that is open ends.
        """
        for peer, entry in keys.entries.items():
            public, signature = bytes(entry[:KEY_BYTES]), bytes(entry[KEY_BYTES:])
            if self._peers.get(peer) == public:
                continue
            owner = self._directory.get(peer)
            if owner is None:
                raise SecureAggregationError(f"device {peer} is not in the list of nodes")
            text = statement(self.run, peer, public)
            if not self._ciphers.is_signed(owner, text, signature):
                raise SecureAggregationError(f"the key of device {peer} is not signed by its node")
            self._peers[peer], self._open = public, None
            self._secrets.pop(peer, None)

    def masked(self, terms: Terms, values: Words, round: int, request: int) -> Message:
        """The vector under its masks, with the encrypted shares of its own mask's seed."""
        self.check(terms, round, request)
        self._last = terms.number
        self._answered.add(request)
        neighbors = terms.graph[self.device]
        strangers = set(neighbors) - self._peers.keys()
        if strangers:
            raise SecureAggregationError(f"device {min(strangers)} has shown no key")
        exchange = self._open = _Exchange(terms, neighbors)
        secret, shares = self._ciphers.new_shares(neighbors, terms.needed)
        total = values.astype(np.uint32)
        self._ciphers.add_stream(total, own_seed(self._ciphers, terms, secret), 1)
        for peer in neighbors:
            seed = self._keys(exchange, peer)[0]
            self._ciphers.add_stream(total, seed, sign(self.device, peer))
        sent = {peer: self._encrypted(exchange, peer, shares[peer]) for peer in neighbors}
        body = commitment(secret) + total.tobytes()
        return Message(MASKED, terms.number, self.device, sent, body)

    def check(self, terms: Terms, round: int, request: int) -> None:
        """Refuse terms that are not those of this request, or that would not hide this device."""
        if terms.run != self.run or (terms.round, terms.request) != (round, request):
            raise SecureAggregationError("the terms are those of another run, round or request")
        if terms.number <= self._last:
            raise SecureAggregationError(
                f"exchange {terms.number} is over: this device was in {self._last}"
            )
        if request in self._answered:  # two sums of almost the same devices would tell one apart
            raise SecureAggregationError("this device has answered the same request before")
        terms.check()
        if len(terms.participants) < self._participants:
            raise SecureAggregationError(
                f"{len(terms.participants)} devices take part, and this one takes part with "
                f"{self._participants} or more"
            )
        if self.device not in terms.participants:
            raise SecureAggregationError("this device is not among the participants")
        unknown = set(terms.participants) - self._directory.keys()
        if unknown:
            raise SecureAggregationError(f"device {min(unknown)} is not in the list of nodes")
        if terms.neighbors < self._neighbors or terms.threshold < self._threshold:
            raise SecureAggregationError(
                f"{terms.neighbors} neighbors and a threshold of {terms.threshold:g} are less than "
                f"the {self._neighbors} and {self._threshold:g} that this device takes part with"
            )

    def seeds(self, number: int, dropped: Collection[int]) -> Message:
        """The seeds of the masks shared with neighbors that dropped out, of this exchange alone."""
        exchange = self._current(number)
        asked = set(dropped)
        if not asked <= set(exchange.neighbors) or asked & exchange.dropped:
            raise SecureAggregationError("seeds were asked of no neighbor, or were told before")
        self._check_left(exchange, exchange.dropped | asked)
        exchange.dropped |= asked
        told = {peer: self._keys(exchange, peer)[0] for peer in sorted(asked)}
        return Message(SEEDS, number, self.device, told)

    def shares(self, number: int, encrypted: Mapping[int, bytes]) -> Message:
        """The shares of the own seeds of neighbors that survived; nothing is told after that."""
        exchange = self._current(number)
        survivors = set(encrypted)
        if survivors & exchange.dropped:
            both = min(survivors & exchange.dropped)
            raise SecureAggregationError(
                f"of device {both} the shared seed was told: its share is not told too"
            )
        if not survivors <= set(exchange.neighbors):
            raise SecureAggregationError("shares were asked of a device that is no neighbor")
        self._check_left(exchange, set(exchange.neighbors) - survivors)
        self._open = None
        told = {peer: self._decrypted(exchange, peer, encrypted[peer]) for peer in survivors}
        return Message(SHARES, number, self.device, dict(sorted(told.items())))

    def terms(self, number: int) -> Terms:
        """The terms of the exchange that it is in."""
        return self._current(number).terms

    def _current(self, number: int) -> _Exchange:
        if self._open is None or self._open.terms.number != number:
            raise SecureAggregationError(f"this device is not in exchange {number}, or is done")
        return self._open

    def _check_left(self, exchange: _Exchange, dropped: set[int]) -> None:
        left, needed = len(exchange.neighbors) - len(dropped), exchange.terms.needed
        if left < needed:
            raise SecureAggregationError(
                f"{left} of the neighbors of device {self.device} are left, and {needed} are needed"
            )

    def _secret(self, peer: int) -> bytes:
        if peer not in self._secrets:
            self._secrets[peer] = self._key.secret_with(self._peers[peer])
        return self._secrets[peer]

    def _keys(self, exchange: _Exchange, peer: int) -> tuple[bytes, bytes]:
        """What this device has in common with a peer in one exchange.

        The seed of their mask, and the key of the shares that they send each other. They are this
        pair's alone, even if a peer shows the key of another as its own.
        """
        if peer not in exchange.keys:
            pair = struct.pack("<2Q", *sorted((self.device, peer)))
            about = b"mask and shares" + exchange.terms.digest + pair
            exchange.keys[peer] = self._ciphers.derived(self._secret(peer), about)
        return exchange.keys[peer]

    def _encrypted(self, exchange: _Exchange, peer: int, share: int) -> bytes:
        key, about = self._keys(exchange, peer)[1], sent_by(self.device, exchange.terms)
        return self._ciphers.encrypted(key, shamir.to_bytes(share), about)

    def _decrypted(self, exchange: _Exchange, peer: int, data: bytes) -> bytes:
        key, about = self._keys(exchange, peer)[1], sent_by(peer, exchange.terms)
        return self._ciphers.decrypted(key, data, about)


def statement(run: bytes, device: int, public: bytes) -> bytes:
    """What a node signs: this key is its own in this run."""
    return run + device.to_bytes(8, "little") + public


def sent_by(device: int, terms: Terms) -> bytes:
    """What a share is bound to: it serves in no other exchange, nor sent back to its sender."""
    return terms.digest + device.to_bytes(8, "little")


def sign(device: int, peer: int) -> int:
    """Of a mask that two share, one adds what the other takes away."""
    return 1 if device < peer else -1


def own_seed(ciphers: Ciphers, terms: Terms, secret: int) -> bytes:
    """The seed of a device's own mask, out of the secret that it shared."""
    return ciphers.derived(shamir.to_bytes(secret), b"own mask" + terms.digest)[0]


def commitment(secret: int) -> bytes:
    """By which the server tells that shares gave the right secret."""
    return hashlib.sha256(b"own mask" + shamir.to_bytes(secret)).digest()
