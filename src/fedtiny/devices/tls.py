"""TLS for the link to a device: who listens shows a certificate, and may ask for one."""

import contextlib
import hashlib
import select
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedtiny.devices.channel import CHUNK, Channel
from fedtiny.errors import ConfigError, FedTinyError, printable

T = TypeVar("T")
LAST_SECONDS = 0.2  # that one who is let go may take for a piece of what it has sent
LAST_PIECES = 10


class SecureChannel(Channel):
    """A channel whose bytes are encrypted; those of one frame may lie in many records."""

    def __init__(self, connected: ssl.SSLSocket, *, timeout: float | None = None) -> None:
        super().__init__(connected, connected, timeout=timeout)
        connected.setblocking(False)
        self._socket = connected
        if shown := connected.getpeercert(binary_form=True):
            self.certificate = hashlib.sha256(shown).hexdigest()

    def _take(self, size: int, until: float | None) -> bytes:
        return self._done(lambda: self._socket.recv(size, 0), until)

    def _give(self, data: memoryview, until: float | None) -> int:
        return self._done(lambda: self._socket.send(data, 0), until)

    def _done(self, step: Callable[[], T], until: float | None) -> T:
        """Do a step as soon as the connection has, or takes, the bytes that TLS needs for it."""
        while True:
            if not self.is_open:
                raise EOFError
            try:
                return step()
            except ssl.SSLWantReadError:
                self._ready(self._socket, select.POLLIN, until)
            except ssl.SSLWantWriteError:
                self._ready(self._socket, select.POLLOUT, until)


def listening(cert: Path, key: Path, ca: Path | None = None) -> ssl.SSLContext:
    """How to listen; with `ca`, who connects must show a certificate that it signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _show(context, cert, key)
    if ca is not None:
        _load_authority(context, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def connecting(ca: Path, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """How to connect to who shows a certificate that `ca` signed for its host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load_authority(context, ca)
    if cert is not None and key is not None:
        _show(context, cert, key)
    return context


def _show(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=lambda: "")  # nobody is asked for one
    except OSError as error:
        why = f"cannot use the certificate {cert} with the key {key}: {_reason(error)}"
        raise ConfigError(f"{why}; both must be PEM files without a password") from error


def _load_authority(context: ssl.SSLContext, ca: Path) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise ConfigError(f"{ca} is no PEM file of certificates: {_reason(error)}") from error


def secured(
    connected: socket.socket, context: ssl.SSLContext, seconds: float, host: str | None = None
) -> ssl.SSLSocket:
    """The connection once both sides trust each other; `host` is whom it was made to, if anyone.

    It is closed if they do not within so many seconds.
    """
    connected.settimeout(seconds)
    try:
        found = context.wrap_socket(
            connected,
            server_side=host is None,
            server_hostname=host,
            do_handshake_on_connect=False,
        )
    except OSError as error:
        connected.close()
        raise FedTinyError("it has ended the connection") from error
    try:
        found.do_handshake()
    except OSError as error:
        _let_go(found)
        raise FedTinyError(refusal(error) or "it ends the connection before TLS") from error
    return found


def _let_go(connected: ssl.SSLSocket) -> None:
    """Close it so that the other side reads why, which is lost if bytes from there are unread."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_WR)
        connected.settimeout(LAST_SECONDS)
        for _ in range(LAST_PIECES):
            if not connected.recv(CHUNK, 0):
                break
    connected.close()


def refusal(error: BaseException) -> str:
    """What TLS says of who is at the other end, or nothing if it was not TLS that failed."""
    if isinstance(error, TimeoutError):
        return "it says nothing of TLS"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {printable(error.verify_message)}"
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
        return ""
    reason = _reason(error)
    if "alert" in reason:
        return f"it refuses this certificate: {reason}"
    if reason == "peer did not return a certificate":
        return "it shows no certificate"
    return f"it does not speak TLS: {reason}"


def _reason(error: OSError) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return printable((reason or str(error)).replace("_", " ").lower())
