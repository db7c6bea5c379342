"""The cryptography of secure aggregation among devices that are simulated in one process."""

from functools import lru_cache

from fedtiny.privacy.secagg.ciphers import Cryptography, Key

MOST_HELD = 1 << 14  # derived keys, of an exchange or a few


class SharedCryptography(Cryptography):
    """The real one, but what two devices compute alike is computed once for both.

    So the secret that two have in common, and the keys that follow from it. Every device makes its
    masks and shares by itself.
    """

    def __init__(self) -> None:
        self._secrets: dict[frozenset[bytes], bytes] = {}
        self._derived = lru_cache(MOST_HELD)(super().derived)

    def new_key(self, private: bytes | None = None) -> Key:
        """A key pair that looks whether the other end was faster."""
        return _SharedKey(super().new_key(private), self._secrets)

    def derived(self, secret: bytes, about: bytes, count: int = 1) -> list[bytes]:
        """So many keys for one purpose out of a secret."""
        return self._derived(secret, about, count)


class _SharedKey:
    def __init__(self, key: Key, secrets: dict[frozenset[bytes], bytes]) -> None:
        self._key, self._secrets = key, secrets
        self.public, self.private = key.public, key.private

    def secret_with(self, public: bytes) -> bytes:
        both = frozenset((self.public, public))
        if both not in self._secrets:
            self._secrets[both] = self._key.secret_with(public)
        return self._secrets[both]
