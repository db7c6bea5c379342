"""fedtiny-device under TLS by mbedTLS: whom it trusts, and who trusts it."""

import contextlib
import logging
import subprocess
import threading
import time

import pytest

pytest.importorskip("cryptography")

from tests.devices.authority import Authority
from tests.devices.test_programs import asked, expected
from tests.devices.test_remote import spec_of
from tests.devices.test_tls import refused
from tests.devices.tiny import everything, lab, tasks

from fedtiny.devices.place_names import place_of
from fedtiny.devices.remote_devices import RemoteDevice
from fedtiny.federation.messages import train

pytestmark = pytest.mark.slow
FAR = 1  # the device that is a program
HOSTS = ("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """The one that signs for all here, and another."""
    folder = tmp_path_factory.mktemp("tls")
    return Authority(folder / "trusted"), Authority(folder / "stranger")


@pytest.fixture
def bench(tmp_path):
    """A laboratory, and the data of its device in a file."""
    found = lab()
    (tmp_path / "1.ftd").write_bytes(found.shards[FAR].to_bytes())
    return found


@contextlib.contextmanager
def listening(files, ca):
    """An address at which devices with a certificate of `ca` are welcome."""
    text = f"tls://127.0.0.1:0?cert={files['cert']}&key={files['key']}&ca={ca}"
    with contextlib.closing(place_of(text)) as listener:
        yield listener, listener.address.rpartition(":")[2]


@contextlib.contextmanager
def started(*command):
    """The program, and what it prints as errors until it is killed."""
    said = []
    with subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True) as process:
        reader = threading.Thread(target=lambda: said.extend(process.stderr))
        reader.start()
        try:
            yield said
        finally:
            process.kill()
            reader.join(10)


def options(ca, files):
    """As the program takes them."""
    return "--ca", ca, "--cert", files["cert"], "--key", files["key"]


@pytest.mark.parametrize("host", HOSTS)
def test_a_program_answers_over_tls_and_comes_back(
    program_with_tls, authorities, bench, tmp_path, host
):
    trusted, _ = authorities
    data, own = tmp_path / "1.ftd", options(trusted.ca, trusted.sign("device"))
    with (
        listening(trusted.sign(host), trusted.ca) as (listener, port),
        started(program_with_tls, data, "--connect", f"{host}:{port}", *own),
    ):
        device = RemoteDevice(FAR, listener, 20.0)
        task = tasks(bench, train(1))[FAR]
        device.equip(spec_of(bench))
        for _ in range(2):
            assert everything(asked(device, task)) == expected(bench, task)
            device.pipe.close()
        device.close()


@pytest.mark.parametrize("why", ["authority", "host", "device", "plain"])
def test_who_is_not_trusted_is_refused_with_a_sentence(
    program_with_tls, program, authorities, bench, tmp_path, caplog, why
):
    trusted, stranger = authorities
    caplog.set_level(logging.WARNING)
    own = trusted.sign("device")
    cases = {
        "authority": (options(stranger.ca, own), "not correctly signed by the trust"),
        "host": (options(trusted.ca, own), "does not match with the expected CN"),
        "device": (options(trusted.ca, stranger.sign("device")), "the gateway refuses this device"),
        "plain": ((), "no connection"),
    }
    given, told = cases[why]
    binary = program if why == "plain" else program_with_tls
    files = trusted.sign("127.0.0.2" if why == "host" else "127.0.0.1")
    with listening(files, trusted.ca) as (listener, port):
        at = "--connect", f"127.0.0.1:{port}"
        with started(binary, tmp_path / "1.ftd", *at, *given, "--verbose") as said:
            assert "was refused: " in refused(listener, caplog, seconds=10.0)
            until = time.monotonic() + 10.0
            while told not in "".join(said) and time.monotonic() < until:
                time.sleep(0.02)
    assert told in "".join(said)


def test_what_cannot_be_used_is_told(program_with_tls, program, authorities, bench, tmp_path):
    trusted, _ = authorities
    one, other = trusted.sign("one"), trusted.sign("other")

    def told(binary, *more):
        command = [binary, tmp_path / "1.ftd", "--connect", "127.0.0.1:1", *more]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=10)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert "was built without TLS" in told(program, "--ca", trusted.ca)
    assert "cannot use --ca '/nowhere'" in told(program_with_tls, "--ca", "/nowhere")
    assert "--cert and --key" in told(program_with_tls, "--ca", trusted.ca, "--cert", one["cert"])
    swapped = options(trusted.ca, one | {"key": other["key"]})
    assert "cannot use --key" in told(program_with_tls, *swapped)
    assert "--cert needs --ca" in told(program_with_tls, *swapped[2:])
