"""The cryptography of secure aggregation, and none in its place, for simulations that need speed.

X25519, Ed25519, ChaCha20 and ChaCha20-Poly1305 are those of the package `cryptography`, HMAC-SHA512
that of Python. Nothing here is drawn from a run's seed: keys come from the operating system.
"""

import hmac
import secrets
import sys
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import SecureAggregationError
from fedtiny.extras import require
from fedtiny.privacy.secagg import shamir

Words = NDArray[np.uint32]
KEY_BYTES, SIGNATURE_BYTES = 32, 64
HASH, HASH_BYTES = "sha512", 64
NONCE_BYTES, TAG_BYTES = 12, 16  # before and after an encrypted text
SIGNED = b"fedtiny secure aggregation key "


class Key(Protocol):
    """A key pair that lives for a run."""

    public: bytes

    @property
    def private(self) -> bytes:
        """The secret half, which never leaves its device."""

    def secret_with(self, public: bytes) -> bytes:
        """What this key has in common with the key of a peer, of which this is the public half."""


class Ciphers(Protocol):
    """What a device and the server need of cryptography."""

    def new_key(self, private: bytes | None = None) -> Key:
        """A key pair, to be signed and shown to peers; or the one of this private half."""

    def is_signed(self, public: bytes, text: bytes, signature: bytes) -> bool:
        """Whether a text was signed by the key of this public half."""

    def derived(self, secret: bytes, about: bytes) -> tuple[bytes, bytes]:
        """Two keys for one purpose out of a secret."""

    def new_shares(self, holders: Sequence[int], threshold: int) -> tuple[int, dict[int, int]]:
        """A new secret, and shares of it."""

    def joined(self, shares: Mapping[int, int]) -> int:
        """The secret of these shares."""

    def add_stream(self, total: Words, seed: bytes, sign: int) -> None:
        """Add the mask of a seed to a vector, or take it away."""

    def encrypted(self, key: bytes, text: bytes, about: bytes) -> bytes:
        """A text for whoever has the key, bound to what it is about, with a nonce of its own."""

    def decrypted(self, key: bytes, data: bytes, about: bytes) -> bytes:
        """The text; what was changed on its way is refused."""


class Cryptography:
    """The real one, for one thread at a time."""

    def __init__(self) -> None:
        self._mask = np.empty(0, np.uint32)  # where masks are made: all of an exchange are as long

    def new_key(self, private: bytes | None = None) -> Key:
        return ExchangeKey(private)

    def is_signed(self, public: bytes, text: bytes, signature: bytes) -> bool:
        return _is_signed(public, text, signature)

    def derived(self, secret: bytes, about: bytes) -> tuple[bytes, bytes]:
        """By the expanding half of HKDF-SHA512 (RFC 5869), whose first block is two keys."""
        block = hmac.digest(secret, about + b"\x01", HASH)
        return block[:KEY_BYTES], block[KEY_BYTES:]

    def new_shares(self, holders: Sequence[int], threshold: int) -> tuple[int, dict[int, int]]:
        secret = shamir.new_secret()
        return secret, shamir.split(secret, holders, threshold)

    def joined(self, shares: Mapping[int, int]) -> int:
        return shamir.join(shares)

    def add_stream(self, total: Words, seed: bytes, sign: int) -> None:
        if len(self._mask) != len(total):
            self._mask = np.empty(len(total), np.uint32)
        mask = KeyStream(seed).into(self._mask)
        (np.add if sign > 0 else np.subtract)(total, mask, out=total)

    def encrypted(self, key: bytes, text: bytes, about: bytes) -> bytes:
        cipher = _part("ciphers.aead").ChaCha20Poly1305(key)
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + bytes(cipher.encrypt(nonce, text, about))

    def decrypted(self, key: bytes, data: bytes, about: bytes) -> bytes:
        wrong = require("cryptography.exceptions", extra="secagg").InvalidTag
        cipher = _part("ciphers.aead").ChaCha20Poly1305(key)
        try:
            return bytes(cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], about))
        except wrong:
            raise SecureAggregationError("a share was changed on its way") from None


class NoKey:
    """Stands for a key pair where there is no cryptography."""

    public = private = bytes(KEY_BYTES)

    def secret_with(self, public: bytes) -> bytes:
        return bytes(KEY_BYTES)


class NoCryptography:
    """No masks: the same sum to the last bit, of vectors that the server could read."""

    def new_key(self, private: bytes | None = None) -> Key:
        return NoKey()

    def is_signed(self, public: bytes, text: bytes, signature: bytes) -> bool:
        return True

    def derived(self, secret: bytes, about: bytes) -> tuple[bytes, bytes]:
        return secret, secret

    def new_shares(self, holders: Sequence[int], threshold: int) -> tuple[int, dict[int, int]]:
        return 0, dict.fromkeys(holders, 0)

    def joined(self, shares: Mapping[int, int]) -> int:
        return 0

    def add_stream(self, total: Words, seed: bytes, sign: int) -> None:
        """Nothing is masked."""

    def encrypted(self, key: bytes, text: bytes, about: bytes) -> bytes:
        return bytes(NONCE_BYTES) + text + bytes(TAG_BYTES)

    def decrypted(self, key: bytes, data: bytes, about: bytes) -> bytes:
        return data[NONCE_BYTES:-TAG_BYTES]


class KeyStream:
    """Words of ChaCha20 that only who has the seed can tell from random ones; it serves once."""

    def __init__(self, seed: bytes) -> None:
        ciphers = _part("ciphers")
        algorithm = ciphers.algorithms.ChaCha20(seed, bytes(16))
        self._encryptor = ciphers.Cipher(algorithm, mode=None).encryptor()

    def take(self, count: int) -> Words:
        """The next so many numbers."""
        return self.into(np.empty(count, np.uint32))

    def into(self, numbers: Words) -> Words:
        """The next so many numbers as there is room for, in that room."""
        self._encryptor.update_into(_zeros(numbers.nbytes), numbers.view(np.uint8))
        return numbers if sys.byteorder == "little" else numbers.byteswap(inplace=True)


@lru_cache(maxsize=1)
def _zeros(count: int) -> bytes:
    """What a key stream is added to; masks of a run have one length."""
    return bytes(count)


class SigningKey:
    """A node's own Ed25519 key, by which its peers know it."""

    def __init__(self, private: bytes | None = None) -> None:
        kind = _part("asymmetric.ed25519").Ed25519PrivateKey
        self._key = kind.from_private_bytes(private or secrets.token_bytes(KEY_BYTES))
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def signed(self, text: bytes) -> bytes:
        """The signature of a text."""
        return bytes(self._key.sign(SIGNED + text))


class NoSigningKey:
    """Stands for a node's own key where there is no cryptography."""

    public = bytes(KEY_BYTES)

    def signed(self, text: bytes) -> bytes:
        """No signature."""
        return bytes(SIGNATURE_BYTES)


class ExchangeKey:
    """An X25519 key pair."""

    def __init__(self, private: bytes | None = None) -> None:
        kind = _part("asymmetric.x25519").X25519PrivateKey
        self._key = kind.generate() if private is None else kind.from_private_bytes(private)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    @property
    def private(self) -> bytes:
        """The secret half, which never leaves its device."""
        return bytes(self._key.private_bytes_raw())

    def secret_with(self, public: bytes) -> bytes:
        """What this key has in common with the key of a peer, of which this is the public half.

        It is the extracting half of HKDF-SHA512, without salt, of what X25519 gives.
        """
        peer = _part("asymmetric.x25519").X25519PublicKey.from_public_bytes(public)
        try:
            return hmac.digest(bytes(HASH_BYTES), self._key.exchange(peer), HASH)
        except ValueError:
            raise SecureAggregationError("the key of a peer is not a usable one") from None


@cache
def _part(name: str) -> Any:
    """A module of the package, imported when it is first used."""
    return require(f"cryptography.hazmat.primitives.{name}", extra="secagg")


@lru_cache(maxsize=1 << 16)  # devices simulated in one process meet the same keys
def _is_signed(public: bytes, text: bytes, signature: bytes) -> bool:
    wrong = require("cryptography.exceptions", extra="secagg").InvalidSignature
    key = _part("asymmetric.ed25519").Ed25519PublicKey.from_public_bytes(public)
    try:
        key.verify(signature, SIGNED + text)
    except wrong:
        return False
    return True
