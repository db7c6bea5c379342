"""The cryptography of secure aggregation among devices that are simulated in one process."""

from functools import lru_cache

import numpy as np

from fedtiny.privacy.secagg.ciphers import Cryptography, Key, Words, key_stream

MAX_KEYS = 1 << 14  # derived keys that are held, of an exchange or a few
MAX_BYTES = 1 << 27  # of masks that are held until the other end needs them


class SharedCryptography(Cryptography):
    """The real one, but what two ends compute alike is computed once for both.

    So the secret that two devices have in common, the keys that follow from it, and the mask that
    one adds and the other takes away.
    """

    def __init__(self) -> None:
        self._secrets: dict[frozenset[bytes], bytes] = {}
        self._derived = lru_cache(MAX_KEYS)(super().derived)
        self._masks: dict[bytes, Words] = {}
        self._held = 0

    def new_key(self, private: bytes | None = None) -> Key:
        """A key pair that looks whether the other end was faster."""
        return _SharedKey(super().new_key(private), self._secrets)

    def derived(self, secret: bytes, about: bytes, count: int = 1) -> list[bytes]:
        """So many keys for one purpose out of a secret."""
        return self._derived(secret, about, count)

    def add_stream(self, total: Words, seed: bytes, sign: int) -> None:
        """Add the mask of a seed to a vector, or take it away."""
        mask = self._taken(seed)
        if mask is None or len(mask) != len(total):
            mask = key_stream(seed, len(total))
            self._hold(seed, mask)
        (np.add if sign > 0 else np.subtract)(total, mask, out=total)

    def _taken(self, seed: bytes) -> Words | None:
        found = self._masks.pop(seed, None)
        self._held -= 0 if found is None else found.nbytes
        return found

    def _hold(self, seed: bytes, mask: Words) -> None:
        self._masks[seed] = mask
        self._held += mask.nbytes
        while self._held > MAX_BYTES:  # the oldest, of which some were never asked for again
            self._taken(next(iter(self._masks)))


class _SharedKey:
    def __init__(self, key: Key, secrets: dict[frozenset[bytes], bytes]) -> None:
        self._key, self._secrets = key, secrets
        self.public, self.private = key.public, key.private

    def secret_with(self, public: bytes) -> bytes:
        both = frozenset((self.public, public))
        if both not in self._secrets:
            self._secrets[both] = self._key.secret_with(public)
        return self._secrets[both]
