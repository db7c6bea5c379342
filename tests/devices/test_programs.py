"""Devices without Python: the bits of a device at home, and no trouble that ends a run."""

import contextlib
import os
import select
import shlex
import socket
import sys
import threading
import time
import tty
from dataclasses import replace
from pathlib import Path

import pytest

from fedtiny.devices import places, visitors
from fedtiny.devices.channel import Channel, TooLongError
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.gateway import DeviceGateway
from fedtiny.devices.hello import Hello
from fedtiny.devices.listener import Listener
from fedtiny.devices.place_names import place_of, places_by_device
from fedtiny.devices.places import SerialLine
from fedtiny.devices.remote_devices import MixedExecutor, RemoteDevice, RemoteDevices
from fedtiny.devices.workers import Task
from fedtiny.errors import ConfigError, DataError, FedTinyError, ReplyError
from fedtiny.federation.messages import evaluate, train
from fedtiny.federation.reply_validator import Arrived, ReplyValidator
from fedtiny.native.library import available

from .stand_in import Device, serve
from .test_remote import at_home, spec_of
from .tiny import everything, lab, settings, tasks, whole_run

pytestmark = pytest.mark.skipif(not available(), reason="needs the native library")
STAND_IN = Path(__file__).with_name("stand_in.py")
COMMAND = f"{shlex.quote(sys.executable)} {shlex.quote(str(STAND_IN))} {{data}}"
FAR = 1  # the device that is somewhere else


class InThread:
    """A place where stand-ins live in threads: the first with one lie, those after with another."""

    def __init__(self, shard, *stories):
        self.shard, self.stories, self.met = shard, list(stories) or [""], 0

    def open(self, device, timeout, wait):
        """A fresh stand-in."""
        story = self.stories[min(self.met, len(self.stories) - 1)]
        self.met += 1
        if story == "away":
            raise FedTinyError("nobody is there")
        near, far = socket.socketpair()
        data = DeviceData.from_bytes(self.shard.to_bytes())
        threading.Thread(target=_life, args=(Device(data, story), far), daemon=True).start()
        return places.greeted(Channel(near, near, timeout=timeout))

    def last_words(self):
        return "it was a thread"

    def close(self):
        """Its threads end with their connections."""


def _life(device, connection):
    channel = Channel(connection, connection)
    try:
        serve(device, channel)
    except (EOFError, OSError):
        channel.close()


@pytest.fixture
def met():
    """Meet a stand-in that tells these lies, one after the other, and let it go in the end."""
    found = []

    def meet(bench, *stories, timeout=5.0):
        shard = bench.shards[FAR]
        device = RemoteDevice(FAR, InThread(shard, *stories), timeout)
        found.append(device)
        device.check(shard.data.shape, len(shard.data.classes), shard)
        device.equip(spec_of(bench))
        return device

    yield meet
    for device in found:
        device.close()


def asked(device, task):
    """What comes of one task."""
    device.start(task)
    return device.finish(task)


def expected(bench, task):
    """What a device at home answers."""
    return everything(next(at_home(bench).answers([task])))


# The same bits


def test_a_run_with_programs_and_python_is_that_of_devices_at_home():
    config = settings(fleet={"devices": 3, "straggler_rate": 0.2})
    near, far = lab(config), lab(config)
    near.transport.executor = at_home(near)
    found = RemoteDevices(f"0,2={COMMAND}", far.shards, 30)
    found.equip(spec_of(far))
    far.transport.executor = MixedExecutor(found, at_home(far))
    processes = [found[device].place.process for device in (0, 2)]
    files = Path(found._folder.name)
    assert sorted(file.name for file in files.iterdir()) == ["device0.ftd", "device2.ftd"]
    assert whole_run(far) == whole_run(near)
    assert far.transport.executor.account() == {"simulator": "reference"}
    far.transport.close()
    assert [process.poll() for process in processes] == [0, 0]
    assert not files.exists()


def test_a_device_that_has_forgotten_is_told_all_again(met):
    bench = lab()
    device = met(bench, "forgets")
    for program in ((train(1),), (evaluate(),), (train(1),)):
        task = tasks(bench, *program)[FAR]
        assert everything(asked(device, task)) == expected(bench, task)
    assert device.place.met == 1


# Devices that come back, and devices that do not


@pytest.mark.parametrize("lie", ["dies", "restarts", "babbles"])
def test_a_device_that_is_lost_is_met_again_and_asked_once_more(met, lie):
    bench = lab()
    device = met(bench, lie, "")
    for _ in range(2):
        task = tasks(bench, train(1))[FAR]
        assert everything(asked(device, task)) == expected(bench, task)
    assert device.place.met == 2


def test_a_device_that_is_lost_twice_has_failed_and_may_come_back(met):
    bench = lab()
    device, task = met(bench, "dies", "dies", ""), tasks(bench, train(1))[FAR]
    assert str(asked(device, task)) == "device 1 is gone; it was a thread"
    assert everything(asked(device, task)) == expected(bench, task)
    assert device.place.met == 3


def test_a_device_that_stays_away_has_failed_every_round(met):
    bench = lab()
    device, task = met(bench, "dies", "away"), tasks(bench, train(1))[FAR]
    for _ in range(2):
        assert str(asked(device, task)) == "device 1 cannot be reached: nobody is there"


def test_a_program_that_is_killed_goes_on_in_the_next_round():
    bench = lab()
    found = RemoteDevices(f"1={COMMAND}", bench.shards, 30)
    found.equip(spec_of(bench))
    task = tasks(bench, train(1))[FAR]
    before = everything(asked(found[FAR], task))
    found[FAR].place.process.kill()
    assert everything(asked(found[FAR], task)) == before == expected(bench, task)
    found.close()


def test_devices_connect_in_any_order_and_again():
    bench = lab()
    listener = Listener("127.0.0.1", 0)
    shards = [DeviceData.from_bytes(shard.to_bytes()) for shard in bench.shards[:2]]
    host, port = listener.address.split(":")

    def connect(shard):
        connection = socket.create_connection((host, int(port)))
        threading.Thread(target=_life, args=(Device(shard), connection), daemon=True).start()
        return connection

    lines = [connect(shard) for shard in reversed(shards)]
    devices = [RemoteDevice(shard.device, listener, 5.0) for shard in shards]
    for device in devices:
        device.equip(spec_of(bench))
    work = tasks(bench, train(1))[:2]
    assert all(
        everything(asked(*pair)) == expected(bench, pair[1])
        for pair in zip(devices, work, strict=True)
    )
    lines[0].shutdown(socket.SHUT_RDWR)  # that of device 1
    threading.Timer(0.2, connect, [shards[1]]).start()
    assert everything(asked(devices[1], work[1])) == expected(bench, work[1])
    for closable in (*devices, listener):
        closable.close()


def test_nobody_connects():
    listener = Listener("127.0.0.1", 0)
    with pytest.raises(FedTinyError, match="device 4 cannot be reached: nobody has connected to"):
        RemoteDevice(4, listener, 0.05)
    listener.close()


def test_strangers_at_the_address_are_let_go(caplog, monkeypatch):
    monkeypatch.setattr(places, "HELLO_SECONDS", 0.2)
    listener = Listener("127.0.0.1", 0)
    listener.expected = {0: lab().shards[0].digest}
    host, port = listener.address.split(":")
    silent, loud, other = (socket.create_connection((host, int(port))) for _ in range(3))
    loud.sendall(b"GET / HTTP/1.1\r\n\r\n")
    Channel(other, other).send_bytes(Device(lab().shards[FAR]).hello())
    with pytest.raises(FedTinyError, match="nobody has connected"):
        listener.open(0, 5.0, 0.4)
    for why in ("it says nothing", "it did not introduce itself", "device 1 is not expected here"):
        assert f"a connection from 127.0.0.1 was refused: {why}" in caplog.text
    for connection in (silent, loud, other):
        connection.close()
    listener.close()


def test_silent_strangers_keep_no_device_away(monkeypatch):
    monkeypatch.setattr(visitors, "MAX_UNKNOWN", 3)
    listener = Listener("127.0.0.1", 0)
    host, port = listener.address.split(":")
    silent = [socket.create_connection((host, int(port)), timeout=5.0) for _ in range(5)]
    device = socket.create_connection((host, int(port)))
    Channel(device, device).send_bytes(Device(lab().shards[FAR]).hello())
    began = time.monotonic()
    channel, hello = listener.open(FAR, 5.0, 0.0)
    assert (hello.device, channel.timeout) == (FAR, 5.0)
    with pytest.raises(FedTinyError, match="nobody has connected"):
        listener.open(0, 5.0, 0.0)
    assert time.monotonic() - began < 5.0, "nobody waited for them to speak"
    assert silent[0].recv(1) == b"", "the oldest was sent away"
    listener.close()
    for connection in (channel, device, *silent):
        connection.close()


def test_who_was_there_and_is_gone_again_is_not_taken_for_a_device():
    bench = lab()
    with contextlib.closing(Listener("127.0.0.1", 0)) as listener:
        host, port = listener.address.split(":")
        with socket.create_connection((host, int(port))) as gone:
            Channel(gone, gone).send_bytes(Device(bench.shards[FAR]).hello())
        timer = threading.Timer(0.5, connected, [listener, bench.shards[FAR]])
        timer.start()
        device = RemoteDevice(FAR, listener, 5.0)
        device.equip(spec_of(bench))
        timer.join()
        device.close()


# Strangers in the place of a device


OTHER_DATA = '{"digest": "0123456789abcdef"}'
NOT_EXPECTED = "its number and data are not those of a device that is expected here"


def connected(listener, shard, lie=""):
    """The connection of a stand-in that lives in a thread."""
    host, port = listener.address.split(":")
    connection = socket.create_connection((host, int(port)))
    data = DeviceData.from_bytes(shard.to_bytes())
    threading.Thread(target=_life, args=(Device(data, lie), connection), daemon=True).start()
    return connection


@pytest.mark.parametrize(("stranger", "lie"), [(0, ""), (FAR, OTHER_DATA)])
def test_a_gateway_takes_its_own_device_back_and_no_stranger(caplog, stranger, lie):
    bench = lab()
    with contextlib.closing(Listener("127.0.0.1", 0)) as listener:
        connected(listener, bench.shards[FAR])
        with contextlib.closing(DeviceGateway(listener, 5.0)) as gateway:
            gateway.device.close()
            connected(listener, bench.shards[stranger], lie)
            timer = threading.Timer(0.3, connected, [listener, bench.shards[FAR]])
            timer.start()
            gateway._require_device()
            timer.join()
            own = bench.shards[FAR]
            assert (gateway.hello.device, gateway.hello.digest) == (FAR, own.digest)
    assert f"a connection from 127.0.0.1 was refused: {NOT_EXPECTED}" in caplog.text


def test_who_came_second_to_a_gateway_is_not_kept_for_later(caplog):
    with contextlib.closing(Listener("127.0.0.1", 0)) as listener:
        for shard in lab().shards[:2]:
            connected(listener, shard)
        time.sleep(0.3)
        with contextlib.closing(DeviceGateway(listener, 5.0)) as gateway:
            gateway.device.close()
            with pytest.raises(FedTinyError, match="nobody has connected"):
                gateway.place.open(None, 5.0, 0.5)
    assert NOT_EXPECTED in caplog.text


def test_a_gateway_refuses_another_board_on_its_line():
    gateway = DeviceGateway(InThread(lab().shards[FAR], "", OTHER_DATA, ""), 5.0)
    gateway.device.close()
    with pytest.raises(FedTinyError, match="another device is where the gateway's was"):
        gateway._require_device()
    gateway._require_device()
    assert gateway.place.met == 3, "the device itself is taken back"
    gateway.close()


def test_a_run_lets_in_the_data_that_it_gave_and_no_others(caplog):
    bench = lab()
    with contextlib.closing(Listener("127.0.0.1", 0)) as listener:
        listener.expected = {FAR: bench.shards[FAR].digest}
        connected(listener, bench.shards[FAR], OTHER_DATA)
        timer = threading.Timer(0.3, connected, [listener, bench.shards[FAR]])
        timer.start()
        device = RemoteDevice(FAR, listener, 5.0)
        device.check((1, 8, 8), 3, bench.shards[FAR])
        timer.join()
        device.close()
    assert NOT_EXPECTED in caplog.text


def test_a_connection_that_cannot_be_accepted_is_no_end(caplog, monkeypatch):
    class Full:
        """A door in a process that has no more files."""

        def accept(self):
            raise OSError(24, "Too many open files")

        def fileno(self):
            return 3

    monkeypatch.setattr(visitors, "PAUSE", 0.0)
    visitors.Visitors(lambda *_: None).let_in(Full())
    assert "could not be accepted: Too many open files" in caplog.text


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_an_address_has_brackets_if_it_needs_them():
    try:
        listener = Listener("::1", 0)
    except FedTinyError:
        pytest.skip("this machine has no ::1")
    assert place_of(f"gateway://{listener.address}").host == "::1"
    listener.close()


# Devices that lie


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("long", "reply refused: it has 1099511627776 bytes, and"),
        ("huge", "reply refused: it has"),
        ("garbage", "reply refused: "),
        ("unknown", "reply refused: it is no outcome of a request"),
        ("fails", "1 MB ?[2J xxx"),
    ],
)
def test_what_no_honest_device_says_is_a_failure_in_a_sentence(met, lie, told):
    bench = lab()
    device = met(bench, lie)
    found = asked(device, tasks(bench, train(1))[FAR])
    assert isinstance(found, FedTinyError)
    assert str(found).startswith(told)
    assert len(str(found)) <= 300
    assert str(found).isprintable()


def test_a_device_that_takes_too_long_has_failed(met):
    bench = lab()
    device = met(bench, "sleeps", "", timeout=0.3)
    task = tasks(bench, train(1))[FAR]
    assert "no answer within 0.3 s" in str(asked(device, task))
    device.timeout = 5.0
    assert everything(asked(device, task)) == expected(bench, task), "it is met anew"


def test_an_answer_to_another_round_is_refused(met):
    bench = lab()
    device = met(bench, "replays")
    first = tasks(bench, train(1))[FAR]
    later = Task(first.shard, replace(first.request, round=1))
    assert everything(asked(device, first)) == expected(bench, first)
    found = asked(device, later)
    validator = ReplyValidator(later.request, "mean", bench.config)
    with pytest.raises(ReplyError, match="it answers round 1, and this is round 2"):
        validator.accepted(Arrived(FAR, len(first.shard), found, size=0))


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ('{"wire": 2}', "speaks version 2 of the wire format, and this fedtiny 3; build"),
        ('{"link": null}', "speaks version None of the link format, and this fedtiny 1; build"),
        ('{"device": 0}', "device 1: it has the data of device 0"),
        ('{"shape": [3, 8, 8]}', "its samples are 3x8x8, and those of the run are 1x8x8; write"),
        ('{"shape": [8, 8]}', "lacks the shape"),
        ('{"classes": 4}', "its data have 4 classes, and the run has 3"),
        ('{"samples": 10}', "has 10 samples, 4 of them to measure with, and the run gives it 9"),
        ('{"samples": 1e9}', "no usable number for 'samples'"),
        ('{"lanes": 3}', "computes 3 images at once"),
        ('{"memory": -1}', "no usable number for 'memory'"),
        ('{"digest": "0123"}', "no digest of its data; build its program from the same fedtiny"),
        ('{"digest": "0123456789abcdef"}', "other samples than the run gives it; write its data"),
        ('{"name": "' + 5000 * "x" + '"}', "did not introduce itself"),
    ],
)
def test_a_device_that_does_not_fit_is_refused_at_hello(met, lie, told):
    with pytest.raises(FedTinyError) as refused:
        met(lab(), lie)
    assert told in str(refused.value)


def test_a_device_that_comes_back_with_other_data_has_failed(met):
    bench = lab()
    device = met(bench, "dies", '{"samples": 8}')
    found = asked(device, tasks(bench, train(1))[FAR])
    assert str(found).startswith("device 1 has come back with other data")


@pytest.mark.parametrize("said", [b"", b"\0", b"\4", b"\4[]", b"\4{", b"\4" + b"[" * 4000])
def test_what_is_no_hello(said):
    with pytest.raises(FedTinyError, match=r"hello|introduce itself"):
        Hello.read(said)


def test_a_frame_that_lies_about_its_length_is_not_read():
    near, far = socket.socketpair()
    channel = Channel(near, near, timeout=5.0)
    far.sendall(b"FTch" + (1 << 60).to_bytes(8, "little"))
    with pytest.raises(TooLongError):
        channel.recv_bytes(1000)
    far.sendall(b"FTch" + (1000).to_bytes(8, "little") + b"not so long")
    channel.timeout = 0.05
    with pytest.raises(TimeoutError):
        channel.recv_bytes(1000)
    far.close()
    channel.close()
    with pytest.raises(EOFError):
        channel.recv_bytes()


def test_nothing_is_sent_without_end_to_one_who_does_not_listen():
    near, far = socket.socketpair()
    channel = Channel(near, near, timeout=0.1)
    with pytest.raises(TimeoutError):
        channel.send_bytes(bytes(1 << 24))
    channel.close()
    far.close()


# Places


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("/nowhere/program", "cannot start '/nowhere/program': No such file"),
        ("true", "did not introduce itself"),
        ("sh -c 'echo my last words >&2; exit 3'", "its last words were: my last words"),
        ("echo hello", "did not introduce itself"),
    ],
)
def test_what_is_no_program_of_a_device(command, told):
    with pytest.raises(FedTinyError, match="device 0 cannot be reached: ") as refused:
        RemoteDevices(command, lab().shards, 5.0)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tcp://here", "is no address; write for example tcp://127"),
        ("tcp://[::1:7000", "is no address; write for example tcp://127"),
        ("gateway://nowhere", "is no address; write for example gateway://127"),
        ("tcp://127.0.0.1:99999", "is no address"),
        ("serial:/dev/x?speed=3", "is no serial line"),
        ("serial:/dev/x?baud=fast", "is no serial line"),
        ("a 'b", "is no command"),
        (" ", "is empty"),
    ],
)
def test_what_is_no_place(text, told):
    with pytest.raises(ConfigError, match=told):
        place_of(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3=a", "names device 3 and there are 3"),
        ("0-1=a; 1=b", "names device 1 twice"),
        ("a; b", "two places for all"),
        ("1-2-3=a", "takes numbers of devices"),
        ("2-1=a", "takes numbers of devices"),
        ("0-99999999999=a", "names device 99999999999 and there are 3"),
        ("0-" + 5000 * "9" + "=a", "takes numbers of devices"),
    ],
)
def test_what_names_no_devices(text, told):
    with pytest.raises(ConfigError, match=told):
        places_by_device(text, 3)


def test_a_command_may_look_like_an_address():
    place = place_of("./program http://[x")
    assert place.command == ["./program", "http://[x"]
    place.close()


def test_a_port_that_is_taken():
    listener = Listener("127.0.0.1", 0)
    with pytest.raises(FedTinyError, match="cannot listen at"):
        place_of(f"tcp://{listener.address}")
    listener.close()


def test_a_board_on_a_serial_line_is_asked_who_it_is(monkeypatch):
    """A pair of terminals: the other end prints boot messages first, and an old answer.

    It says hello when it has booted, and again when it is asked.
    """
    bench = lab()
    board, line = os.openpty()
    tty.setraw(board)
    data = DeviceData.from_bytes(bench.shards[FAR].to_bytes())
    stream = os.fdopen(board, "r+b", buffering=0)

    def boot():
        channel = Channel(stream, stream)
        with contextlib.suppress(EOFError, OSError):
            assert channel.recv_bytes()[:1] == b"?"  # the question is lost
            channel._write(b"booting FT ... \r\n", None)
            channel.send_bytes(b"\0" + bytes(9000))  # of a request that was given up
            channel.send_bytes(b"\1it was too much")
            time.sleep(0.1)
            serve(Device(data), channel)

    monkeypatch.setattr(places, "SILENCE", 0.3)
    thread = threading.Thread(target=boot)
    thread.start()
    place = SerialLine(Path(os.ttyname(line)))
    device = RemoteDevice(FAR, place, 5.0)
    assert device.hello.device == FAR
    monkeypatch.setattr(place, "open", None)  # it is not met again
    device.equip(spec_of(bench))
    task = tasks(bench, train(1))[FAR]
    assert everything(asked(device, task)) == expected(bench, task)
    device.close()
    os.close(line)
    thread.join(5)
    stream.close()


def test_a_hello_that_crosses_the_question_is_passed_over(monkeypatch):
    """Else every answer would be taken for one to the question before."""
    bench = lab()
    board, line = os.openpty()
    tty.setraw(board)
    stream = os.fdopen(board, "r+b", buffering=0)

    def boot():
        select.select([stream], [], [])  # the question is there
        _life(Device(DeviceData.from_bytes(bench.shards[FAR].to_bytes())), stream)

    threading.Thread(target=boot, daemon=True).start()
    monkeypatch.setattr(places, "HELLO_SECONDS", 2.0)
    channel, hello = SerialLine(Path(os.ttyname(line))).open(FAR, 5.0, 0.0)
    assert hello.device == FAR
    channel.close()
    os.close(line)


def test_a_serial_line_that_went_away_is_waited_for(tmp_path):
    """A board that loses its power at work, and whose line comes back as another terminal."""
    bench, path, lines = lab(), tmp_path / "ttyACM0", []

    def plug_in(story):
        board, line = os.openpty()
        lines.append(line)
        tty.setraw(board)
        data = DeviceData.from_bytes(bench.shards[FAR].to_bytes())
        stream = os.fdopen(board, "r+b", buffering=0)
        threading.Thread(target=_life, args=(Device(data, story), stream), daemon=True).start()
        path.symlink_to(os.ttyname(line))

    plug_in("dies")
    device = RemoteDevice(FAR, SerialLine(path), 5.0)
    device.equip(spec_of(bench))
    path.unlink()
    timer = threading.Timer(0.5, plug_in, [""])
    timer.start()
    task = tasks(bench, train(1))[FAR]
    assert everything(asked(device, task)) == expected(bench, task)
    timer.join()
    device.close()
    for line in lines:
        os.close(line)


def test_no_serial_line():
    with pytest.raises(FedTinyError, match="cannot open /nowhere"):
        SerialLine(Path("/nowhere")).open(0, 1.0, 1.0)
    with pytest.raises(FedTinyError, match="cannot open /dev/null"):
        SerialLine(Path("/dev/null")).open(0, 1.0, 1.0)
    with pytest.raises(ConfigError, match="no 12345 baud"):
        SerialLine(Path("/dev/null"), 12345).open(0, 1.0, 1.0)


# Data


def test_damaged_data_of_a_device_is_refused():
    packed = bytearray(lab().shards[0].to_bytes())
    packed[60] ^= 1
    with pytest.raises(DataError, match="damaged"):
        DeviceData.from_bytes(bytes(packed))
