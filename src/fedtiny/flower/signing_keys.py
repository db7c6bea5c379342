"""The keys by which nodes know each other under secure aggregation, in files of OpenSSH's form.

A node has an Ed25519 key of its own, as `ssh-keygen -t ed25519` makes it, and the list of the
public keys of all nodes, one a line: the first line is that of device 0. Owners of nodes exchange
them out of band. Whoever hands out that list could put a key of its own in it, so the server must
not.
"""

import base64
import binascii
from pathlib import Path
from typing import Any

from fedtiny.errors import ConfigError, RunError
from fedtiny.extras import require
from fedtiny.files import read_file, write_new
from fedtiny.paths import user_path
from fedtiny.privacy.secagg.ciphers import KEY_BYTES, SigningKey

KIND = b"ssh-ed25519"
LIST = "secagg-keys"  # of a folder of keys


def make(folder: Path, nodes: int) -> None:
    """Write a key for every node and the list of all into a folder."""
    lines = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(nodes):
            private, public = _new_pair()
            write_new(own_key(folder, number), private, 0o600)
            lines.append(public + b" node%d\n" % number)
        write_new(folder / LIST, b"".join(lines))
    except OSError as error:
        raise RunError(f"cannot write keys into {folder}: {error.strerror}") from error


def own_key(folder: Path, number: int) -> Path:
    """Where `make` puts the key of a node."""
    return folder / f"secagg{number}"


def read_own(path: str) -> SigningKey:
    """A node's own key."""
    data = _read(path, "secagg-key")
    try:
        key = _serialization().load_ssh_private_key(data, password=None)
        raw = key.private_bytes_raw()
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"{path} is no Ed25519 key without a passphrase; make one with: "
            "ssh-keygen -t ed25519 -N '' -f FILE"
        ) from None
    if len(raw) != KEY_BYTES:
        raise ConfigError(f"{path} is a key of another kind; make one with ssh-keygen -t ed25519")
    return SigningKey(raw)


def read_list(path: str) -> dict[int, bytes]:
    """By device, the public key of its node."""
    lines = [line.split() for line in _read(path, "secagg-keys").splitlines()]
    found = [_public(line, path) for line in lines if line and not line[0].startswith(b"#")]
    if len(set(found)) != len(found):
        raise ConfigError(f"{path} has a key twice: every node must have one of its own")
    return dict(enumerate(found))


def _public(line: list[bytes], path: str) -> bytes:
    """The 32 bytes of a public key: the end of what its line holds, after kind and lengths."""
    head = len(KIND).to_bytes(4, "big") + KIND + KEY_BYTES.to_bytes(4, "big")
    try:
        data = base64.b64decode(line[1], validate=True)
    except (IndexError, binascii.Error):
        data = b""
    if line[0] != KIND or data[: len(head)] != head or len(data) != len(head) + KEY_BYTES:
        raise ConfigError(f"{path} holds a line that is no '{KIND.decode()} ...' public key")
    return data[len(head) :]


def _read(path: str, name: str) -> bytes:
    try:
        return read_file(user_path(path, name))
    except OSError as error:
        raise ConfigError(f"{name}: cannot read {path}: {error.strerror}") from error


def _new_pair() -> tuple[bytes, bytes]:
    forms = _serialization()
    kind = require("cryptography.hazmat.primitives.asymmetric.ed25519", extra="secagg")
    key = kind.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption()
    )
    return private, key.public_key().public_bytes(
        forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH
    )


def _serialization() -> Any:
    return require("cryptography.hazmat.primitives.serialization", extra="secagg")
