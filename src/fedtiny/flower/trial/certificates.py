"""Keys for a federation: a certificate authority, the SuperLink's certificate, a key a node."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedtiny.errors import ConfigError, RunError
from fedtiny.files import write_new

Key = ec.EllipticCurvePrivateKey
LONGEST_DAYS = 36500


class Keys:
    """Where the keys of a federation lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "ca.crt"  # the certificate that every machine trusts
        self.certificate = folder / "server.pem"  # the SuperLink's, and its private key
        self.key = folder / "server.key"

    def node(self, number: int) -> Path:
        """A node's private key; its public one ends in .pub."""
        return self.folder / f"node{number}"


def make(folder: Path, hosts: Sequence[str], nodes: int, days: int = 365) -> Keys:
    """Write all keys into a new folder.

    The authority's own key is used once and kept nowhere: nobody can sign a second server.
    """
    _check(hosts, nodes, days)
    keys = Keys(folder)
    try:
        folder.mkdir(parents=True)
        _write_authority_and_server(keys, hosts, days)
        for number in range(nodes):
            _write_node(keys.node(number))
    except FileExistsError as error:
        raise RunError(f"{folder} is there already, and keys are never written over") from error
    except OSError as error:
        raise RunError(f"cannot write keys into {folder}: {error.strerror}") from error
    return keys


def _check(hosts: Sequence[str], nodes: int, days: int) -> None:
    """Refuse what no key can be made for, before anything is written."""
    if nodes < 1:
        raise ConfigError(f"--nodes must be at least 1, got {nodes}")
    if not 1 <= days <= LONGEST_DAYS:
        raise ConfigError(f"--days must lie in [1, {LONGEST_DAYS}], got {days}")
    if not hosts:
        raise ConfigError("--host needs a name or an address of the SuperLink")
    odd = [host for host in hosts if not host or not host.isascii()]
    if odd:
        raise ConfigError(f"--host takes ASCII names (xn--... for others), not {odd[0]!r}")


def _write_authority_and_server(keys: Keys, hosts: Sequence[str], days: int) -> None:
    authority, server = _new_key(), _new_key()
    name = _name("fedtiny federation")
    root = (
        _unsigned(name, name, authority, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    certificate = (
        _unsigned(_name(hosts[0]), name, server, days)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA384())
    )
    write_new(keys.authority, root.public_bytes(Encoding.PEM))
    write_new(keys.certificate, certificate.public_bytes(Encoding.PEM))
    _write_secret(keys.key, server, PrivateFormat.PKCS8)


def _write_node(path: Path) -> None:
    key = _new_key()
    _write_secret(path, key, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_new(path.with_suffix(".pub"), public + b"\n")


def _new_key() -> Key:
    return ec.generate_private_key(ec.SECP384R1())


def _write_secret(path: Path, key: Key, form: PrivateFormat) -> None:
    write_new(path, key.private_bytes(Encoding.PEM, form, NoEncryption()), 0o600)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: Key, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
