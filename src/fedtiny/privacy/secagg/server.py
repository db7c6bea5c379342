"""The server's end of secure aggregation: it ends with the sum over survivors, or with none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np

from fedtiny.errors import SecureAggregationError
from fedtiny.privacy.secagg import shamir
from fedtiny.privacy.secagg.ciphers import KEY_BYTES, NONCE_BYTES, TAG_BYTES, Ciphers, Words
from fedtiny.privacy.secagg.device import commitment, own_seed, sign
from fedtiny.privacy.secagg.held_vectors import HeldVectors
from fedtiny.privacy.secagg.terms import REVEAL, UNMASK, Message, Terms

COMMITMENT_BYTES = 32
SHARE_BYTES = NONCE_BYTES + shamir.BYTES + TAG_BYTES  # encrypted

Messages = Mapping[int, Message]
"""By device, what it is sent or what it answers."""


class Peers(Protocol):
    """The devices, for the stages after the masked vectors; who is silent is not in an answer."""

    def seeds(self, asked: Messages) -> Messages:
        """The seeds of masks shared with those that dropped out."""

    def shares(self, asked: Messages) -> Messages:
        """Shares of the own seeds of survivors."""


@dataclass
class SecureSum:
    """The masked vectors of one exchange, and what they sum to once all masks are gone."""

    terms: Terms
    size: int
    """Number of values of a vector."""
    ciphers: Ciphers
    _vectors: HeldVectors = field(default_factory=HeldVectors)
    _commitments: dict[int, bytes] = field(default_factory=dict)
    _encrypted: dict[int, Mapping[int, bytes]] = field(default_factory=dict)
    _seeds: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def add(self, message: Message) -> None:
        """Take a device's masked vector; what is not of this exchange is refused."""
        device, body = message.device, memoryview(message.body)
        if message.number != self.terms.number or device not in self.terms.participants:
            raise SecureAggregationError("a masked vector is of another exchange")
        if device in self._vectors:
            raise SecureAggregationError(f"device {device} has sent its vector before")
        entries, widths = message.entries, {*map(len, message.entries.values())}
        if set(entries) != set(self.terms.graph[device]) or widths != {SHARE_BYTES}:
            raise SecureAggregationError(f"device {device} has not sent a share to each neighbor")
        if len(body) != COMMITMENT_BYTES + 4 * self.size:
            raise SecureAggregationError(f"the vector of device {device} has another length")
        self._commitments[device] = bytes(body[:COMMITMENT_BYTES])
        self._vectors.add(device, body[COMMITMENT_BYTES:])
        self._encrypted[device] = entries

    def leave_out(self, device: int) -> None:
        """Let a device count as dropped out, whether or not its vector came."""
        if device in self._vectors:
            self._vectors.remove(device)

    @property
    def survivors(self) -> tuple[int, ...]:
        """Whose vectors are summed."""
        return tuple(sorted(self._vectors))

    def result(self, peers: Peers) -> Words:
        """The sum over the survivors, exactly; without enough of them there is none."""
        self._learn_seeds(peers)
        secrets = self._own_secrets(self._shares(peers))
        total = np.zeros(self.size, dtype=np.uint32)
        for device in self.survivors:
            np.add(total, self._vectors[device], out=total)
            self.ciphers.add_stream(total, own_seed(self.ciphers, self.terms, secrets[device]), -1)
            for peer, seed in self._seeds.get(device, {}).items():
                self.ciphers.add_stream(total, seed, -sign(device, peer))
        return total

    def close(self) -> None:
        """Let go of all vectors."""
        self._vectors.close()

    def _learn_seeds(self, peers: Peers) -> None:
        """Ask survivors for the seeds that they shared with who dropped out, until all are known.

        A survivor that does not answer drops out too: then its own neighbors are asked.
        """
        while owed := self._owed():
            self._check_left()
            number = self.terms.number
            answers = peers.seeds(
                {k: Message(REVEAL, number, k, dict.fromkeys(of, b"")) for k, of in owed.items()}
            )
            for device, asked in owed.items():
                if self._answers(answers.get(device), device, asked, KEY_BYTES):
                    self._seeds.setdefault(device, {}).update(answers[device].entries)
                else:
                    self._vectors.remove(device)
        self._check_left()

    def _owed(self) -> dict[int, list[int]]:
        """By survivor, the neighbors that dropped out and whose seeds it has not told."""
        owed = {
            device: [
                peer
                for peer in self.terms.graph[device]
                if peer not in self._vectors and peer not in self._seeds.get(device, {})
            ]
            for device in self.survivors
        }
        return {device: asked for device, asked in owed.items() if asked}

    def _check_left(self) -> None:
        """Refuse a sum that honest devices would not unmask."""
        for device in self.survivors:
            left = sum(peer in self._vectors for peer in self.terms.graph[device])
            if left < self.terms.needed:
                raise SecureAggregationError(
                    f"{left} of the neighbors of device {device} are left, and "
                    f"{self.terms.needed} are needed: there is no sum"
                )
        if not self.survivors:
            raise SecureAggregationError("no device has sent a vector: there is no sum")

    def _shares(self, peers: Peers) -> dict[int, dict[int, int]]:
        """By survivor, the shares of its own seed that its neighbors told."""
        alive = {
            device: [peer for peer in self.terms.graph[device] if peer in self._vectors]
            for device in self.survivors
        }
        asked = {}
        for device, of in alive.items():
            relayed = {peer: self._encrypted[peer][device] for peer in of}
            asked[device] = Message(UNMASK, self.terms.number, device, relayed)
        answers = peers.shares(asked)
        shares: dict[int, dict[int, int]] = {device: {} for device in alive}
        for device, of in alive.items():
            if self._answers(answers.get(device), device, of, shamir.BYTES):
                for peer, share in answers[device].entries.items():
                    shares[peer][device] = shamir.from_bytes(share)
        return shares

    def _answers(
        self, answer: Message | None, device: int, asked: Sequence[int], width: int
    ) -> bool:
        """Whether a device answers what it was asked, in this exchange."""
        if answer is None or (answer.number, answer.device) != (self.terms.number, device):
            return False
        entries = answer.entries
        return set(entries) == set(asked) and {*map(len, entries.values())} <= {width}

    def _own_secrets(self, shares: Mapping[int, Mapping[int, int]]) -> dict[int, int]:
        secrets, needed = {}, self.terms.needed
        for device, told in shares.items():
            if len(told) < needed:
                raise SecureAggregationError(
                    f"{len(told)} shares of the seed of device {device} were told, and {needed} "
                    "are needed: there is no sum"
                )
            secrets[device] = self.ciphers.joined(dict(islice(sorted(told.items()), needed)))
            if commitment(secrets[device]) != self._commitments[device]:
                raise SecureAggregationError(
                    f"a share of the seed of device {device} is wrong: there is no sum"
                )
        return secrets
