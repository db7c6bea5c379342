"""Certificates for tests of TLS: an authority, and what it signs for gateways and devices."""

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat

from fedtiny.flower.trial import certificates


class Authority:
    """One that signs; `ca` is what those who trust it hold."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self._key = folder, certificates._new_key()
        self._name = certificates._name(folder.name)
        self.ca = folder / "ca.crt"
        own = certificates._unsigned(self._name, self._name, self._key, 1)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._write(self.ca, own)

    def _write(self, file, unsigned):
        signed = unsigned.sign(self._key, hashes.SHA256())
        file.write_bytes(signed.public_bytes(Encoding.PEM))

    def sign(self, host: str) -> dict[str, Path]:
        """The files of a certificate for this host, and of its key."""
        key, number = certificates._new_key(), len([*self.folder.iterdir()])
        files = {"cert": self.folder / f"{number}.pem", "key": self.folder / f"{number}.key"}
        names = x509.SubjectAlternativeName([certificates._host(host)])
        unsigned = certificates._unsigned(certificates._name(host), self._name, key, 1)
        self._write(files["cert"], unsigned.add_extension(names, critical=False))
        certificates._write_secret(files["key"], key, PrivateFormat.PKCS8)
        return files
