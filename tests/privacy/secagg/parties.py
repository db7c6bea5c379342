"""Devices and a server of secure aggregation in one process, whose messages a test can see."""

import hashlib

import numpy as np

from fedtiny.errors import SecureAggregationError
from fedtiny.privacy.secagg import ciphers
from fedtiny.privacy.secagg.device import SecureDevice
from fedtiny.privacy.secagg.server import SecureSum
from fedtiny.privacy.secagg.terms import KEYS, Message, Terms

RUN = b"sixteen bytes ok"
SHARE = 2 / 3


class Fleet:
    """All devices of a run; `silent_at[stage]` are those that do not answer then."""

    def __init__(self, count, neighbors=40, threshold=SHARE, real=True):
        self.neighbors, self.threshold, self.count = neighbors, threshold, count
        self.ciphers = ciphers.Cryptography() if real else ciphers.NoCryptography()
        signers = [ciphers.SigningKey() if real else ciphers.NoSigningKey() for _ in range(count)]
        self.directory = {device: signer.public for device, signer in enumerate(signers)}
        self.devices = {
            device: SecureDevice(
                *(device, RUN, signer, self.directory, self.ciphers),
                neighbors=neighbors,
                threshold=threshold,
            )
            for device, signer in enumerate(signers)
        }
        keys = {k: own.key().entries[k] for k, own in self.devices.items()}
        for device in self.devices.values():
            device.meet(Message(KEYS, 0, device.device, keys))
        self.silent_at = {}
        self.seen = []

    def terms(self, number, participants=None, **changes):
        participants = tuple(range(self.count)) if participants is None else participants
        told = {"neighbors": self.neighbors, "threshold": self.threshold, "scales": b"x"}
        asked = int.from_bytes(hashlib.sha256(b"request %d" % number).digest()[:8], "little")
        return Terms(RUN, number, number, asked, participants, **(told | changes))

    def sum(self, number, vectors, dropped=()):
        """The sum over survivors and who they are; a round may be refused."""
        terms = self.terms(number)
        total = SecureSum(terms, len(vectors[0]), self.ciphers)
        for device, own in self.devices.items():
            if device not in dropped:
                message = own.masked(terms, vectors[device], number, terms.request)
                total.add(self.through(message))
        return total.result(self), total.survivors

    def through(self, message):
        """A message as it arrives: the server sees its bytes and nothing else."""
        data = message.to_bytes()
        assert len(data) == message.size
        self.seen.append(data)
        return Message.from_bytes(data, message.kind)

    def seeds(self, asked):
        return self.told("seeds", asked)

    def shares(self, asked):
        return self.told("shares", asked)

    def told(self, stage, asked):
        """What each device answers to a stage, unless it is silent."""
        return {
            device: self.through(getattr(self.devices[device], stage)(one.number, one.entries))
            for device, one in asked.items()
            if device not in self.silent_at.get(stage, ())
        }


def drawn_vectors(count, size=50, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 2**32, size, dtype=np.uint32) for _ in range(count)]


def true_sum(vectors, devices):
    return np.sum([vectors[device] for device in devices], axis=0, dtype=np.uint32)


def refusal(call):
    """The sentence with which a step is refused."""
    try:
        call()
    except SecureAggregationError as error:
        return str(error)
    raise AssertionError("it was not refused")
