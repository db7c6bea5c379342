"""The link to a device under TLS: the same bytes, and a sentence for who is not trusted."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedtiny.devices import places, tls
from fedtiny.devices.channel import Channel
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.gateway import DeviceGateway
from fedtiny.devices.place_names import place_of
from fedtiny.devices.places import over
from fedtiny.devices.remote_devices import RemoteDevice, RemoteDevices
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation.messages import train
from fedtiny.native.library import available

pytest.importorskip("cryptography")

from .authority import Authority
from .stand_in import Device, serve
from .test_programs import FAR, InThread, asked, expected
from .test_remote import spec_of
from .tiny import everything, lab, tasks

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def trusted(tmp_path_factory):
    """Who signs for the gateway and for devices."""
    authority = Authority(tmp_path_factory.mktemp("tls") / "trusted")
    authority.gateway, authority.device = authority.sign(HOST), authority.sign("device")
    return authority


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Who signs for others."""
    authority = Authority(tmp_path_factory.mktemp("tls") / "stranger")
    authority.device = authority.sign("device")
    return authority


@pytest.fixture
def listener(trusted):
    """Listen with TLS; devices need a certificate if there is a `ca`."""
    with contextlib.ExitStack() as opened:

        def listen(ca=None):
            asks = f"&ca={ca}" if ca else ""
            name = f"tls://{HOST}:0?cert={trusted.gateway['cert']}&key={trusted.gateway['key']}"
            return opened.enter_context(contextlib.closing(place_of(name + asks)))

        yield listen


def address(listener):
    host, port = listener.address.split(":")
    return host, int(port)


class Connecting(threading.Thread):
    """A stand-in that connects with TLS, and what became of that."""

    def __init__(self, listener, context, *, host=HOST, shard=None):
        super().__init__(daemon=True)
        self.told, self._where = "", (socket.create_connection(address(listener)), context, host)
        self._device = Device(DeviceData.from_bytes((shard or lab().shards[FAR]).to_bytes()))
        self.start()

    def run(self):
        connected, context, host = self._where
        try:
            with contextlib.closing(over(connected, 10.0, context, host)) as channel:
                serve(self._device, channel)
        except (EOFError, OSError, FedTinyError) as error:
            self.told = tls.refusal(error) or str(error)


def refused(listener, caplog, *, seconds=2.0):
    """What a listener says of the one that has connected."""
    began = time.monotonic()
    while "was refused" not in caplog.text and time.monotonic() < began + seconds:
        with pytest.raises(FedTinyError, match="nobody has connected"):
            listener.open(FAR, 5.0, 0.05)
    return caplog.text


# Trust


@pytest.mark.skipif(not available(), reason="needs the native library")
@pytest.mark.parametrize("mutual", [False, True])
def test_a_device_answers_over_tls_with_the_bits_of_one_at_home(listener, trusted, mutual):
    bench = lab()
    here = listener(trusted.ca if mutual else None)
    context = tls.connecting(trusted.ca, **(trusted.device if mutual else {}))
    thread = Connecting(here, context, shard=bench.shards[FAR])
    device = RemoteDevice(FAR, here, 10.0)
    device.equip(spec_of(bench))
    task = tasks(bench, train(1))[FAR]
    assert everything(asked(device, task)) == expected(bench, task)
    device.close()
    thread.join(5)
    assert not thread.is_alive()


def test_a_gateway_that_the_device_does_not_trust(listener, stranger, caplog):
    here = listener()
    thread = Connecting(here, tls.connecting(stranger.ca))
    assert "it refuses this certificate: tlsv1 alert unknown ca" in refused(here, caplog)
    thread.join(5)
    assert thread.told.startswith("its certificate is refused: ")


def test_a_gateway_with_the_certificate_of_another_host(listener, trusted, caplog):
    here = listener()
    thread = Connecting(here, tls.connecting(trusted.ca), host="gateway.example")
    assert "it refuses this certificate" in refused(here, caplog)
    thread.join(5)
    assert "its certificate is refused: Hostname mismatch" in thread.told


def test_a_device_that_comes_back_with_another_certificate(listener, trusted, caplog):
    here, other = listener(trusted.ca), trusted.sign("other")
    Connecting(here, tls.connecting(trusted.ca, **trusted.device))
    channel, _ = here.open(FAR, 5.0, 5.0)
    channel.close()
    Connecting(here, tls.connecting(trusted.ca, **other))
    why = "it shows another certificate than the device that was here before"
    assert f"was refused: {why}" in refused(here, caplog)
    Connecting(here, tls.connecting(trusted.ca, **trusted.device))
    channel, hello = here.open(FAR, 5.0, 5.0)
    assert hello.device == FAR
    channel.close()


def test_a_device_that_the_gateway_does_not_trust(listener, trusted, stranger, caplog):
    here = listener(trusted.ca)
    thread = Connecting(here, tls.connecting(trusted.ca, **stranger.device))
    assert "was refused: its certificate is refused: " in refused(here, caplog)
    thread.join(5)
    assert thread.told.startswith("it refuses this certificate: ")


def test_a_device_without_the_certificate_that_it_needs(listener, trusted, caplog):
    here = listener(trusted.ca)
    thread = Connecting(here, tls.connecting(trusted.ca))
    assert "was refused: it shows no certificate" in refused(here, caplog)
    thread.join(5)
    assert thread.told.startswith("it refuses this certificate: ")


def test_a_device_without_tls_is_let_go_at_once(listener, caplog):
    here = listener()
    with socket.create_connection(address(here)) as connected:
        channel = Channel(connected, connected, timeout=5.0)
        channel.send_bytes(b"\4{}")
        assert "was refused: it does not speak TLS" in refused(here, caplog)
        with pytest.raises((EOFError, OSError)) as ended:
            channel.recv_bytes()
        assert not isinstance(ended.value, TimeoutError)


def test_a_device_that_says_nothing_is_let_go_in_time(listener, caplog, monkeypatch):
    monkeypatch.setattr(places, "HELLO_SECONDS", 0.1)
    here = listener()
    with socket.create_connection(address(here)):
        assert "was refused: it says nothing of TLS" in refused(here, caplog)


def test_a_device_with_tls_at_an_address_without(trusted, caplog):
    with contextlib.closing(place_of(f"tcp://{HOST}:0")) as here:
        thread = Connecting(here, tls.connecting(trusted.ca))
        assert "did not introduce itself" in refused(here, caplog)
        thread.join(5)
    assert not thread.is_alive()
    assert thread.told


# Frames


def pair(trusted):
    """Both ends of a connection."""
    near, far = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(tls.secured, far, tls.connecting(trusted.ca), 5.0, HOST)
        server = tls.secured(near, tls.listening(**trusted.gateway), 5.0)
    return [tls.SecureChannel(end, timeout=10.0) for end in (server, client.result())]


def test_long_frames_go_both_ways(trusted):
    frame = bytes(range(256)) * (1 << 14)
    server, client = pair(trusted)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: client.send_bytes(client.recv_bytes()))
        server.send_bytes(frame)
        assert server.recv_bytes(len(frame)) == frame
    client.close()
    with pytest.raises(EOFError):
        server.recv_bytes()
    server.close()
    with pytest.raises(EOFError):
        server.send_bytes(b"nobody")


def test_nobody_waits_without_end(trusted):
    server, client = pair(trusted)
    server.timeout = 0.1
    with pytest.raises(TimeoutError):
        server.recv_bytes()
    with pytest.raises(TimeoutError):
        server.send_bytes(bytes(1 << 24))
    server.close()
    client.close()


# A gateway's door


@pytest.mark.skipif(not available(), reason="needs the native library")
def test_a_node_asks_a_gateway_over_tls(listener, trusted, stranger, caplog, monkeypatch):
    door = listener(trusted.ca)
    gateway = DeviceGateway(InThread(lab().shards[FAR]), 10.0)
    threading.Thread(target=_serve, args=(gateway, door), daemon=True).start()
    own = "&".join(f"{name}={file}" for name, file in trusted.device.items())
    with pytest.raises(FedTinyError, match="it refuses this certificate"):
        place_of(f"gateway://{door.address}?ca={trusted.ca}").open(None, 5.0, 5.0)
    with pytest.raises(FedTinyError, match="its certificate is refused"):
        place_of(f"gateway://{door.address}?ca={stranger.ca}&{own}").open(None, 5.0, 5.0)
    with monkeypatch.context() as patch:
        patch.setattr(places, "HELLO_SECONDS", 0.3)
        with pytest.raises(FedTinyError, match="did not introduce itself"):
            place_of(f"gateway://{door.address}").open(None, 5.0, 5.0)
    name = f"gateway://{door.address}?ca={trusted.ca}&{own}"
    channel, hello = place_of(name).open(None, 5.0, 5.0)
    assert hello.device == FAR
    assert caplog.text.count("was refused:") == 3
    channel.close()
    gateway.close()


def _serve(gateway, door):
    with contextlib.suppress(OSError):
        gateway.serve(door)


# Names


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tls://127.0.0.1:0", "does not name the files of TLS"),
        ("tls://127.0.0.1:0?cert={cert}", "does not name the files of TLS"),
        ("tls://127.0.0.1:0?cert={cert}&key={key}&verify=no", "does not name the files of TLS"),
        ("tls://here?cert={cert}&key={key}", "is no address"),
        ("tls://127.0.0.1:0?cert={cert}&key=/nowhere", "cannot use the certificate"),
        ("tls://127.0.0.1:0?cert={cert}&key={other}", "key values mismatch"),
        ("tls://127.0.0.1:0?cert={cert}&key={key}&ca={key}", "is no PEM file of certificates"),
        ("tcp://127.0.0.1:0?cert={cert}&key={key}", "is not encrypted and takes no options"),
        ("gateway://127.0.0.1:1?cert={cert}&key={key}", "does not name the files of TLS"),
    ],
)
def test_what_is_no_place_with_tls(trusted, text, told):
    other = trusted.device["key"]
    with pytest.raises(ConfigError, match=told):
        place_of(text.format(**trusted.gateway, other=other))


def test_several_devices_of_a_run_connect_to_one_address(listener, trusted):
    """The name of the address is that of one place, however many devices are there."""
    bench, name = lab(), f"tls://{HOST}:0?cert={{cert}}&key={{key}}".format(**trusted.gateway)
    found = RemoteDevices.__new__(RemoteDevices)
    found._places = {}
    first, second = (found._place(name, shard) for shard in bench.shards[:2])
    assert first is second
    first.close()
